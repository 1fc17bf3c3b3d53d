"""What the Parquet sink writes, read with Spark."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from hermes_spark.events import Coordinates, Event
from hermes_spark.messages import Message, Usage
from hermes_spark.state.records import CallSummary, Completed, Expired, Limits, Outcome, PlannedCall, Rejected, Taken
from hermes_spark.state.storage import Storage
from hermes_spark.streaming.publish import (
    ParquetSink,
    approvals,
    audit,
    build_tables,
    controls,
    dead_letters,
    expired,
    outcomes,
    read_table,
)
from hermes_spark.streaming.table_schemas import TABLES
from small_spark import small_spark

pytestmark = pytest.mark.spark

NOW = 1_764_500_000_123
READERS = {
    "outcomes": outcomes,
    "dead_letters": dead_letters,
    "controls": controls,
    "approvals": approvals,
    "expired": expired,
}


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with small_spark() as session:
        yield session


def outcome(session_id: str, *calls: CallSummary) -> Outcome:
    return Outcome(
        session_id=session_id,
        turn_id=f"t-{session_id}",
        coordinates=Coordinates("rate", 7),
        event_id="e-7",
        status="completed",
        reason="",
        reply="已发货",
        truncated=False,
        steps=2,
        calls=calls,
        usage=Usage(100, 20),
        event_ts_ms=NOW - 500,
        taken_ms=NOW - 400,
        time_ms=NOW,
        metadata={"channel": "web"},
    )


TO_APPROVE = PlannedCall("c9", "pay", {"n": 1}, approve_by_ms=NOW + 5)
RECORDS = [
    (
        0,
        1,
        outcome(
            "s1",
            CallSummary("c1", "crm_query", {"name": "张三"}, "ok", "[]", 0, 1, NOW - 50, NOW - 20),
            CallSummary("c2", "nope", {}, "refused", "unknown tool", 0, 0, 0, NOW),
        ),
    ),
    (0, 2, outcome("s2")),
    (1, 1, Rejected(Coordinates("a.jsonl", 4), "", "not JSON", b"\xff\x00x", 3, 0, NOW)),
    (1, 2, Taken("s1", Event(Coordinates("a.jsonl", 5), "s1", NOW, "reset"), "", Limits(), 0, NOW)),
    (1, 3, Expired("s1", NOW - 9, 9, 2, 1, NOW - 99, NOW, final=True, messages=(Message("user", "查"),))),
    (
        1,
        4,
        Completed("s1", "t", 0, "", "", (TO_APPROVE,), (), truncated=False, final=False, usage=Usage(), time_ms=NOW),
    ),
]


@pytest.fixture
def published(tmp_path) -> str:
    sink = ParquetSink(Storage.at(str(tmp_path)))
    sink.publish(3, build_tables("q", 3, RECORDS))
    sink.publish(11, build_tables("q", 11, [(0, 3, outcome("s3"))]))
    return str(tmp_path)


@pytest.mark.parametrize("name", list(TABLES))
def test_spark_reads_what_arrow_reads(spark, published, name):
    by_place = {(row["shard"], row["lsn"]): row for row in read_table(published, name).to_pylist()}
    frame = READERS[name](spark, published)
    assert frame.columns == TABLES[name].names
    rows = frame.toArrow().to_pylist()
    assert len(rows) == len(by_place) > 0
    assert {(row["shard"], row["lsn"]): row for row in rows} == by_place


def test_the_audit_has_a_row_per_call(spark, published):
    rows = {row["call_id"]: row.asDict() for row in audit(spark, published).collect()}
    assert set(rows) == {"c1", "c2"}
    assert {rows[call]["session_id"] for call in rows} == {"s1"}
    assert (rows["c1"]["name"], rows["c1"]["arguments"]) == ("crm_query", '{"name":"张三"}')
    assert rows["c1"]["batch_id"] == 3
    assert (rows["c2"]["status"], rows["c2"]["sent_at"]) == ("refused", None)


@pytest.mark.parametrize("read", [outcomes, audit, dead_letters, controls, approvals, expired])
def test_nothing_published_reads_as_empty(spark, tmp_path, read):
    assert read(spark, str(tmp_path)).count() == 0


def test_unfinished_files_are_not_read(spark, published, tmp_path):
    folder = tmp_path / "outcomes" / "batch_id=3"
    for name in (".part-q.parquet", "_part-q.parquet", "part-q.parquet#1"):
        (folder / name).write_bytes(b"half")
    assert outcomes(spark, published).count() == 3


def test_batches_can_be_chosen_by_number(spark, published):
    frame = outcomes(spark, f"{published}/").where("batch_id >= 10")
    assert [row.session_id for row in frame.collect()] == ["s3"]

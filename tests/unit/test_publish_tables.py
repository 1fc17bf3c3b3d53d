"""Records to tables to Parquet files, without Spark."""

from __future__ import annotations

import datetime as dt
import io
import json

import msgspec
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from hermes_spark.events import Coordinates, Event
from hermes_spark.messages import Message, ParsedCall, Usage
from hermes_spark.state.records import (
    CallSummary,
    Completed,
    Expired,
    Intent,
    Limits,
    Outcome,
    PlannedCall,
    Rejected,
    Returned,
    Taken,
    UndoSummary,
)
from hermes_spark.state.storage import Storage
from hermes_spark.streaming.publish import ConsoleSink, ParquetSink, parquet_bytes, read_table
from hermes_spark.streaming.table_schemas import TABLES
from hermes_spark.streaming.tables import build_tables

NOW = 1_764_500_000_123


def outcome(session_id: str = "s1", **changes) -> Outcome:
    fields = {
        "session_id": session_id,
        "turn_id": "t1",
        "coordinates": Coordinates("rate", 7),
        "event_id": "e-7",
        "status": "completed",
        "reason": "",
        "reply": "张三的订单已发货",
        "truncated": False,
        "steps": 2,
        "calls": (CallSummary("c1", "crm_query", {"name": "张三"}, "ok", "[]", 0, 1, NOW - 50, NOW - 20),),
        "usage": Usage(100, 20),
        "event_ts_ms": NOW - 500,
        "taken_ms": NOW - 400,
        "time_ms": NOW,
        "metadata": {"channel": "web", "n": 1},
    }
    return Outcome(**{**fields, **changes})


def taken(event: Event, *, repeat: bool = False) -> Taken:
    return Taken(event.session_id, event, "", Limits(), 3, NOW, repeat)


def event(kind: str = "message", **fields) -> Event:
    return Event(Coordinates("a.jsonl", 1), "s1", NOW - 9, kind, "e-1", **fields)


def utc(ms: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(ms // 1000, dt.timezone.utc).replace(microsecond=ms % 1000 * 1000)


REJECTED = Rejected(Coordinates("a.jsonl", 4), "", "not JSON", b"\xff\x00x", 99, 3, NOW)


def test_outcome_row():
    (row,) = build_tables("q", 5, [(2, 9, outcome())])["outcomes"].to_pylist()
    assert row == {
        "query_id": "q",
        "batch_id": 5,
        "shard": 2,
        "lsn": 9,
        "session_id": "s1",
        "turn_id": "t1",
        "event_id": "e-7",
        "source_partition": "rate",
        "source_offset": 7,
        "status": "completed",
        "reason": "",
        "reply": "张三的订单已发货",
        "truncated": False,
        "steps": 2,
        "calls": [
            {
                "call_id": "c1",
                "name": "crm_query",
                "arguments": '{"name":"张三"}',
                "status": "ok",
                "content": "[]",
                "step": 0,
                "attempts": 1,
                "sent_at": utc(NOW - 50),
                "done_at": utc(NOW - 20),
                "previous_hash": "",
                "hash": "07cd209447cb7a5bf4e49555ac7c62bf",
            }
        ],
        "prompt_tokens": 100,
        "completion_tokens": 20,
        "event_ts": utc(NOW - 500),
        "taken_at": utc(NOW - 400),
        "finished_at": utc(NOW),
        "metadata": '{"channel":"web","n":1}',
        "schema_version": 2,
        "undos": [],
    }


def test_an_outcome_says_what_was_undone():
    undos = (
        UndoSummary("c1", "u1", "unbook", {"n": 1}, "ok", "{}", NOW, NOW),
        UndoSummary("c2", "u2", "x", {}, "not_run", "", 0, 0),
    )
    (row,) = build_tables("q", 5, [(2, 9, outcome(undos=undos))])["outcomes"].to_pylist()
    assert [(undo["call_id"], undo["name"], undo["status"], undo["sent_at"]) for undo in row["undos"]] == [
        ("c1", "unbook", "ok", utc(NOW)), ("c2", "x", "not_run", None)
    ]  # fmt: skip


def test_a_call_that_was_never_sent_has_no_time():
    refused = CallSummary("c1", "nope", {}, "refused", "unknown tool", 0, 0, 0, NOW)
    (row,) = build_tables("q", 5, [(2, 9, outcome(calls=(refused,)))])["outcomes"].to_pylist()
    assert row["calls"][0]["sent_at"] is None


def test_dead_letter_row():
    tables = build_tables("q", 5, [(0, 1, REJECTED)])
    (row,) = tables["dead_letters"].to_pylist()
    assert row["session_id"] is None
    assert (row["source_partition"], row["source_offset"], row["reason"]) == ("a.jsonl", 4, "not JSON")
    assert (row["raw"], row["raw_bytes"], row["rejected_at"]) == (b"\xff\x00x", 99, utc(NOW))
    assert tables["outcomes"].num_rows == tables["controls"].num_rows == 0


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (taken(event("reset")), ("reset", "", "taken")),
        (taken(event("cancel", turn_id="t9")), ("cancel", "t9", "taken")),
        (taken(event("approval", turn_id="t9", call_id="c", decision="deny")), ("approval", "t9", "taken")),
        (taken(event(), repeat=True), ("message", "", "repeat")),
        (taken(event("reset"), repeat=True), ("reset", "", "repeat")),
    ],
)
def test_control_rows(record, expected):
    (row,) = build_tables("q", 5, [(0, 1, record)])["controls"].to_pylist()
    assert (row["type"], row["turn_id"], row["effect"]) == expected
    assert (row["event_id"], row["event_ts"], row["taken_at"]) == ("e-1", utc(NOW - 9), utc(NOW))


@pytest.mark.parametrize("effect", ["taken", "kept", "stale"])
def test_an_approval_is_answered_with_what_it_did(effect):
    approval = event("approval", turn_id="t9", call_id="c", decision="deny", by="ann", reason="no")
    record = msgspec.structs.replace(taken(approval), effect=effect)
    (row,) = build_tables("q", 5, [(0, 1, record)])["controls"].to_pylist()
    assert (row["effect"], row["call_id"], row["decision"], row["by"], row["reason"]) == (
        effect, "c", "deny", "ann", "no"
    )  # fmt: skip


def test_a_call_that_needs_an_approval_is_published_with_what_the_approval_must_name():
    calls = (PlannedCall("c1", "look", {}), PlannedCall("c2", "pay", {"n": 1}, approve_by_ms=NOW + 5))
    record = Completed("s1", "t1", 2, "", "", calls, (), truncated=False, final=False, usage=Usage(), time_ms=NOW)
    (row,) = build_tables("q", 5, [(3, 4, record)])["approvals"].to_pylist()
    assert (row["session_id"], row["turn_id"], row["call_id"], row["name"]) == ("s1", "t1", "c2", "pay")
    assert (row["arguments"], row["step"], row["asked_at"], row["approve_by"]) == ('{"n":1}', 2, utc(NOW), utc(NOW + 5))
    assert (row["shard"], row["lsn"]) == (3, 4)


def test_expired_row():
    call = ParsedCall("crm_query", {"name": "张三"}, "c1")
    history = (Message("user", "hi"), Message("assistant", "", "", (call,)), Message("tool", "[]"))
    record = Expired("s1", NOW - 60_000, 60_000, 3, 2, NOW - 99_000, NOW, final=True, messages=history, memory={"n": 1})
    (row,) = build_tables("q", 5, [(2, 9, record)])["expired"].to_pylist()
    assert json.loads(row.pop("messages")) == [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": "",
            "calls": [{"call_id": "c1", "name": "crm_query", "arguments": {"name": "张三"}}],
        },
        {"role": "tool", "content": "[]"},
    ]
    assert row == {
        "query_id": "q",
        "batch_id": 5,
        "shard": 2,
        "lsn": 9,
        "session_id": "s1",
        "turns": 3,
        "calls": 2,
        "memory": '{"n":1}',
        "ttl_ms": 60_000,
        "created_at": utc(NOW - 99_000),
        "active_at": utc(NOW - 60_000),
        "expired_at": utc(NOW),
        "schema_version": 2,
    }


def test_records_inside_a_turn_and_expiries_nobody_asked_for_are_not_published():
    inside = [
        (0, 1, taken(event())),
        (0, 2, Intent("s1", "c1", {}, "unknown", NOW, NOW)),
        (0, 3, Returned("s1", "c1", "ok", "", 1, NOW)),
        (0, 4, Expired("s1", NOW, 1, 1, 1, NOW, NOW)),
    ]
    assert all(table.num_rows == 0 for table in build_tables("q", 5, inside).values())


@given(st.permutations([(0, 1), (0, 2), (1, 1), (2, 1), (10, 1), (2, 11)]))
def test_rows_are_ordered_by_shard_and_lsn_and_equal_in_bytes(order):
    tables = build_tables("q", 5, [(shard, lsn, outcome(f"s{shard}-{lsn}")) for shard, lsn in order])
    rows = tables["outcomes"].select(["shard", "lsn"]).to_pylist()
    assert [(row["shard"], row["lsn"]) for row in rows] == sorted(order)
    sorted_tables = build_tables("q", 5, [(shard, lsn, outcome(f"s{shard}-{lsn}")) for shard, lsn in sorted(order)])
    assert parquet_bytes(tables["outcomes"]) == parquet_bytes(sorted_tables["outcomes"])


class TestParquetSink:
    def publish(self, path, batch_id, records, query_id="q"):
        ParquetSink(Storage.at(str(path))).publish(batch_id, build_tables(query_id, batch_id, records))

    def test_what_is_written_is_read(self, tmp_path):
        self.publish(tmp_path, 3, [(0, 1, outcome()), (1, 1, REJECTED)])
        self.publish(tmp_path, 12, [(0, 4, outcome("s2", calls=()))])
        read = read_table(tmp_path, "outcomes")
        assert read.schema == TABLES["outcomes"]
        assert [(row["batch_id"], row["session_id"]) for row in read.to_pylist()] == [(3, "s1"), (12, "s2")]
        expected = build_tables("q", 3, [(0, 1, outcome()), (1, 1, REJECTED)])
        assert read.slice(0, 1).to_pylist() == expected["outcomes"].to_pylist()
        assert read_table(tmp_path, "dead_letters").to_pylist() == expected["dead_letters"].to_pylist()

    def test_a_replay_leaves_the_same_files(self, tmp_path):
        records = [(0, 1, outcome()), (0, 2, taken(event("reset")))]
        self.publish(tmp_path, 3, records)
        before = {file: file.read_bytes() for file in tmp_path.rglob("*.parquet")}
        self.publish(tmp_path, 3, records)
        assert {file: file.read_bytes() for file in tmp_path.rglob("*.parquet")} == before
        assert {file.relative_to(tmp_path).as_posix() for file in before} == {
            "outcomes/batch_id=3/part-q.parquet",
            "controls/batch_id=3/part-q.parquet",
        }

    def test_a_new_checkpoint_replaces_nothing_of_the_old_one(self, tmp_path):
        self.publish(tmp_path, 0, [(0, 1, outcome("old"))], "q1")
        self.publish(tmp_path, 0, [(0, 1, outcome("new"))], "q2")
        assert set(read_table(tmp_path, "outcomes")["session_id"].to_pylist()) == {"old", "new"}

    def test_no_rows_no_files(self, tmp_path):
        self.publish(tmp_path, 3, [])
        assert not list(tmp_path.rglob("*.parquet"))
        assert read_table(tmp_path, "outcomes") == TABLES["outcomes"].empty_table()

    def test_unfinished_files_are_not_read(self, tmp_path):
        self.publish(tmp_path, 3, [(0, 1, outcome())])
        folder = tmp_path / "outcomes" / "batch_id=3"
        for name in (".part-q.parquet", "_part-q.parquet", "part-q.parquet#1"):
            (folder / name).write_bytes(b"half")
        assert read_table(tmp_path, "outcomes").num_rows == 1

    def test_older_files_lack_newer_columns(self, tmp_path):
        self.publish(tmp_path, 3, [(0, 1, outcome())])
        (file,) = tmp_path.rglob("*.parquet")
        pyarrow.parquet.write_table(pyarrow.parquet.ParquetFile(file).read().drop_columns(["metadata"]), file)
        (row,) = read_table(tmp_path, "outcomes").to_pylist()
        assert row["metadata"] is None

    def test_the_file_does_not_repeat_the_batch_id(self, tmp_path):
        data = parquet_bytes(build_tables("q", 3, [(0, 1, outcome())])["outcomes"])
        assert "batch_id" not in pyarrow.parquet.read_schema(pa.BufferReader(data)).names


def console_text(*records) -> str:
    out = io.StringIO()
    sink = ConsoleSink(Console(file=out, width=200))
    sink.publish(4, build_tables("q", 4, [(0, lsn, record) for lsn, record in enumerate(records, 1)]))
    return out.getvalue()


class TestConsoleSink:
    def test_a_line_per_outcome(self):
        text = console_text(outcome(), outcome("s2", status="failed", reason="deadline: too late", reply="", calls=()))
        assert "batch 4" in text
        assert "crm_query ok" in text
        assert "deadline: too late" in text

    def test_replies_are_cut_and_are_no_markup(self):
        text = console_text(outcome(reply="[red]x\n" + "y" * 100, calls=()))
        (line,) = (line for line in text.splitlines() if "yyy" in line)
        assert "[red]x " + "y" * 52 + "…" in line
        assert "y" * 53 not in line

    def test_silent_without_outcomes(self):
        assert console_text(REJECTED) == ""


def test_arguments_are_json_whatever_they_hold():
    arguments = {"q": 'a"b\\n\n中', "n": [1, 2.5, None, {"x": True}]}
    call = CallSummary("c1", "t", arguments, "ok", "", 0, 1, NOW, NOW)
    (row,) = build_tables("q", 5, [(0, 1, outcome(calls=(call,)))])["outcomes"].to_pylist()
    assert json.loads(row["calls"][0]["arguments"]) == arguments

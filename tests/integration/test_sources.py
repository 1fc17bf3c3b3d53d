"""The sources in real queries: what arrives, under which coordinates, and again after a restart."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from hermes_spark.errors import SettingsError
from hermes_spark.events import Coordinates, Row, parse_event
from hermes_spark.settings import Settings, SourceSettings, TriggerSettings
from hermes_spark.streaming.rows import MAX_FILE_BYTES, decode, from_arrow
from hermes_spark.streaming.source import open_source, ranges
from small_spark import small_spark

pytestmark = pytest.mark.spark

DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    # A file above the bound must not even be opened: Spark fails the batch when somebody asks for such content.
    with small_spark(spark__sql__sources__binaryFile__maxLength=str(MAX_FILE_BYTES)) as session:
        yield session


class Run:
    """One run of a query that decodes every batch in its tasks' way and keeps the rows by batch id."""

    def __init__(self, spark: SparkSession, settings: Settings, fail_at: int = -1) -> None:
        self.spark, self.settings, self.fail_at = spark, settings, fail_at
        self.batches: dict[int, list[Row]] = {}

    def start(self) -> StreamingQuery:
        writer = open_source(self.spark, self.settings).writeStream.foreachBatch(self.take)
        writer = writer.option("checkpointLocation", self.settings.checkpoint)
        if self.settings.trigger.available_now:
            return writer.trigger(availableNow=True).start()
        # Longer than a batch takes, so that there is a time between two batches in which `until` can stop.
        return writer.trigger(processingTime="500 milliseconds").start()

    def take(self, frame: DataFrame, batch: int) -> None:
        table = frame.toArrow()
        self.batches[batch] = [row for b in table.to_batches() for row in decode(from_arrow(b), self.settings.source)]
        if batch == self.fail_at:
            raise RuntimeError("killed by the test")

    def rows(self) -> list[Row]:
        return [row for batch in sorted(self.batches) for row in self.batches[batch]]

    def all_available(self) -> list[Row]:
        self.start().awaitTermination(DEADLINE_S)
        return self.rows()

    def until(self, condition: Callable[[], bool]) -> None:
        """Run until the condition holds, then stop between two batches."""
        query = self.start()
        try:
            wait(query, condition)
            wait(query, lambda: not query.status["isTriggerActive"])
        finally:
            query.stop()


def wait(query: StreamingQuery, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.02)


def offsets(settings: Settings, batch: int) -> list[str]:
    """The sources' lines of one entry of Spark's offset log."""
    return (Path(settings.checkpoint) / "offsets" / str(batch)).read_text().splitlines()[2:]


def settings_for(tmp_path: Path, *, available_now: bool = False, **source) -> Settings:
    return Settings(
        checkpoint=str(tmp_path / "checkpoint"),
        source=SourceSettings(**source),
        trigger=TriggerSettings(available_now=available_now),
    )


def test_rate_makes_demo_events(spark, tmp_path):
    settings = settings_for(tmp_path, kind="rate", rows_per_second=20, sessions=5)
    run = Run(spark, settings)
    run.until(lambda: len(run.rows()) >= 40)
    rows = run.rows()
    assert [row.coordinates for row in rows] == [Coordinates("rate", n) for n in range(len(rows))]
    events = [parse_event(row, max_bytes=100_000) for row in rows]
    assert len({event.session_id for event in events}) == 5
    assert all(event.ts_ms == row.timestamp_ms for event, row in zip(events, rows, strict=True))


class TestFiles:
    @pytest.fixture
    def directory(self, tmp_path) -> Path:
        directory = tmp_path / "in put"
        (directory / "sub=1").mkdir(parents=True)
        (directory / "a.jsonl").write_bytes(b"\xef\xbb\xbf{1}\r\n\r\n{2}\n{3}")
        (directory / "b.json").write_bytes(b"{4}\n")
        (directory / "sub=1" / "c%20d.ndjson").write_bytes("{五}".encode())
        for unseen in (".d.jsonl", "_e.jsonl", "f.txt", "g.jsonl.tmp"):
            (directory / unseen).write_bytes(b"{unseen}")
        (directory / "empty.jsonl").write_bytes(b"")
        return directory

    def test_every_line_once_under_file_and_number(self, spark, tmp_path, directory):
        with (directory / "huge.jsonl").open("wb") as file:
            file.truncate(MAX_FILE_BYTES + 1)  # sparse: takes no space
        os.utime(directory / "b.json", (1_600_000_000, 1_600_000_000.25))
        settings = settings_for(
            tmp_path, kind="files", path=f"{directory}/", available_now=True, max_files_per_trigger=2
        )
        run = Run(spark, settings)
        rows = {(row.coordinates.partition, row.coordinates.offset): row for row in run.all_available()}
        huge = rows.pop(("huge.jsonl", 0))
        assert (huge.value, str(MAX_FILE_BYTES) in huge.fault) == (b"", True)
        assert {key: row.value for key, row in rows.items()} == {
            ("a.jsonl", 0): b"{1}",
            ("a.jsonl", 2): b"{2}",
            ("a.jsonl", 3): b"{3}",
            ("b.json", 0): b"{4}",
            ("sub=1/c%20d.ndjson", 0): "{五}".encode(),
        }
        assert len(run.rows()) == 6
        assert rows["b.json", 0].timestamp_ms == 1_600_000_000_250
        assert len(run.batches) >= 3, "five files at two a batch"
        assert run.all_available() == run.rows()

    def test_batches_happen_without_events_and_say_so(self, spark, tmp_path, directory):
        settings = settings_for(tmp_path, kind="files", path=str(directory))
        run = Run(spark, settings)
        run.until(lambda: len(run.batches) >= 4)
        assert len(run.rows()) == 5
        moved = [
            batch
            for batch in run.batches
            if batch == 0 or offsets(settings, batch)[0] != offsets(settings, batch - 1)[0]
        ]
        assert moved == [batch for batch, rows in run.batches.items() if rows]

    def test_either_trigger_carries_the_checkpoint_on(self, spark, tmp_path, directory):
        endless = settings_for(tmp_path, kind="files", path=str(directory))
        first = Run(spark, endless)
        first.until(lambda: len(first.rows()) == 5)
        (directory / "later.jsonl").write_bytes(b"{6}")
        a_year_ago = time.time() - 365 * 86_400
        os.utime(directory / "later.jsonl", (a_year_ago, a_year_ago))  # copied with its old time
        second = Run(spark, settings_for(tmp_path, kind="files", path=str(directory), available_now=True))
        assert [row.value for row in second.all_available()] == [b"{6}"]
        idle = Run(spark, settings_for(tmp_path, kind="files", path=str(directory), available_now=True))
        assert idle.all_available() == []
        assert len(idle.batches) == 1, "the tick's batch publishes what is left"
        (directory / "last.jsonl").write_bytes(b"{7}")
        third = Run(spark, endless)
        third.until(lambda: bool(third.rows()))
        assert [row.value for row in third.rows()] == [b"{7}"]

    @pytest.mark.parametrize("path", ["", "/nowhere/at/all", "/tmp/*"])
    def test_an_unusable_path_is_named(self, spark, tmp_path, path):
        with pytest.raises(SettingsError, match=r"source\.path"):
            open_source(spark, settings_for(tmp_path, kind="files", path=path))


class TestLoad:
    def test_rows_are_contiguous_over_a_restart(self, spark, tmp_path):
        spark.conf.set("spark.sql.streaming.minBatchesToRetain", "10000")  # this test reads the offsets of every batch
        settings = settings_for(tmp_path, kind="load", rows_per_second=50, partitions=2, sessions=7)
        first = Run(spark, settings)
        first.until(lambda: len(first.batches) >= 3 and len(first.rows()) >= 20)
        second = Run(spark, settings)
        second.until(lambda: len(second.rows()) >= 20)
        last = max(second.batches)
        assert json.loads(offsets(settings, 0)[0])["t0"] == json.loads(offsets(settings, last)[0])["t0"]

        batches = {**first.batches, **second.batches}
        previous = None
        for batch in sorted(batches):
            (end,) = offsets(settings, batch)
            expected = {Coordinates(p, n) for p, span in ranges("load", previous, end).items() for n in range(*span)}
            assert {row.coordinates for row in batches[batch]} == expected
            assert len(batches[batch]) == len(expected)
            previous = end
        rows = [row for batch in batches.values() for row in batch]
        assert all(parse_event(row, max_bytes=100_000).ts_ms == row.timestamp_ms for row in rows)

    @pytest.mark.parametrize("fail_at", [0, 2])
    def test_a_replayed_batch_has_the_same_rows(self, spark, tmp_path, fail_at):
        settings = settings_for(tmp_path, kind="load", rows_per_second=200, partitions=2)
        first = Run(spark, settings, fail_at)
        with pytest.raises(StreamingQueryException, match="killed by the test"):
            first.start().awaitTermination(DEADLINE_S)
        second = Run(spark, settings)
        second.until(lambda: fail_at + 1 in second.batches)
        assert second.batches[fail_at] == first.batches[fail_at]
        assert len(second.batches[fail_at]) > 0

    def test_batches_happen_after_the_last_row(self, spark, tmp_path):
        settings = settings_for(tmp_path, kind="load", rows_per_second=10, duration_s=1, tick_ms=300)
        run = Run(spark, settings)
        run.until(lambda: len(run.rows()) == 10 and len(run.batches) > 2 and not run.batches[max(run.batches)])
        assert len(run.rows()) == 10

    def test_what_has_arrived_is_available_now(self, spark, tmp_path):
        settings = settings_for(tmp_path, kind="load", rows_per_second=1000)
        first = Run(spark, settings)
        first.until(lambda: bool(first.rows()))
        now = msgspec.structs.replace(settings, trigger=TriggerSettings(available_now=True))
        rows = Run(spark, now).all_available()
        taken = len(first.rows())
        assert [row.coordinates.offset for row in rows] == list(range(taken, taken + len(rows)))
        assert len(rows) > 0

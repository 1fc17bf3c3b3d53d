"""Sources without Spark: decoding in tasks, the load source's schedule and offsets, ranges, paths."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_spark.errors import SettingsError
from hermes_spark.events import Coordinates, Row, parse_event
from hermes_spark.settings import SourceSettings
from hermes_spark.streaming import load_source
from hermes_spark.streaming.load_schedule import Schedule, partition_ends
from hermes_spark.streaming.load_source import LoadReader, LoadSource
from hermes_spark.streaming.rows import INTAKE_SCHEMA, MAX_FILE_BYTES, decode, from_arrow
from hermes_spark.streaming.source import absolute, ranges


def batch(*rows: tuple[str, int, int, bytes | None]) -> pa.RecordBatch:
    columns = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(INTAKE_SCHEMA)]
    return pa.RecordBatch.from_arrays(columns, schema=INTAKE_SCHEMA)


def lines_of(content: bytes | None) -> list[tuple[int, bytes]]:
    rows = decode(from_arrow(batch(("a/b.jsonl", 0, 7, content))), SourceSettings(kind="files"))
    return [(row.coordinates.offset, row.value) for row in rows]


class TestFiles:
    @pytest.mark.parametrize(
        ("content", "expected"),
        [
            (b"", []),
            (b"a", [(0, b"a")]),
            (b"a\n", [(0, b"a")]),
            (b"a\nb", [(0, b"a"), (1, b"b")]),
            (b"a\r\nb\r\n", [(0, b"a"), (1, b"b")]),
            (b"\n\na\n \t\n\r\nb\n\n", [(2, b"a"), (5, b"b")]),
            (b"\xef\xbb\xbfa\n\xef\xbb\xbfb", [(0, b"a"), (1, b"\xef\xbb\xbfb")]),
            (b"\xef\xbb\xbf", []),
            (b"\xff\xfe\nb", [(0, b"\xff\xfe"), (1, b"b")]),
        ],
    )
    def test_lines_keep_their_numbers(self, content, expected):
        assert lines_of(content) == expected

    def test_file_and_line_are_the_identity(self):
        rows = list(
            decode(
                from_arrow(batch(("a/b.jsonl", 0, 7, b"x\ny"), ("c.json", 0, 8, b"z"))), SourceSettings(kind="files")
            )
        )
        assert rows == [
            Row(Coordinates("a/b.jsonl", 0), 7, b"x"),
            Row(Coordinates("a/b.jsonl", 1), 7, b"y"),
            Row(Coordinates("c.json", 0), 8, b"z"),
        ]

    def test_a_file_without_content_is_one_fault(self):
        (row,) = decode(from_arrow(batch(("big.jsonl", 0, 7, None))), SourceSettings(kind="files"))
        assert row.coordinates == Coordinates("big.jsonl", 0)
        assert row.value == b""
        assert str(MAX_FILE_BYTES) in row.fault

    @given(st.lists(st.binary(max_size=12).map(lambda line: line.replace(b"\n", b"").rstrip(b"\r")), max_size=8))
    def test_splitting_undoes_joining(self, lines):
        if lines and lines[0].startswith(b"\xef\xbb\xbf"):
            lines[0] = b"x" + lines[0]
        expected = [(number, line) for number, line in enumerate(lines) if line.strip()]
        assert lines_of(b"\n".join(lines)) == lines_of(b"\r\n".join(lines)) == expected


class TestRateAndLoad:
    def test_rate_rows_become_events(self):
        source = SourceSettings(kind="rate", sessions=3, seed=5)
        rows = list(decode(from_arrow(batch(("rate", 4, 99, None), ("rate", 7, 100, None))), source))
        first, second = (parse_event(row, max_bytes=10_000) for row in rows)
        assert first.session_id == second.session_id
        assert (first.ts_ms, second.ts_ms) == (99, 100)
        assert rows == list(decode(from_arrow(batch(("rate", 4, 99, None), ("rate", 7, 100, None))), source))

    def test_load_values_pass_through(self):
        (row,) = decode(from_arrow(batch(("load-0", 4, 99, b"{}"))), SourceSettings(kind="load"))
        assert row == Row(Coordinates("load-0", 4), 99, b"{}")


schedules = st.builds(
    Schedule,
    rows_per_second=st.integers(1, 3000),
    ramp_up_s=st.integers(0, 20),
    duration_s=st.integers(0, 30),
)


class TestSchedule:
    def test_without_ramp(self):
        schedule = Schedule(rows_per_second=4)
        assert [schedule.arrival_ms(row) for row in range(6)] == [0, 250, 500, 750, 1000, 1250]
        assert [schedule.rows_due(ms) for ms in (-1, 0, 249, 250, 1000)] == [0, 1, 1, 2, 5]

    def test_ramp_reaches_the_rate_at_its_end(self):
        schedule = Schedule(rows_per_second=100, ramp_up_s=10)
        # Half of 10 s at 100 rows a second come in the ramp; half of those in its last 2.9 s.
        assert schedule.arrival_ms(500) == 10_000
        assert schedule.arrival_ms(250) == 7071
        assert schedule.arrival_ms(600) == 11_000
        assert [schedule.arrival_ms(row) for row in range(3)] == [0, 447, 632]

    def test_duration_ends_the_rows(self):
        schedule = Schedule(rows_per_second=10, duration_s=3)
        assert schedule.rows_due(2999) == schedule.rows_due(1_000_000) == 30

    @given(schedules, st.integers(-5, 40_000))
    def test_due_is_exactly_what_has_arrived(self, schedule, elapsed_ms):
        due = schedule.rows_due(elapsed_ms)
        if due:
            assert schedule.arrival_ms(due - 1) <= elapsed_ms
        ended = schedule.duration_s and schedule.arrival_ms(due) >= 1000 * schedule.duration_s
        assert ended or schedule.arrival_ms(due) > elapsed_ms

    @given(schedules, st.integers(0, 50_000))
    def test_arrivals_never_fall(self, schedule, row):
        assert schedule.arrival_ms(row) <= schedule.arrival_ms(row + 1)

    @given(st.integers(0, 1000), st.integers(1, 9))
    def test_partitions_share_all_rows(self, rows, partitions):
        ends = partition_ends(rows, partitions)
        assert ends == [len(range(p, rows, partitions)) for p in range(partitions)]


def reader(**options: int) -> LoadReader:
    return LoadSource({name: str(value) for name, value in options.items()}).simpleStreamReader(None)


def table(batches) -> pa.Table:
    return pa.Table.from_batches(batches, schema=INTAKE_SCHEMA)


class TestLoadReader:
    @pytest.fixture(autouse=True)
    def clock(self, monkeypatch):
        self.now_ms = 1_764_500_000_000
        monkeypatch.setattr(load_source, "_now_ms", lambda: self.now_ms)

    def test_rows_come_when_their_time_has_passed(self):
        t0 = self.now_ms
        load = reader(rowsPerSecond=10, sessions=4)
        start = load.initialOffset()
        self.now_ms += 250
        rows, middle = load.read(start)
        assert middle == {"0": 3, "t0": t0, "tick": 0}
        self.now_ms += 100
        more, end = load.read(middle)
        values = table([*rows, *more]).to_pylist()
        assert [row["offset"] for row in values] == [0, 1, 2, 3]
        assert [row["timestamp_ms"] - t0 for row in values] == [0, 100, 200, 300]
        events = [json.loads(row["value"]) for row in values]
        assert [event["ts"] - t0 for event in events] == [0, 100, 200, 300]
        assert len({event["session_id"] for event in events}) == 4
        assert end["0"] == 4

    def test_nothing_new_leaves_the_offset(self):
        load = reader(rowsPerSecond=10)
        _, offset = load.read(load.initialOffset())
        rows, after = load.read(offset)
        assert after == offset
        assert list(rows) == []

    def test_the_offset_ticks_without_rows(self):
        load = reader(rowsPerSecond=10, durationSeconds=1, tickMs=500)
        self.now_ms += 1200
        _, offset = load.read(load.initialOffset())
        assert (offset["0"], offset["tick"]) == (10, 2)
        self.now_ms += 400
        rows, after = load.read(offset)
        assert (after["0"], after["tick"]) == (10, 3)
        assert list(rows) == []

    def test_a_restart_keeps_the_start_and_the_rows(self):
        load = reader(rowsPerSecond=100, partitions=3)
        start = load.initialOffset()
        self.now_ms += 555
        rows, end = load.read(start)
        self.now_ms += 60_000
        later = reader(rowsPerSecond=100, partitions=3)
        # Spark asks the new process for the initial offset of a replayed first batch.
        again = later.readBetweenOffsets(later.initialOffset(), end)
        assert table(again) == table(rows)
        assert later.read(end)[1]["t0"] == start["t0"]

    def test_partitions_are_contiguous_and_share_the_rows(self):
        load = reader(rowsPerSecond=100, partitions=3)
        offset, seen = load.initialOffset(), []
        for step in (37, 111, 9, 255):
            self.now_ms += step
            rows, offset = load.read(offset)
            seen += table(rows).to_pylist()
        by_partition = {p: [row["offset"] for row in seen if row["partition"] == f"load-{p}"] for p in range(3)}
        assert all(numbers == list(range(len(numbers))) for numbers in by_partition.values())
        assert {f"load-{p}": (0, len(numbers)) for p, numbers in by_partition.items()} == ranges(
            "load", None, json.dumps(offset)
        )
        assert len({json.loads(row["value"])["event_id"] for row in seen}) == len(seen) == 42

    def test_a_clock_set_back_takes_no_row_back(self):
        load = reader(rowsPerSecond=100)
        self.now_ms += 1500
        _, offset = load.read(load.initialOffset())
        self.now_ms -= 900
        rows, after = load.read(offset)
        assert after == offset
        assert list(rows) == []

    def test_another_number_of_partitions_is_refused(self):
        offset = reader(partitions=1).initialOffset()
        with pytest.raises(SettingsError, match="partitions is 2"):
            reader(partitions=2).read(offset)

    @pytest.mark.parametrize("option", [{"rowsPerSecond": 0}, {"partitions": 0}, {"tickMs": 0}, {"rowsPerSecnd": 5}])
    def test_unusable_options_are_named(self, option):
        (name,) = option
        with pytest.raises(SettingsError, match=name.lower()):
            reader(**option)


class TestRanges:
    def test_load(self):
        end = '{"0":5,"1":4,"10":1,"t0":17,"tick":3}'
        assert ranges("load", '{"0":2,"1":4,"t0":17,"tick":3}', end) == {
            "load-0": (2, 5),
            "load-1": (4, 4),
            "load-10": (0, 1),
        }
        assert ranges("load", None, '{"0":5,"t0":17,"tick":0}') == {"load-0": (0, 5)}

    @pytest.mark.parametrize("kind", ["rate", "files"])
    def test_sources_whose_offsets_count_no_rows(self, kind):
        assert ranges(kind, "3", "4") is None


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/a/b", "/a/b"),
        ("/a//b/./c/../", "/a/b"),
        ("file:/a/b/", "file:/a/b"),
        ("file:///a/b", "file:///a/b"),
        ("hdfs://nn:8020//a/b/", "hdfs://nn:8020/a/b"),
        ("s3a://bucket", "s3a://bucket/"),
    ],
)
def test_absolute_paths(path, expected):
    assert absolute(path) == expected


def test_relative_paths_start_at_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert absolute("in") == str(tmp_path / "in")

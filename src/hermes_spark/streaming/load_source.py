"""The Python stream source `hermes_load`: rows that arrive one by one, at times fixed in advance.

Spark's own `rate` makes its rows once a second, in a lump, which hides every latency below a second. Here a micro-batch gets
all rows whose intended arrival has passed, to the millisecond, and nothing from the future; a row's event carries its
intended arrival as `ts`, so latency counted from it includes the waiting that a slow job causes (open loop).

An offset is `{"0": rows of partition 0, ..., "t0": start, "tick": ticks}`: times in milliseconds since the epoch. `t0` is set
when a query first starts and lives on in its checkpoint, so after a stop the rows of the pause arrive at once, as late as they
are. The same offsets give the same rows, as long as the options stay as they are.

The offset also moves once every `tickMs` without a row, so that batches happen when no rows do. A second source united with
this one would do the same for about 50 ms a batch (measured on two cores: 180 against 125 ms a trigger, for its planning and
its part of the offset log).

The rows are made where the offsets are, in the query's planning process on the driver, and handed over as Arrow
(`SimpleDataSourceStreamReader`): no Python worker has to start for reading. With 20 to 100 rows a batch, one trigger with a
trivial `mapInArrow` took 95 to 125 ms this way, 100 to 120 ms with partitions read by tasks, and 140 to 220 ms with tuples in
place of Arrow. The plain `DataSourceStreamReader` also learns its start offset only from Spark 4.2 on.

Needs Spark 4.0 or newer.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader

from hermes_spark.errors import SettingsError
from hermes_spark.streaming.load_schedule import Schedule, partition_ends
from hermes_spark.streaming.rows import INTAKE_DDL, INTAKE_SCHEMA
from hermes_spark.tools.demo.messages import one_tool_event

Offset = dict[str, int]


class LoadOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The options of the source, under the names that Spark passes on (in lower case). All are whole numbers."""

    rows_per_second: Annotated[int, msgspec.Meta(ge=1)] = msgspec.field(name="rowspersecond", default=10)
    ramp_up_s: Annotated[int, msgspec.Meta(ge=0)] = msgspec.field(name="rampuptime", default=0)
    """Seconds, without a unit."""
    duration_s: Annotated[int, msgspec.Meta(ge=0)] = msgspec.field(name="durationseconds", default=0)
    sessions: Annotated[int, msgspec.Meta(ge=1)] = 50
    partitions: Annotated[int, msgspec.Meta(ge=1)] = 1
    seed: int = 0
    """Where in the endless list of demo messages the stream begins."""
    tick_ms: Annotated[int, msgspec.Meta(ge=1)] = msgspec.field(name="tickms", default=1000)


class LoadReader(SimpleDataSourceStreamReader):  # type: ignore[misc]  # pyspark's class has no types
    """Makes the rows between two offsets. Holds no state but the start of a new query, so any instance can replay."""

    def __init__(self, options: LoadOptions) -> None:
        self._options = options
        self._schedule = Schedule(options.rows_per_second, options.ramp_up_s, options.duration_s)
        # Spark asks for the initial offset more than once and compares the answers.
        self._t0_ms = _now_ms()

    def initialOffset(self) -> Offset:  # noqa: N802  # Spark's name
        """No rows, starting now; asked only while the checkpoint has no offset."""
        return self._offset([0] * self._options.partitions, self._t0_ms, 0)

    def read(self, start: Offset) -> tuple[Iterator[pa.RecordBatch], Offset]:
        """Everything that has arrived since `start`, and the offset after it.

        Raises `SettingsError` when the checkpoint was made with another number of partitions: a row's coordinates hang on it.
        """
        begins = self._rows_in(start)
        elapsed_ms = _now_ms() - start["t0"]
        # A clock that was set back must not take rows back.
        rows = max(self._schedule.rows_due(elapsed_ms), sum(begins))
        end = self._offset(
            partition_ends(rows, self._options.partitions),
            start["t0"],
            max(elapsed_ms // self._options.tick_ms, start["tick"]),
        )
        return self.readBetweenOffsets(start, end), end

    def readBetweenOffsets(self, start: Offset, end: Offset) -> Iterator[pa.RecordBatch]:  # noqa: N802  # Spark's name
        """The rows of partition p numbered `start[p]` up to, not including, `end[p]`, in one batch.

        `end` alone knows the start of the stream: for a replayed first batch Spark asks a new reader for the initial offset.
        """
        rows = [
            self._row(partition, number, end["t0"])
            for partition, (first, last) in enumerate(zip(self._rows_in(start), self._rows_in(end), strict=True))
            for number in range(first, last)
        ]
        if not rows:
            return iter([])
        columns = [
            pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), INTAKE_SCHEMA, strict=True)
        ]
        # Spark copies the iterator of a prefetched batch: a list's can be copied, a generator cannot.
        return iter([pa.RecordBatch.from_arrays(columns, schema=INTAKE_SCHEMA)])

    def _row(self, partition: int, number: int, t0_ms: int) -> tuple[str, int, int, bytes]:
        row = number * self._options.partitions + partition
        arrival_ms = t0_ms + self._schedule.arrival_ms(row)
        event = one_tool_event(self._options.seed + row, self._options.sessions)
        return f"load-{partition}", number, arrival_ms, msgspec.json.encode({**event, "ts": arrival_ms})

    def _offset(self, ends: list[int], t0_ms: int, tick: int) -> Offset:
        return {**{str(partition): end for partition, end in enumerate(ends)}, "t0": t0_ms, "tick": tick}

    def _rows_in(self, offset: Offset) -> list[int]:
        counts = partition_rows(offset)
        if len(counts) != self._options.partitions:
            raise SettingsError(
                f"source.partitions is {self._options.partitions}, but the checkpoint holds offsets of {len(counts)} "
                "partitions; set it back or start with a new checkpoint."
            )
        return counts


class LoadSource(DataSource):  # type: ignore[misc]  # pyspark's class has no types
    """`spark.readStream.format("hermes_load")`, once `spark.dataSource.register(LoadSource)` has been called."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "hermes_load"

    def schema(self) -> str:
        """The intake columns."""
        return INTAKE_DDL

    def simpleStreamReader(self, schema: Any) -> LoadReader:  # noqa: N802  # Spark's signature
        """A reader for these options; raises `SettingsError` when one of them is unusable."""
        options = {name.lower(): value for name, value in self.options.items()}
        try:
            return LoadReader(msgspec.convert(options, LoadOptions, strict=False))
        except msgspec.ValidationError as exc:
            raise SettingsError(f"The options of hermes_load make no stream: {exc}.") from None


def partition_rows(offset: Offset) -> list[int]:
    """How many rows each partition has at an offset, by partition number."""
    return [offset[str(partition)] for partition in range(sum(key.isdigit() for key in offset))]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000

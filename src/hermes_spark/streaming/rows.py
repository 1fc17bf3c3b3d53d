"""Intake rows: what the sources hand to the tasks, and how a task turns them into `events.Row`s.

Every source gives the same four columns (`INTAKE_DDL`), so that the hand-off knows no source:

======= ============================ =============================== ================= ==========================
kind    partition                    offset                          timestamp_ms      value
======= ============================ =============================== ================= ==========================
rate    `rate`                       the rate source's value         of the row        null; the event is made here
load    `load-<partition>`           row number in the partition     intended arrival  the event's JSON
files   path, relative to the        0, the number of its first line last modification the whole file; null when
        directory of the setting                                     of the file       it is too large
kafka   `<topic>-<partition>`        the record's                    the record's      the record's
======= ============================ =============================== ================= ==========================

Only a file row becomes several events: one per line that is not blank, with the line's number (from 0, blank lines counted) as
its offset. No pyspark here: this runs in tasks and in plain tests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import pyarrow as pa

from hermes_spark.events import Coordinates, Row
from hermes_spark.kafka.records import record_row
from hermes_spark.settings import SourceSettings
from hermes_spark.tools.demo.messages import demo_event

INTAKE_DDL = "partition string, offset long, timestamp_ms long, value binary"
"""The columns of every source, as Spark writes a schema."""

INTAKE_SCHEMA = pa.schema(
    [("partition", pa.string()), ("offset", pa.int64()), ("timestamp_ms", pa.int64()), ("value", pa.binary())]
)
"""The same columns for Arrow."""

MAX_FILE_BYTES = 64 * 1024 * 1024
"""Larger files are rejected unread. A file is one value of one row, held whole by the JVM, by Arrow and by the Python task at
once, so this is about a fifth of a gigabyte per task; Spark packs at most two such files into a task (128 MB a partition)."""

_BOM = b"\xef\xbb\xbf"


Intake = tuple[str, int, int, bytes | None]
"""One row of the intake columns; Spark's own rows are such tuples too."""


def from_arrow(batch: pa.RecordBatch) -> Iterator[Intake]:
    """The intake rows of one Arrow batch."""
    return zip(*(batch.column(name).to_pylist() for name in INTAKE_SCHEMA.names), strict=True)


def decode(intake: Iterable[Intake], source: SourceSettings) -> Iterator[Row]:
    """The events' rows of intake rows, in order.

    Never fails on what a value holds: whether the bytes are an event is for `events.parse_event` to say.
    """
    for partition, offset, timestamp_ms, value in intake:
        coordinates = Coordinates(partition, offset)
        if source.kind == "files":
            yield from _file_rows(coordinates, timestamp_ms, value)
        elif source.kind == "rate":
            event = demo_event(offset, sessions=source.sessions, seed=source.seed)
            yield Row(coordinates, timestamp_ms, msgspec.json.encode(event))
        elif source.kind == "kafka":
            yield record_row(coordinates, timestamp_ms, value)
        else:
            yield Row(coordinates, timestamp_ms, bytes(value or b""))


def _file_rows(file: Coordinates, timestamp_ms: int, content: bytes | None) -> Iterator[Row]:
    if content is None:
        fault = f"the file has more than {MAX_FILE_BYTES} bytes; split it into smaller files"
        yield Row(file, timestamp_ms, b"", fault)
        return
    for number, line in enumerate(_lines(content)):
        if line.strip():
            yield Row(Coordinates(file.partition, number), timestamp_ms, line)


def _lines(content: bytes) -> Iterator[bytes]:
    """Lines without their ends (LF or CRLF), one at a time: a list of them all would double the memory of a file."""
    start = len(_BOM) if content.startswith(_BOM) else 0
    while start < len(content):
        end = content.find(b"\n", start)
        if end < 0:
            end = len(content)
        yield content[start:end].removesuffix(b"\r")
        start = end + 1

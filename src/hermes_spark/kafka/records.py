"""What a record of the source's topic is to a shard, whichever way it came."""

from __future__ import annotations

from hermes_spark.events import Coordinates, Row

TOMBSTONE = "the record has no value (a tombstone); expected an event's JSON"


def partition_name(topic: str, partition: int) -> str:
    """The partition's name in coordinates, commits and journals."""
    return f"{topic}-{partition}"


def record_row(coordinates: Coordinates, timestamp_ms: int, value: bytes | bytearray | None) -> Row:
    """The row of a record. Its key is not looked at: whose event it is says the event."""
    if value is None:
        return Row(coordinates, timestamp_ms, b"", TOMBSTONE)
    return Row(coordinates, timestamp_ms, bytes(value))

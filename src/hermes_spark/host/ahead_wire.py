"""What driver and hosts say to each other about run-ahead."""

from __future__ import annotations

import msgspec

from hermes_spark.state.records import TermId


class AheadRange(msgspec.Struct, frozen=True, array_like=True):
    """A range of one partition's offsets, of which an offer holds all events of one shard: its next `rows` rows."""

    partition: str
    shard: int
    start: int
    stop: int
    floor: int
    """A commit says that everything below it is taken."""
    rows: int


class AheadOrder(msgspec.Struct, frozen=True):
    """Which partitions a host reads ahead, and who owns what. Each order replaces the one before."""

    partitions: dict[str, int]
    """By partition, up to where the last commit has taken everything."""
    owners: dict[int, str]
    """Flight address by shard; a shard without an owner is missing."""
    terms: dict[int, TermId]
    wanted: dict[str, int] = {}
    """By partition, how far it should be covered before the answer, if that comes soon."""
    wait_s: float = 0.0
    """How soon."""


class AheadReport(msgspec.Struct, frozen=True):
    """A host's answer to an order."""

    covered: dict[str, int]
    """By partition: every event below this offset is durable in the journal of its shard."""
    taken: int
    """Events taken by run-ahead since the host started."""

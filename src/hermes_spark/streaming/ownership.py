"""Who owns which shard, and what a new owner must know: the values that fleet, hand-off and orchestrator share."""

from __future__ import annotations

import msgspec

from hermes_spark.state.records import Position, TermId


class Ownership(msgspec.Struct, frozen=True):
    """Who owns what, as one consistent view: sent along with hand-off tasks."""

    token: str
    addresses: dict[int, str]
    """Flight address by shard; a shard without an owner is missing."""
    terms: dict[int, TermId]


class CommittedView(msgspec.Struct, frozen=True):
    """What a new owner must know of the last commit."""

    positions: dict[int, Position]
    ends: dict[str, int]


class DriverPlace(msgspec.Struct, frozen=True):
    """Who the driver is."""

    epoch: int
    address: str
    """Interface address on which it listens to its hosts."""

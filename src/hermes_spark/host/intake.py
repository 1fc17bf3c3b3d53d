"""Which rows a shard has taken already: identity lives in the shard, never in the session, which may expire.

Two kinds of sources. With offsets (`span` given) the shard keeps, per partition, the next offset it will take: a
watermark keeps the order, where a set of ids would not. Without offsets (rate, files) a replayed batch brings the same
rows in any split, so the shard keeps the ids of the newest batch only, and refuses an older batch.
"""

from __future__ import annotations

from hermes_spark.errors import HandoffError
from hermes_spark.events import Coordinates
from hermes_spark.host.ahead_wire import AheadRange
from hermes_spark.host.wire import Span
from hermes_spark.state.snapshots import ShardMemory


class Intake:
    """The memory of one shard of what it has taken. Folded from the journal; used on the host's loop only."""

    def __init__(self, ends: dict[str, int] | None) -> None:
        """`ends`: up to where the last commit has taken each partition; None for a source without offsets."""
        self._next = None if ends is None else dict(ends)
        self._batch = -1
        self._ids: set[tuple[str, int]] = set()

    def remember(self, memory: ShardMemory) -> None:
        """Know what an owner before knew, as it stands in a snapshot. Called before anything else."""
        if self._next is not None:
            for partition, after in (memory.next or {}).items():
                self._next[partition] = max(self._next.get(partition, 0), after)
        self._batch, self._ids = memory.batch, set(memory.ids)

    def memory(self, now_ms: int, held: dict[str, tuple[str, int]]) -> ShardMemory:
        """What a snapshot keeps of this, and of the rest of the shard."""
        following = None if self._next is None else dict(self._next)
        return ShardMemory(now_ms, following, self._batch, tuple(self._ids), held)

    def fold(self, coordinates: Coordinates, batch: int) -> None:
        """Note that a row was taken or rejected (from its record)."""
        if self._next is not None:
            after = coordinates.offset + 1
            self._next[coordinates.partition] = max(self._next.get(coordinates.partition, 0), after)
            return
        if batch > self._batch:
            self._batch, self._ids = batch, set()
        if batch == self._batch:
            self._ids.add((coordinates.partition, coordinates.offset))

    def wants(self, ahead: AheadRange) -> int | None:
        """Where the shard would go on in the partition, if a range of run-ahead leaves a gap before it; else None."""
        assert self._next is not None, "only sources with offsets are read ahead"
        following = max(self._next.get(ahead.partition, 0), ahead.floor)
        self._next[ahead.partition] = following
        return following if ahead.start > following else None

    def reached(self, ahead: AheadRange) -> None:
        """All events of a range are taken. Forgotten with the owner: the next one asks for what the journal does not show."""
        assert self._next is not None, "only sources with offsets are read ahead"
        self._next[ahead.partition] = max(self._next[ahead.partition], ahead.stop)

    def has(self, coordinates: Coordinates, batch: int, span: Span | None) -> bool:
        """Whether the row was taken before.

        Raises `HandoffError` when `batch` is older than one that this shard has already seen: its sender is a leftover.
        """
        if self._next is not None:
            if span is None:
                raise HandoffError(f"a row of {coordinates.partition} was offered without the offsets of its batch")
            start = max(self._next.get(coordinates.partition, 0), span.start)
            self._next[coordinates.partition] = start
            return coordinates.offset < start
        if batch < self._batch:
            raise HandoffError(
                f"batch {batch} was offered after batch {self._batch}; its sender is a leftover and must stop"
            )
        return batch == self._batch and (coordinates.partition, coordinates.offset) in self._ids

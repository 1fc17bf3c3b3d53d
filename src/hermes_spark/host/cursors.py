"""How far one partition of a topic has been read ahead, for every shard that its events go to. Pure.

A shard takes a partition's events in order and refuses a range that would leave a gap, so the reader keeps a cursor per shard:
everything of the shard below it was put. When an owner dies, or refuses a range, its cursor goes back and the partition is
read again from there, while the other shards go on where they are. Losing all of this loses nothing: it only decides what is
offered, and the shards decide what is taken.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from hermes_spark.events import Row

NOBODY = -1
"""In place of the offset that a shard wants next: nobody took the events, or there was no room for them."""
TAKEN = -2
"""In place of that offset: everything of the range is taken."""


class Chunk(msgspec.Struct, frozen=True):
    """What was read of one partition: all its rows with offsets in `[start, stop)`."""

    partition: str
    start: int
    stop: int
    generation: int
    """Of the order to read that it follows; after a newer one it counts no more."""
    rows: tuple[Row, ...] = ()


class Put(msgspec.Struct, frozen=True, eq=False):
    """All events of one shard and partition with offsets in `[start, stop)` that the shard may not have taken yet."""

    partition: str
    shard: int
    start: int
    stop: int
    floor: int
    """A commit says that everything below it is taken."""
    rows: tuple[Row, ...]


class Cursor:
    """One partition, from the end of a commit on."""

    def __init__(self, partition: str, start: int) -> None:
        self.partition = partition
        self.generation = 0
        self.position = start
        """Where reading goes on."""
        self.floor = start
        """Up to where the last commit known has taken everything."""
        self._high = start
        """Up to where anything was read."""
        self._start = start
        self._next: dict[int, int] = {}
        self._behind: set[int] = set()
        """Shards whose cursor is below `_high` and whose events from there on have to be read again."""
        self._open: dict[int, Put] = {}

    def read(self, chunk: Chunk, routed: Iterable[tuple[int, Row]]) -> list[Put]:
        """What is to be put of a chunk, whose rows come with their shards; nothing of one that follows an older order."""
        if chunk.generation != self.generation:
            return []
        fresh: dict[int, list[Row]] = {}
        for shard, row in routed:
            if row.coordinates.offset >= (self._next[shard] if shard in self._behind else self._high):
                fresh.setdefault(shard, []).append(row)
        puts = []
        for shard, rows in fresh.items():
            start = self._next.get(shard, self._start)
            # A shard that is behind what was read before this chunk gets it once the reading has come back to its cursor.
            if shard not in self._behind or start >= chunk.start:
                puts.append(Put(self.partition, shard, start, chunk.stop, self.floor, tuple(rows)))
                self._next[shard] = chunk.stop
        for shard in self._behind - {put.shard for put in puts}:
            if self._next[shard] >= chunk.start:
                self._next[shard] = max(self._next[shard], chunk.stop)
        self.position = chunk.stop
        self._high = max(self._high, chunk.stop)
        self._catch_up()
        self._open |= {id(put): put for put in puts}
        return puts

    def taken(self, put: Put) -> None:
        """The owner says that everything of the put is durable in the shard's journal."""
        self._open.pop(id(put), None)

    def refused(self, put: Put, wanted: int) -> None:
        """The owner wants to go on at offset `wanted`; `NOBODY`: there was none, or no room."""
        if self._open.pop(id(put), None) is None:
            return  # of a reading before this one
        back = min(self._next[put.shard], put.start if wanted == NOBODY else wanted)
        self._next[put.shard] = max(back, self.floor)
        self._behind.add(put.shard)
        self._catch_up()

    def committed(self, end: int) -> bool:
        """A commit has taken everything below `end`; whether that is ahead of the reading, which must jump there."""
        self.floor = max(self.floor, end)
        self._high = max(self._high, self.floor)
        for shard in self._behind:
            self._next[shard] = max(self._next[shard], self.floor)
        self._catch_up()
        return self.position < self.floor

    def back_to(self) -> int | None:
        """From which offset to read again for the shards that are behind; None when reading just goes on."""
        lowest = min((self._next[shard] for shard in self._behind), default=self.position)
        return lowest if lowest < self.position else None

    def seek(self, offset: int) -> int:
        """Reading goes on at `offset`; returns the generation of the chunks that will count."""
        self.position = offset
        self.generation += 1
        return self.generation

    def covered(self) -> int:
        """Every event of the partition below this is durable in the journal of its shard."""
        waiting = [put.rows[0].coordinates.offset for put in self._open.values()]
        return max(self.floor, min([self._high, *waiting, *(self._next[shard] for shard in self._behind)]))

    def _catch_up(self) -> None:
        self._behind = {shard for shard in self._behind if self._next[shard] < self._high}

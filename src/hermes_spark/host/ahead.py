"""Run-ahead: a host reads its share of the topic's partitions itself, and puts each event to the owner of its shard at once.

The driver's orders say which partitions, up to where commits have taken everything, and who owns what. The reading is bounded:
by bytes that no owner has answered for yet, and by `run_ahead.max_records` of a partition ahead of its last commit. Nothing
here has to be remembered: what is lost or refused is read again, or comes with a batch, and the shards decide what is taken.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from hermes_spark import faults
from hermes_spark.events import Row, routing_key, shard_of
from hermes_spark.host.ahead_wire import AheadOrder, AheadReport
from hermes_spark.host.cursors import NOBODY, TAKEN, Chunk, Cursor, Put
from hermes_spark.host.lanes import Lane, Lanes
from hermes_spark.settings import Settings
from hermes_spark.state.records import TermId
from hermes_spark.telemetry import AHEAD_EVENTS

log = logging.getLogger(__name__)

MAX_OPEN_BYTES = 32 * 1024 * 1024
"""Of events read that no owner has answered for yet."""
AGAIN_S = 0.02
"""How soon reading goes back for a shard that refused a range; what was put before is refused within that time too."""
ABSENT_S = 0.3
"""The same when nobody took the events: their owner is full, or starting."""
LOOK_S = 0.5
"""How often the reader's thread looks whether the host ends, while what it has read waits for room."""


class Reader(Protocol):
    """Reads a topic's partitions, and calls `deliver` of `RunAhead` from a thread of its own (`kafka.reader`)."""

    def read(self, partition: str, offset: int, generation: int) -> None:
        """Begin or go on at an offset; what is delivered from now on carries the generation."""
        ...

    def drop(self, partition: str) -> None:
        """Read it no more."""
        ...

    def hold(self, partition: str, *, held: bool) -> None:
        """Stand still, or go on."""
        ...

    def close(self) -> None:
        """End. Waits for the thread."""
        ...


Deliver = Callable[[str, tuple[int, int], int, Sequence[Row]], None]
"""(partition, offsets [from, to), generation, rows). Blocks while there is no room."""


class RunAhead:
    """The reading of one host. Made and used on its loop, except `deliver`."""

    def __init__(self, settings: Settings, lanes: Lanes, make_reader: Callable[[Deliver], Reader]) -> None:
        self._settings = settings
        self._lane_maker = lanes
        self._make_reader = make_reader
        self._loop = asyncio.get_running_loop()
        self._reader: Reader | None = None
        self._cursors: dict[str, Cursor] = {}
        self._held: set[str] = set()
        self._back: dict[str, asyncio.TimerHandle] = {}
        """By partition, the seek that is due."""
        self._owners: Mapping[int, str] = {}
        self._terms: Mapping[int, TermId] = {}
        self._lanes: dict[str, tuple[Lane, asyncio.Task[None]]] = {}
        self._open_bytes = 0
        self._moved = asyncio.Event()
        """Something was answered: coverage or room may have changed."""
        self._closed = False
        self.taken = 0
        """Events that owners have taken, or had."""

    async def order(self, order: AheadOrder) -> AheadReport:
        """Follow an order, and answer how far the partitions are covered."""
        self._owners, self._terms = order.owners, order.terms
        for lane, _ in self._lanes.values():
            lane.terms = self._terms
        if order.partitions and self._reader is None:
            self._reader = self._make_reader(self.deliver)
        for partition in set(self._cursors) - set(order.partitions):
            self._drop(partition)
        for partition, end in order.partitions.items():
            self._follow(partition, end)
        await self._end_lanes(set(self._lanes) - set(order.owners.values()))
        await self._covered(order.wanted, order.wait_s)
        return AheadReport({name: cursor.covered() for name, cursor in self._cursors.items()}, self.taken)

    def deliver(self, partition: str, offsets: tuple[int, int], generation: int, rows: Sequence[Row]) -> None:
        """Take what the reader has read; see `Deliver`."""
        chunk = Chunk(partition, *offsets, generation, tuple(rows))
        routing = asyncio.run_coroutine_threadsafe(self._route(chunk), self._loop)
        while not self._closed:
            with contextlib.suppress(concurrent.futures.TimeoutError):
                return routing.result(LOOK_S)

    async def close(self) -> None:
        """Read no more; what no owner has answered for counts as not read."""
        self._closed = True
        self._moved.set()
        for partition in list(self._cursors):
            self._drop(partition)
        if self._reader is not None:
            await self._loop.run_in_executor(None, self._reader.close)
        await self._end_lanes(set(self._lanes))
        self._lane_maker.close()

    # ------------------------------------------------------------------ reading

    def _follow(self, partition: str, end: int) -> None:
        cursor = self._cursors.get(partition)
        if cursor is None:
            self._cursors[partition] = cursor = Cursor(partition, end)
            self._read(cursor, cursor.position, cursor.generation)
        elif cursor.committed(end):
            self._read(cursor, cursor.floor, cursor.seek(cursor.floor))
        self._hold_or_not(cursor)

    def _drop(self, partition: str) -> None:
        del self._cursors[partition]
        self._held.discard(partition)
        if (seek := self._back.pop(partition, None)) is not None:
            seek.cancel()
        if self._reader is not None:
            self._reader.drop(partition)

    def _read(self, cursor: Cursor, offset: int, generation: int) -> None:
        if self._reader is not None:
            self._held.discard(cursor.partition)
            self._reader.read(cursor.partition, offset, generation)

    def _hold_or_not(self, cursor: Cursor) -> None:
        held = cursor.position - cursor.floor >= self._settings.run_ahead.max_records
        if self._reader is not None and held != (cursor.partition in self._held):
            (self._held.add if held else self._held.discard)(cursor.partition)
            self._reader.hold(cursor.partition, held=held)

    async def _route(self, chunk: Chunk) -> None:
        while self._open_bytes > MAX_OPEN_BYTES and not self._closed:
            await self._next_move()
        cursor = self._cursors.get(chunk.partition)
        if cursor is None or self._closed:
            return
        shards = self._settings.state.shards
        for put in cursor.read(chunk, [(shard_of(routing_key(row), shards), row) for row in chunk.rows]):
            self._open_bytes += _size(put)
            self._put(put)
        self._hold_or_not(cursor)
        self._note_move()

    # ------------------------------------------------------------------ putting

    def _put(self, put: Put) -> None:
        address = self._owners.get(put.shard, "")
        if not address:
            self._answered(put, NOBODY)
            return
        if address not in self._lanes:
            lane = self._lane_maker.to(address, self._answered)
            lane.terms = self._terms
            self._lanes[address] = (lane, self._loop.create_task(lane.run()))
        self._lanes[address][0].add(put)

    def _answered(self, put: Put, wanted: int) -> None:
        self._open_bytes -= _size(put)
        self._note_move()
        cursor = self._cursors.get(put.partition)
        if cursor is None:
            return
        if wanted == TAKEN:
            faults.point("ahead.after_taken")
            cursor.taken(put)
            self.taken += len(put.rows)
            AHEAD_EVENTS.inc(len(put.rows))
            return
        cursor.refused(put, wanted)
        if put.partition not in self._back:
            delay_s = ABSENT_S if wanted == NOBODY else AGAIN_S
            self._back[put.partition] = self._loop.call_later(delay_s, self._go_back, put.partition)

    def _go_back(self, partition: str) -> None:
        del self._back[partition]
        cursor = self._cursors[partition]
        if (offset := cursor.back_to()) is not None:
            log.debug("%s is read again from offset %d", partition, offset)
            self._read(cursor, offset, cursor.seek(offset))

    async def _end_lanes(self, addresses: set[str]) -> None:
        for address in addresses:
            lane, task = self._lanes.pop(address)
            task.cancel()
            await asyncio.wait([task])
            await lane.close()

    # ------------------------------------------------------------------ waiting

    async def _covered(self, wanted: Mapping[str, int], wait_s: float) -> None:
        deadline = self._loop.time() + wait_s
        mine = {partition: stop for partition, stop in wanted.items() if partition in self._cursors}
        while any(p in self._cursors and self._cursors[p].covered() < stop for p, stop in mine.items()):
            left_s = deadline - self._loop.time()
            if left_s <= 0 or self._closed:
                return
            await self._next_move(left_s)

    def _note_move(self) -> None:
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    async def _next_move(self, timeout_s: float = 1.0) -> None:
        try:
            await asyncio.wait_for(self._moved.wait(), timeout_s)
        except asyncio.TimeoutError:
            return


def _size(put: Put) -> int:
    return sum(len(row.value) for row in put.rows)

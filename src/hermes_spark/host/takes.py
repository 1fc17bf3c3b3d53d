"""Takes offered rows into the shards of a host, and makes offers wait while the host is full."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

import msgspec

from hermes_spark.errors import StateError
from hermes_spark.events import Row
from hermes_spark.host.effects import EffectRunner
from hermes_spark.host.shard import Shard
from hermes_spark.host.wire import OfferAnswer, OfferHeader
from hermes_spark.settings import HostSettings
from hermes_spark.state.records import Taken, TermId
from hermes_spark.telemetry import EVENTS

WAIT_S = 10.0
"""How long an offer waits for room before it goes back to its sender, who offers again and sees whether turns end."""
YIELD_ROWS = 32
"""Rows taken before the loop may turn to other work: about 3 ms."""


class _TypeOnly(msgspec.Struct):
    type: str = ""


_type_decoder = msgspec.json.Decoder(_TypeOnly)


def acts_at_once(row: Row) -> bool:
    """Whether a row is an approval or a cancel, which pressure never holds up (they are what relieves it)."""
    try:
        return _type_decoder.decode(row.value).type in ("approval", "cancel")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False


class Owner(Protocol):
    """What taking needs of its host."""

    def owned(self, shard: int, term: TermId | None) -> tuple[Shard, EffectRunner] | None:
        """The shard and its runner if the host owns it under exactly `term`."""
        ...

    def broken(self, shard: Shard, error: BaseException) -> None:
        """The shard cannot go on."""
        ...

    @property
    def open_turns(self) -> int:
        """Sessions with an open turn or a waiting event, without those that wait for an approval."""
        ...

    @property
    def held_bytes(self) -> int:
        """Bytes of events taken whose turn has not ended."""
        ...


class Offers:
    """The taking side of one host. Used on its loop only."""

    def __init__(self, owner: Owner, settings: HostSettings) -> None:
        self._owner = owner
        self._settings = settings
        self._room = asyncio.Event()
        self._closed = False
        self.ended = 0
        """Turns ended since the start."""

    def turn_ended(self) -> None:
        """A turn has ended, so there may be room."""
        self.ended += 1
        self.room_made()

    def room_made(self) -> None:
        """There may be room for who waits."""
        self._room.set()

    def close(self) -> None:
        """The host ends: offers that wait for room go back to their senders."""
        self._closed = True
        self._room.set()

    async def take(self, header: OfferHeader, rows: Sequence[Row]) -> OfferAnswer:
        """Take `rows` in order and answer once everything about them is durable.

        Rows of shards that this host does not own under the sender's term come back as untaken; so does all that follows the
        first row for which there was no room in time.
        """
        deadline = asyncio.get_running_loop().time() + WAIT_S
        touched: dict[int, Shard] = {}
        counts = {"taken": 0, "skipped": 0}
        untaken: list[int] = []
        full = False
        urgent = -1
        for number, row in enumerate(rows):
            if number % YIELD_ROWS == YIELD_ROWS - 1:
                await asyncio.sleep(0)
            if number > urgent and self._is_full():
                urgent = max((i for i in range(number, len(rows)) if acts_at_once(rows[i])), default=-1)
                if number > urgent and not await self._has_room(deadline):
                    full = True
                    untaken.extend(range(number, len(rows)))
                    break
            held = self._owner.owned(header.shards[number], header.terms.get(header.shards[number]))
            if held is None:
                untaken.append(number)
                continue
            counts[self._take_one(header, row, *held)] += 1
            touched[header.shards[number]] = held[0]
        for shard in touched.values():
            await shard.durable()
        for result, count in (*counts.items(), ("untaken", len(untaken))):
            EVENTS.labels(result=result).inc(count)
        return OfferAnswer(counts["taken"], counts["skipped"], tuple(untaken), full, self.ended)

    def _take_one(self, header: OfferHeader, row: Row, shard: Shard, runner: EffectRunner) -> str:
        try:
            record = shard.take(row, header.batch, header.spans.get(row.coordinates.partition))
        except StateError as exc:
            # The store cannot be read, or a record was appended and not applied: only a new owner can tell what counts.
            self._owner.broken(shard, exc)
            raise
        if record is None:
            return "skipped"
        if isinstance(record, Taken):
            runner.drive(record.session_id)
        return "taken"

    def _is_full(self) -> bool:
        owner, settings = self._owner, self._settings
        return owner.open_turns >= settings.max_open_turns or owner.held_bytes >= settings.max_queued_bytes

    async def _has_room(self, deadline: float) -> bool:
        while self._is_full():
            if self._closed:
                return False
            self._room.clear()
            left_s = deadline - asyncio.get_running_loop().time()
            try:
                await asyncio.wait_for(self._room.wait(), max(0.0, left_s))
            except asyncio.TimeoutError:
                return False
        return True

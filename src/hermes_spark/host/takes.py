"""Takes offered rows into the shards of a host, and makes offers wait while the host is full."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

import msgspec

from hermes_spark.errors import StateError
from hermes_spark.events import Row
from hermes_spark.host.ahead_wire import AheadRange
from hermes_spark.host.cursors import NOBODY, TAKEN
from hermes_spark.host.effects import EffectRunner
from hermes_spark.host.shard import Shard
from hermes_spark.host.wire import OfferAnswer, OfferHeader, Span
from hermes_spark.settings import HostSettings
from hermes_spark.state.records import Taken, TermId
from hermes_spark.telemetry import EVENTS

WAIT_S = 10.0
"""How long an offer waits for room before it goes back to its sender, who offers again and sees whether turns end."""
AHEAD = -1
"""In place of the number of a batch, in the records of what run-ahead has taken."""
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
        first row for which there was no room in time. An offer of run-ahead is answered by range (`OfferAnswer.wanted`).
        """
        round_ = Round()
        if header.ahead:
            wanted = await self.take_ahead(header, rows, round_)
            await round_.durable()
            return OfferAnswer(round_.counts["taken"], round_.counts["skipped"], wanted=wanted, ended=self.ended)
        untaken: list[int] = []
        admission = _Admission(self, rows)
        for number, row in enumerate(rows):
            if not await admission.admits(number):
                untaken.extend(range(number, len(rows)))
                break
            held = self._owner.owned(header.shards[number], header.terms.get(header.shards[number]))
            if held is None:
                untaken.append(number)
                continue
            self._take_one(row, header.batch, header.spans.get(row.coordinates.partition), held, round_)
        round_.counts["untaken"] = len(untaken)
        await round_.durable()
        counts = round_.counts
        return OfferAnswer(counts["taken"], counts["skipped"], tuple(untaken), admission.refused, self.ended)

    async def take_ahead(self, header: OfferHeader, rows: Sequence[Row], round_: Round) -> tuple[int, ...]:
        """Take the ranges of run-ahead in order, and say of each what `OfferAnswer.wanted` says, once `round_` is durable."""
        admission = _Admission(self, rows)
        wanted, first = [], 0
        for ahead in header.ahead:
            numbers, first = range(first, first + ahead.rows), first + ahead.rows
            wanted.append(await self._take_range(header, ahead, (rows, numbers), admission, round_))
        return tuple(wanted)

    async def _take_range(
        self,
        header: OfferHeader,
        ahead: AheadRange,
        part: tuple[Sequence[Row], range],
        admission: _Admission,
        round_: Round,
    ) -> int:
        rows, numbers = part
        term = header.terms.get(ahead.shard)
        held = self._owner.owned(ahead.shard, term)
        if held is None:
            return NOBODY
        if (following := held[0].intake.wants(ahead)) is not None:
            return following
        span = Span(ahead.start, ahead.stop)
        for number in numbers:
            if not await admission.admits(number) or (held := self._owner.owned(ahead.shard, term)) is None:
                return NOBODY
            self._take_one(rows[number], AHEAD, span, held, round_)
        held[0].intake.reached(ahead)
        return TAKEN

    def _take_one(
        self, row: Row, batch: int, span: Span | None, held: tuple[Shard, EffectRunner], round_: Round
    ) -> None:
        shard, runner = held
        try:
            record = shard.take(row, batch, span)
        except StateError as exc:
            # The store cannot be read, or a record was appended and not applied: only a new owner can tell what counts.
            self._owner.broken(shard, exc)
            raise
        if isinstance(record, Taken):
            runner.drive(record.session_id)
        round_.touched[id(shard)] = shard
        round_.counts["skipped" if record is None else "taken"] += 1

    def is_full(self) -> bool:
        """Whether a row that may wait must."""
        owner, settings = self._owner, self._settings
        return owner.open_turns >= settings.max_open_turns or owner.held_bytes >= settings.max_queued_bytes

    async def has_room(self, deadline: float) -> bool:
        """Wait for room until `deadline` (on the loop's clock); whether there is some."""
        while self.is_full():
            if self._closed:
                return False
            self._room.clear()
            left_s = deadline - asyncio.get_running_loop().time()
            try:
                await asyncio.wait_for(self._room.wait(), max(0.0, left_s))
            except asyncio.TimeoutError:
                return False
        return True


class Round:
    """What taking some rows has touched."""

    def __init__(self) -> None:
        self.touched: dict[int, Shard] = {}
        self.counts = {"taken": 0, "skipped": 0}

    async def durable(self) -> None:
        """Return when everything about the rows is durable. Raises what stopped a journal."""
        for shard in self.touched.values():
            await shard.durable()
        for result, count in self.counts.items():
            EVENTS.labels(result=result).inc(count)


class _Admission:
    """Lets the rows of one offer in, in order: as long as there is room, or comes within `WAIT_S`."""

    def __init__(self, offers: Offers, rows: Sequence[Row]) -> None:
        self._offers = offers
        self._rows = rows
        self._deadline = asyncio.get_running_loop().time() + WAIT_S
        self._urgent = -1
        self.refused = False
        """Some row was not let in."""

    async def admits(self, number: int) -> bool:
        """Whether row `number` may be taken. Rows up to one that acts at once need no room: they must not hold it up."""
        if number % YIELD_ROWS == YIELD_ROWS - 1:
            await asyncio.sleep(0)
        if number > self._urgent and self._offers.is_full():
            rows = self._rows
            self._urgent = max((i for i in range(number, len(rows)) if acts_at_once(rows[i])), default=-1)
            if number > self._urgent and (self.refused or not await self._offers.has_room(self._deadline)):
                self.refused = True
                return False
        return True

"""One shard under one term: takes events, appends facts, and knows what its turns want next.

`append` is the only door: record -> journal buffer -> `apply` -> `next_effects`, in one step of the event loop, so that every
decision is taken on the state as appended. Nothing that others may rely on (acknowledgements, positions, tool requests) leaves
before `durable` says so.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from hermes_spark.agent import act
from hermes_spark.agent.limits import time_to_live_ms
from hermes_spark.agent.plan import Effect, next_effects
from hermes_spark.agent.turn import apply
from hermes_spark.errors import Fenced, HermesError
from hermes_spark.events import Event, InvalidEvent, Row, parse_event
from hermes_spark.host.intake import Intake
from hermes_spark.host.pressure import Pressure
from hermes_spark.host.sessions import Sessions
from hermes_spark.host.wire import Span
from hermes_spark.settings import Settings
from hermes_spark.state.agent_state import AgentState, decode_state, encode_state
from hermes_spark.state.journal import Group, ShardJournal
from hermes_spark.state.records import (
    Outcome,
    Position,
    PublishedEarly,
    Record,
    Rejected,
    SessionRecord,
    ShardRecord,
    Taken,
)
from hermes_spark.state.snapshots import Contents, ShardMemory
from hermes_spark.tools.registry import Registry

FOLD_SLICE = 1000
"""Idle sessions gathered while folding before they are written out, so that a long journal does not fill the memory."""


class ShardRules(msgspec.Struct, frozen=True):
    """What all shards of a host share."""

    query_id: str
    settings: Settings
    registry: Registry
    clock_ms: Callable[[], int]


class Capture(NamedTuple):
    """A shard at one durable position: what its store does not hold there. The store is held until `sessions.release`."""

    position: Position
    memory: ShardMemory
    idle: list[bytes]
    live: list[AgentState]
    gone: list[str]

    def contents(self) -> Contents:
        """What a snapshot keeps of it; encodes, so not for the loop."""
        return Contents(self.memory, (*self.idle, *map(encode_state, self.live)), tuple(self.gone))


class Shard:
    """A shard that this host owns. Used on the host's loop only."""

    def __init__(self, rules: ShardRules, journal: ShardJournal, sessions: Sessions, intake: Intake) -> None:
        self._rules = rules
        self.journal = journal
        self.sessions = sessions
        self.intake = intake
        self._now_ms = 0
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._pressure = Pressure()
        self._wanted: asyncio.Future[Capture] | None = None
        self._image: tuple[ShardMemory, list[bytes], list[AgentState], list[str]] | None = None
        self.failure: HermesError | None = None
        self.appended: Callable[[], None] = _nobody
        """Called after every append; the owner sets it to wake who flushes."""
        self.committed: Callable[[], None] = _nobody
        """To be called after every barrier; set by who takes snapshots."""

    def restore(self, contents: Contents) -> None:
        """Be what a snapshot holds beside the store. Called once, before `fold`, which goes on from its position."""
        memory = contents.memory
        self._now_ms = memory.now_ms
        for turn_id, (session_id, size) in memory.held.items():
            self._pressure.hold(session_id, turn_id, size)
        self.intake.remember(memory)
        for data in contents.states:
            state = decode_state(data)
            self.sessions.put(state, 0)
            self._pressure.note(state.session_id, waiting=state.waiting)
        for session_id in contents.gone:
            self.sessions.forget(session_id, 0)
        self.sessions.write_back(self.journal.position())

    def fold(self, past: Iterable[tuple[int, Record]]) -> None:
        """Live through the records of earlier terms. Called once, before anything else."""
        for lsn, record in past:
            self._remember(record)
            if not isinstance(record, ShardRecord):
                self._step(record, lsn)
            if self.sessions.unwritten >= FOLD_SLICE:
                self.sessions.write_back(self.journal.position())
        self.sessions.write_back(self.journal.position())

    def take(self, row: Row, batch: int, span: Span | None) -> Taken | Rejected | None:
        """Take or reject one row; None when it was taken before. Durable only once `durable` returns."""
        if self.intake.has(row.coordinates, batch, span):
            return None
        record = self._decide(row, batch)
        self.intake.fold(row.coordinates, batch)
        if isinstance(record, Rejected):
            self._append(record)
        else:
            self._hold(record, len(row.value))
            self.append(record)
        return record

    def append(self, record: SessionRecord) -> AgentState | None:
        """Append a fact of a session and apply it."""
        return self._step(record, self._append(record))

    def published_early(self, lsns: tuple[int, ...]) -> None:
        """Append that a sink has confirmed the outcomes of these records."""
        self._append(PublishedEarly(lsns, self.now_ms()))

    def effects(self, session_id: str) -> tuple[Effect, ...]:
        """What the session wants now."""
        state = self.sessions.get(session_id)
        return () if state is None else next_effects(state)

    @property
    def held_bytes(self) -> int:
        """Bytes of events taken whose turn has not ended, without sessions that wait for an approval."""
        return self._pressure.held_bytes

    @property
    def open_turns(self) -> int:
        """Sessions with an open turn or a waiting event, without those that wait for an approval."""
        return len(self.sessions.live) - self._pressure.waiting

    def now_ms(self) -> int:
        """The time for a new record: the clock, but never before the last record."""
        self._now_ms = max(self._now_ms, self._rules.clock_ms())
        return self._now_ms

    async def durable(self) -> None:
        """Return when everything appended so far is durable. Raises what stopped the journal, `Fenced` above all."""
        if self.failure is not None:
            raise self.failure
        lsn = self.journal.appended_lsn
        if self.journal.durable_lsn < lsn:
            future = asyncio.get_running_loop().create_future()
            self._waiters.append((lsn, future))
            await future

    async def capture(self) -> Capture:
        """The shard at a durable position, with the store held there: `sessions.release` it when it is copied.

        Raises what stopped the journal.
        """
        if self.failure is not None:
            raise self.failure
        wanted: asyncio.Future[Capture] = asyncio.get_running_loop().create_future()
        self._wanted = wanted
        self._answer_capture()
        return await wanted

    def take_group(self) -> Group | None:
        """`ShardJournal.take_group`. Its end is a position that can be named, so what was asked for is captured here."""
        group = self.journal.take_group()
        if group is not None and self._wanted is not None:
            self._image = self._look()
        return group

    def flushed(self) -> None:
        """The journal has become durable further: wake who waits, and let idle sessions go to the store."""
        durable = self.journal.durable_lsn
        while self._waiters and self._waiters[0][0] <= durable:
            future = self._waiters.popleft()[1]
            if not future.done():
                future.set_result(None)
        self.sessions.write_back(self.journal.position())
        self._answer_capture()

    def fail(self, error: HermesError) -> None:
        """Stop: nothing that was appended and is not durable counts any more."""
        self.failure = error
        for _, future in self._waiters:
            if not future.done():
                future.set_exception(error)
        self._waiters.clear()
        if self._wanted is not None and not self._wanted.done():
            self._wanted.set_exception(error)

    def position(self) -> Position:
        """The durable end of the journal."""
        return self.journal.position()

    def close(self) -> None:
        """Let go of files. Whoever still waits gets `Fenced`."""
        self.fail(self.failure or Fenced("the shard was closed"))
        self.journal.close()
        self.sessions.close()

    def _answer_capture(self) -> None:
        """Give the capture that is waited for: that of the group made durable just now, or of a shard at rest."""
        if self._image is None and not self.journal.dirty and self._wanted is not None:
            self._image = self._look()
        if self._wanted is None or self._image is None:
            return
        wanted, image, self._wanted, self._image = self._wanted, self._image, None, None
        if not wanted.done():
            self.sessions.hold()
            wanted.set_result(Capture(self.journal.position(), *image))

    def _look(self) -> tuple[ShardMemory, list[bytes], list[AgentState], list[str]]:
        return self.intake.memory(self._now_ms, dict(self._pressure.turns)), *self.sessions.image()

    def _append(self, record: Record) -> int:
        if self.failure is not None:
            raise self.failure
        lsn = self.journal.append(record)
        self.appended()
        return lsn

    def _decide(self, row: Row, batch: int) -> Taken | Rejected:
        rules = self._rules
        session_id = ""
        try:
            event = parse_event(row, max_bytes=rules.settings.intake.max_event_bytes)
            session_id = event.session_id
            if refusal := rules.registry.refuse_choice(event.tools):
                raise InvalidEvent(refusal)
        except InvalidEvent as exc:
            return Rejected(
                coordinates=row.coordinates,
                session_id=session_id,
                reason=str(exc),
                raw=row.value[: rules.settings.intake.dead_letter_bytes],
                raw_bytes=len(row.value),
                batch=batch,
                time_ms=self.now_ms(),
            )
        return self._taken(event, batch)

    def _taken(self, event: Event, batch: int) -> Taken:
        state, settings = self.sessions.get(event.session_id), self._rules.settings
        record = act.taken(
            state,
            event,
            query_id=self._rules.query_id,
            settings=settings.agent,
            batch=batch,
            now_ms=self.now_ms(),
        )
        default_ms = math.ceil(settings.state.ttl_s * 1000)
        return msgspec.structs.replace(record, ttl_ms=time_to_live_ms(state, event, default_ms))

    def _step(self, record: SessionRecord, lsn: int) -> AgentState | None:
        state = apply(self.sessions.get(record.session_id), record)
        if state is None:
            self.sessions.forget(record.session_id, lsn)
        else:
            self.sessions.put(state, lsn)
        if isinstance(record, Outcome):
            self._pressure.release(record.session_id, record.turn_id)
        self._pressure.note(record.session_id, waiting=state is not None and state.waiting)
        return state

    def _remember(self, record: Record) -> None:
        self._now_ms = max(self._now_ms, record.time_ms)
        if isinstance(record, Taken):
            self.intake.fold(record.event.coordinates, record.batch)
            self._hold(record, sum(len(m.content) for m in record.event.messages))
        elif isinstance(record, Rejected):
            self.intake.fold(record.coordinates, record.batch)

    def _hold(self, record: Taken, size: int) -> None:
        if record.turn_id and not record.repeat:
            self._pressure.hold(record.session_id, record.turn_id, size)


def _nobody() -> None:
    """Nobody flushes yet, or nobody takes snapshots."""

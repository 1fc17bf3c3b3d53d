"""The agent host: owns shards, runs their turns on one event loop, answers the driver and the hand-off tasks.

It lives as long as its Spark task. It ends when told to (`stop`), on SIGHUP or when its parent dies (flush, then exit within a
bound), and when its state fails.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Coroutine, Sequence

import msgspec

from hermes_spark.errors import HermesError, HostError
from hermes_spark.events import Row, shard_of
from hermes_spark.host.ahead import RunAhead
from hermes_spark.host.ahead_wire import AheadOrder, AheadReport
from hermes_spark.host.early import EarlyOutcomes
from hermes_spark.host.effects import EffectRunner, Services
from hermes_spark.host.expiry import Expiry
from hermes_spark.host.flusher import Flusher
from hermes_spark.host.lanes import Lanes
from hermes_spark.host.registering import register
from hermes_spark.host.shard import Shard
from hermes_spark.host.takes import Offers
from hermes_spark.host.turn_log import TurnLog
from hermes_spark.host.wire import (
    Assignment,
    Barrier,
    HostExit,
    HostPayload,
    OfferAnswer,
    OfferHeader,
    Release,
    ShardPosition,
    WireServer,
    local_address,
    pack,
    unpack,
)
from hermes_spark.state.records import Outcome, Position, TermId
from hermes_spark.telemetry import OPEN_TURNS

log = logging.getLogger(__name__)

FLUSH_BOUND_S = 2.0
"""How long a host may take to flush and end after SIGHUP or its parent's death."""
PARENT_POLL_S = 0.2
REQUEST_BOUND_S = 90.0
"""Longest time any request may take on the loop; opening shards with a long journal is the slowest."""

OpenShard = Callable[[int, TermId, Position, dict[str, int]], Shard]
"""(shard, term, committed position, ends) -> the shard, opened and folded. Blocking; called off the loop."""

MakeAhead = Callable[[Lanes], RunAhead]
"""Called at the driver's first order to run ahead, on the loop."""


class AgentHost:
    """One host. Made on its event loop; `run` returns when it has ended."""

    def __init__(
        self,
        payload: HostPayload,
        make_services: Callable[[AgentHost], Services],
        open_shard: OpenShard,
        make_ahead: MakeAhead | None = None,
        early: EarlyOutcomes | None = None,
    ) -> None:
        self._payload = payload
        self._open_shard = open_shard
        self._make_ahead = make_ahead
        self._ahead: RunAhead | None = None
        self._early = early
        self._address = ""
        self._loop = asyncio.get_running_loop()
        self._owned: dict[int, tuple[TermId, Shard, EffectRunner]] = {}
        self._stopped: asyncio.Future[HostExit] = self._loop.create_future()
        self.services = msgspec.structs.replace(make_services(self), waits=self.turn_waits)
        self._flusher = Flusher(self._shards, self.broken)
        self._expiry = Expiry(self._shards, self.broken, self.services.settings)
        self._wire = self.services.settings.host
        self._offers = Offers(self, self._wire)
        self._one_assignment = asyncio.Lock()
        turn_log = self.services.settings.telemetry.turn_log
        self._turn_log = TurnLog(turn_log, payload.index) if turn_log else None

    async def run(self) -> HostExit:
        """Serve until stopped."""
        parent = os.getppid()
        server = WireServer(
            self._payload.address or local_address(self._payload.driver), self._payload.token, self, self._wire
        )
        self._address = server.address
        flushing, expiring = (self._loop.create_task(part.run()) for part in (self._flusher, self._expiry))
        for task in (flushing, expiring):
            task.add_done_callback(self._task_ended)
        watching = self._loop.create_task(self._watch_parent(parent))
        self._loop.add_signal_handler(signal.SIGHUP, self._hang_up)
        try:
            await self._loop.run_in_executor(None, register, self._payload, server.address, self._wire)
            return await self._stopped
        finally:
            watching.cancel()
            expiring.cancel()
            for part in (self._ahead, self._early):
                if part is not None:
                    await part.close()
            self._flusher.stop()
            await asyncio.wait([flushing])
            self._offers.close()
            await self._let_go()
            # Off the loop: it waits for requests under way, and those end on the loop.
            await self._loop.run_in_executor(None, server.shutdown)

    # ------------------------------------------------------------------ requests, on Flight's threads

    def offer(self, header: OfferHeader, rows: Sequence[Row]) -> OfferAnswer:
        """Take rows; see `wire.Handler`."""
        return asyncio.run_coroutine_threadsafe(self._offers.take(header, rows), self._loop).result(REQUEST_BOUND_S)

    def act(self, action: str, body: bytes) -> bytes:
        """Answer `assign`, `release`, `barrier`, `ahead`, `ping` and `stop`."""
        work: Coroutine[None, None, msgspec.Struct]
        if action == "assign":
            work = self._assign(unpack(body, Assignment))
        elif action == "release":
            work = self._release(unpack(body, Release).shards)
        elif action == "barrier":
            work = self._answer_barrier(body)
        elif action == "ahead":
            work = self._run_ahead(unpack(body, AheadOrder))
        elif action == "ping":
            work = self._ping()
        elif action == "stop":
            work = self._stop(HostExit())
        else:
            raise HostError(f"the host knows no action {action!r}")
        return pack(asyncio.run_coroutine_threadsafe(work, self._loop).result(REQUEST_BOUND_S))

    # ------------------------------------------------------------------ on the loop

    def owned(self, shard: int, term: TermId | None) -> tuple[Shard, EffectRunner] | None:
        """The shard and its runner if this host owns it under exactly `term` and it has not failed."""
        held = self._owned.get(shard)
        if held is None or held[0] != term or held[1].failure is not None:
            return None
        return held[1], held[2]

    @property
    def open_turns(self) -> int:
        """Sessions with an open turn or a waiting event, without those that wait for an approval."""
        return sum(shard.open_turns for _, shard, _ in self._owned.values())

    @property
    def ended_turns(self) -> int:
        """Turns ended since the start."""
        return self._offers.ended

    @property
    def held_bytes(self) -> int:
        """Bytes of events taken whose turn has not ended."""
        return sum(shard.held_bytes for _, shard, _ in self._owned.values())

    def turn_ended(self, outcome: Outcome) -> None:
        """Note an outcome: make room known, and log it once durable."""
        self._offers.turn_ended()
        number = shard_of(outcome.session_id, self.services.settings.state.shards)
        shard = self._owned[number][1]
        if self._early is not None:
            self._early.ended(shard, number, outcome)
        if self._turn_log is not None:
            self._turn_log.ended(shard, outcome)

    def turn_waits(self) -> None:
        """A turn waits for an approval and takes no room meanwhile."""
        self._offers.room_made()

    def failed(self, error: BaseException) -> None:
        """A fault that no turn can survive: end with it."""
        name = type(error).__name__ if isinstance(error, HermesError) else "HostError"
        message = str(error) if isinstance(error, HermesError) else f"internal fault: {type(error).__name__}"
        log.error("host %d ends: %s", self._payload.index, message, exc_info=not isinstance(error, HermesError))
        self._end(HostExit(name, message))

    async def _assign(self, assignment: Assignment) -> Barrier:
        async with self._one_assignment:
            await self._open(assignment)
        return await self._barrier()

    async def _open(self, assignment: Assignment) -> None:
        for number, term in sorted(assignment.terms.items()):
            held = self._owned.get(number)
            if held is not None and held[0] >= term:
                raise HostError(f"shard {number} is held here under term {held[0]}; {term} is not newer")
            if held is not None:
                async with self._flusher.exclusive():
                    self._drop(number)
            committed = assignment.committed.get(number, Position())
            shard = await self._loop.run_in_executor(None, self._open_shard, number, term, committed, assignment.ends)
            shard.appended = self._flusher.wake
            runner = EffectRunner(shard, self.services)
            self._owned[number] = (term, shard, runner)
            runner.resume()

    async def _release(self, shards: Sequence[int]) -> HostExit:
        """Let go of shards: their turns stop, and what they had appended becomes durable for the next owner."""
        async with self._one_assignment:
            leaving = [number for number in shards if number in self._owned]
            for number in leaving:
                self._owned[number][2].close()
            await self._flusher.round()
            async with self._flusher.exclusive():
                for number in leaving:
                    self._drop(number)
        return HostExit()

    async def _answer_barrier(self, batch: bytes) -> Barrier:
        if batch:
            self._expiry.barrier(int(batch))
        return await self._barrier()

    async def _barrier(self) -> Barrier:
        if self._early is not None:
            self._early.note()
        positions = []
        for number, (_, shard, _) in sorted(self._owned.items()):
            await shard.durable()
            positions.append(ShardPosition(number, shard.position()))
            shard.committed()
        OPEN_TURNS.set(self.open_turns)
        return Barrier(tuple(positions), self.open_turns, self.ended_turns)

    async def _run_ahead(self, order: AheadOrder) -> AheadReport:
        if self._ahead is None:
            if self._make_ahead is None:
                raise HostError("this host reads no source ahead")
            self._ahead = self._make_ahead(Lanes(self._address, self._payload.token, self._wire, self._offers))
        return await self._ahead.order(order)

    async def _ping(self) -> HostExit:
        return HostExit()

    async def _stop(self, exit_: HostExit) -> HostExit:
        # A moment later, so that the answer leaves before the server goes.
        self._loop.call_later(0.05, self._end, exit_)
        return exit_

    def _end(self, exit_: HostExit) -> None:
        if not self._stopped.done():
            self._stopped.set_result(exit_)

    def broken(self, shard: Shard, error: BaseException) -> None:
        """A shard cannot go on: whoever waits for it hears of it, and the host ends."""
        if shard.failure is None:
            name = type(error).__name__
            shard.fail(error if isinstance(error, HermesError) else HostError(f"internal fault: {name}"))
        self.failed(error)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failed(error)

    def _shards(self) -> list[Shard]:
        return [shard for _, shard, _ in self._owned.values()]

    def _drop(self, number: int) -> None:
        """Close a shard, if whoever ends the host has not done so while the caller waited for the flusher."""
        if number in self._owned:
            _, shard, runner = self._owned.pop(number)
            runner.close()
            shard.close()

    async def _let_go(self) -> None:
        """Flush once more, then close everything. Called at the end, whatever the reason."""
        await self._flusher.round()
        for number in list(self._owned):
            self._drop(number)
        self._flusher.close()
        await self.services.model.close()
        await self.services.tools.close()

    async def _watch_parent(self, parent: int) -> None:
        """End when the process that forked us is gone: nobody else would notice an orphan."""
        while os.getppid() == parent:
            await asyncio.sleep(PARENT_POLL_S)
        self._hang_up()

    def _hang_up(self) -> None:
        log.info("host %d: told to hang up", self._payload.index)
        self._loop.create_task(self._flush_and_exit())

    async def _flush_and_exit(self) -> None:
        # Spark is gone or going: there is nobody to return to, so leave without unwinding its worker loop.
        self._loop.call_later(FLUSH_BOUND_S, os._exit, 1)
        await self._flusher.round()
        os._exit(0)

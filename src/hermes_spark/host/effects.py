"""Runs what turns want: asks the model, sends calls, records outcomes. One runner per shard, all on the host's loop.

An effect runs once at a time (by its key), its result is recorded only if the state still wants it, and after every record
the state is asked again. How calls are sent, and what becomes of those that an earlier owner may have sent, is in `calls`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from hermes_spark import faults
from hermes_spark.agent import act, context
from hermes_spark.agent.plan import Call, Complete, Finish, Undo
from hermes_spark.errors import ModelBusy, ModelContractError, ModelError, ModelTimeout, ModelUnavailable, StateError
from hermes_spark.host.calls import Calls, describe
from hermes_spark.host.shard import Shard
from hermes_spark.host.timers import Timers
from hermes_spark.llm.client import ChatModel, CompletionRequest
from hermes_spark.settings import Settings
from hermes_spark.state.agent_state import SENT, WAITING, AgentState
from hermes_spark.state.records import Outcome, SessionRecord
from hermes_spark.telemetry import CALLS, TURNS
from hermes_spark.tools.registry import Registry, ToolCaller

log = logging.getLogger(__name__)

_KINDS: tuple[tuple[type[ModelError], str], ...] = (
    (ModelBusy, "model_busy"),
    (ModelUnavailable, "model_unavailable"),
    (ModelTimeout, "model_timeout"),
    (ModelContractError, "model_contract"),
)

CUT_BY_DEADLINE = "cut off: the turn's time was up while this call was under way; whether it happened is unknown"


class Services(msgspec.Struct, frozen=True):
    """What effects are made with; shared by all shards of a host."""

    settings: Settings
    model: ChatModel
    tools: ToolCaller
    registry: Registry
    tool_slots: asyncio.Semaphore
    """Bounds calls under way. Taken before the intent is recorded, so that an intent never waits for a slot."""
    ended: Callable[[Outcome], None]
    """Called for each outcome as it is appended."""
    failed: Callable[[BaseException], None]
    """Called when recording itself failed, which no turn can survive: the host must end."""
    waits: Callable[[], None] = lambda: None
    """Called when a turn may have come to wait for an approval and takes no room any more."""


class EffectRunner:
    """Starts the effects that one shard's sessions want, and records what comes back."""

    def __init__(self, shard: Shard, services: Services) -> None:
        self._shard = shard
        self._services = services
        self._calls = Calls(shard, services.tools, services.registry, services.settings.tools)
        self._running: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._timers = Timers(self._overdue, self._lapsing)

    def drive(self, session_id: str) -> None:
        """Start whatever the session wants now and is not running yet. Called after every record."""
        effects = self._shard.effects(session_id)
        while effects and isinstance(effects[0], Finish):
            self._finish(effects[0])
            effects = self._shard.effects(session_id)
        if effects:
            state = self._state(session_id)
            self._timers.set(state, self._shard.now_ms())
            if state.waiting:
                self._services.waits()
        for effect in effects:
            if effect.key not in self._running and isinstance(effect, Complete | Call | Undo):
                self._start(effect)

    def resume(self) -> None:
        """Go on with the turns that an earlier owner left open. Called once, after the shard was opened."""
        for session_id in list(self._shard.sessions.live):
            effects = self._shard.effects(session_id)
            if any(isinstance(effect, Complete | Call | Undo) for effect in effects):
                now_ms = self._shard.now_ms()
                self._shard.append(act.resumed(self._state(session_id), effects[0].turn_id, now_ms))
            self.drive(session_id)

    def close(self) -> None:
        """Stop everything at once; what was under way is settled by the next owner."""
        self._timers.close()
        for task in self._running.values():
            task.cancel()

    def _start(self, effect: Complete | Call | Undo) -> None:
        task = asyncio.get_running_loop().create_task(self._run(effect))
        self._running[effect.key] = task

        def done(finished: asyncio.Task[None]) -> None:
            if self._running.get(effect.key) is finished:
                del self._running[effect.key]
            if not finished.cancelled() and (error := finished.exception()) is not None:
                self._services.failed(error)

        task.add_done_callback(done)

    async def _run(self, effect: Complete | Call | Undo) -> None:
        try:
            await (self._complete(effect) if isinstance(effect, Complete) else self._call(effect))
        except StateError:
            if self._shard.failure is None:
                raise
            # The shard has failed and says so itself; whatever this effect was doing no longer counts.
            log.info("effect dropped with its shard: turn %s", effect.turn_id)

    async def _complete(self, effect: Complete) -> None:
        turn = self._state(effect.session_id).turn
        if turn is not None and turn.resumptions:
            # What kills its host must be counted before it can do so again.
            await self._shard.durable()
        try:
            completion = await self._services.model.complete(self._request(effect))
            if not self._wanted(effect):
                return
            completed = act.completed(
                self._state(effect.session_id),
                effect,
                completion,
                check=self._check(effect.session_id),
                safe_when_cut=self._safe_when_cut,
                now_ms=self._shard.now_ms(),
            )
            record = act.with_approvals(completed, self._approve_within)
        except ModelError as exc:
            kind = next((name for error, name in _KINDS if isinstance(exc, error)), "model_error")
            record = act.completion_failed(effect, kind, str(exc), self._shard.now_ms())
        except StateError:
            raise
        except Exception as exc:  # a fault of ours must end this turn, not all turns of the host
            record = act.completion_failed(effect, "internal", describe(exc), self._shard.now_ms())
        self._record(effect, record)

    def _request(self, effect: Complete) -> CompletionRequest:
        state = self._state(effect.session_id)
        settings = self._services.settings
        choice = None if state.turn is None else state.turn.tools
        return CompletionRequest(
            messages=context.prompt(state, settings.agent.system_prompt),
            tools=() if effect.final else self._services.registry.specs(choice),
            max_tokens=effect.max_tokens,
            thinking=effect.thinking and settings.agent.thinking,
            timeout_s=settings.model.timeout_s,
        )

    async def _call(self, effect: Call | Undo) -> None:
        async with self._services.tool_slots:
            if not self._wanted(effect):
                return
            if isinstance(effect, Undo):
                result = await self._calls.undo(effect)
            else:
                result = await (self._calls.settle(effect) if effect.call.status == SENT else self._calls.send(effect))
        CALLS.labels(tool=effect.call.name, status=result.status).inc()
        faults.point("host.after_call")
        now_ms = self._shard.now_ms()
        self._record(effect, act.returned(effect, result.status, result.content, result.attempts, now_ms))
        faults.point("host.after_result")

    def _record(self, effect: Complete | Call | Undo, record: SessionRecord) -> None:
        if self._wanted(effect):
            self._shard.append(record)
            # Forget it now: what the state wants next may be the same call again only if it was never sent.
            self._running.pop(effect.key, None)
            self.drive(effect.session_id)

    def _finish(self, effect: Finish) -> None:
        outcome = act.outcome(self._state(effect.session_id), effect, self._shard.now_ms())
        self._shard.append(outcome)
        TURNS.labels(status=outcome.status).inc()
        self._timers.drop(effect.turn_id)
        for key in [key for key in self._running if key[0] == effect.turn_id]:
            self._running.pop(key).cancel()
        self._services.ended(outcome)

    def _lapsing(self, session_id: str, turn_id: str) -> None:
        turn = self._state(session_id).turn
        if turn is None or turn.id != turn_id or self._shard.failure is not None:
            return
        now_ms = self._shard.now_ms()
        for call in turn.calls:
            if call.status == WAITING and call.approve_by_ms <= now_ms:
                self._shard.append(act.lapsed(session_id, turn_id, call.id, now_ms))
        self.drive(session_id)

    def _overdue(self, session_id: str, turn_id: str) -> None:
        turn = self._state(session_id).turn
        if turn is None or turn.id != turn_id or self._shard.failure is not None:
            return
        self._shard.append(act.overdue(session_id, turn_id, self._shard.now_ms()))
        for effect in self._shard.effects(session_id):
            if isinstance(effect, Call):
                if task := self._running.pop(effect.key, None):
                    task.cancel()
                self._shard.append(act.returned(effect, "unknown", CUT_BY_DEADLINE, 1, self._shard.now_ms()))
        self.drive(session_id)

    def _wanted(self, effect: Complete | Call | Undo) -> bool:
        return effect.key in {wanted.key for wanted in self._shard.effects(effect.session_id)}

    def _state(self, session_id: str) -> AgentState:
        state = self._shard.sessions.get(session_id)
        if state is None:
            raise StateError(f"a session of an open turn is gone from shard memory: {session_id}")
        return state

    def _check(self, session_id: str) -> Callable[[str, dict[str, object]], str]:
        turn = self._state(session_id).turn
        choice = None if turn is None else turn.tools
        return lambda name, arguments: self._services.registry.check(name, arguments, choice)

    def _approve_within(self, name: str) -> int:
        return self._services.registry.approve_within_ms(name, self._services.settings.tools.approval_timeout_s)

    def _safe_when_cut(self, name: str) -> bool:
        tool = self._services.registry.get(name)
        return tool is not None and not tool.side_effects

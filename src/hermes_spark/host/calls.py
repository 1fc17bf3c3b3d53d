"""Sends tool calls, and settles those that an earlier owner had under way. One per shard, on the host's loop.

A call leaves only behind its durable intent. What a new owner does with a call that it finds sent and without a result follows
the policy of the recorded intent, never the tool file of today.
"""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import Awaitable, Callable

from hermes_spark import faults
from hermes_spark.agent import act
from hermes_spark.agent.plan import Call, Undo
from hermes_spark.host.shard import Shard
from hermes_spark.settings import ToolSettings
from hermes_spark.state.agent_state import SENT
from hermes_spark.state.records import UndoPlan
from hermes_spark.tools.registry import Registry, Tool, ToolCaller, ToolRequest, ToolResult

log = logging.getLogger(__name__)

SEND_WITHIN_S = 1.0
"""An intent that is older is appended again before its call leaves: if the shard was taken over, that append finds out."""
INTENT_ATTEMPTS = 10
AGAIN_PAUSES_S = (0.5, 2.0)
"""Before each further try to send an interrupted call again."""

Ask = Callable[[Tool, ToolRequest], Awaitable[ToolResult]]

NOT_UNDONE = "the undo was sent and its answer never came; whether it happened is unknown"
INTERRUPTED = "interrupted: the service restarted while this call was under way; whether it happened is unknown"
_SLOW_JOURNAL = "not sent: its intent could not be recorded in time"


class Calls:
    """Turns the effect `Call` into a result, for one shard."""

    def __init__(
        self,
        shard: Shard,
        tools: ToolCaller,
        registry: Registry,
        settings: ToolSettings,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._shard = shard
        self._tools = tools
        self._registry = registry
        self._settings = settings
        self._clock_s = clock_s

    async def send(self, effect: Call) -> ToolResult:
        """Make a call that was never sent."""
        tool = self._registry.get(effect.call.name)
        if tool is None:
            return ToolResult("error", f"the tool {effect.call.name} is no longer registered", 0)
        if not await self._intend(effect, tool, tool.policy):
            return ToolResult("error", _SLOW_JOURNAL, 0)
        return await self._guarded(self._tools.call, tool, effect)

    async def undo(self, effect: Undo) -> ToolResult:
        """Make an undo, or make it again: undos are idempotent."""
        if effect.problem:
            return ToolResult("error", effect.problem, 0)
        tool = self._registry.get(effect.call.name)
        if tool is None:
            return ToolResult("error", f"not made: the tool {effect.call.name} is no longer registered", 0)
        return await self._send_again(effect, tool, NOT_UNDONE)

    async def settle(self, effect: Call) -> ToolResult:
        """Find out what became of a call that an earlier owner had under way, by the policy of its intent."""
        policy, tool = effect.call.policy, self._registry.get(effect.call.name)
        if tool is not None and policy == "idempotent":
            return await self._send_again(effect, tool, INTERRUPTED)
        if tool is not None and policy == "reconcile" and tool.reconcile_url:
            return await self._guarded(self._tools.reconcile, tool, effect)
        return ToolResult("unknown", INTERRUPTED, 1)

    async def _send_again(self, effect: Call | Undo, tool: Tool, otherwise: str) -> ToolResult:
        """Under the same key, a few times. What is not known then is told as unknown: an earlier request may have run."""
        attempts = int(effect.call.status == SENT)
        for pause_s in (0.0, *AGAIN_PAUSES_S):
            await asyncio.sleep(pause_s)
            if not await self._intend(effect, tool, effect.call.policy):
                break
            result = await self._guarded(self._tools.call, tool, effect)
            attempts += result.attempts
            if result.sent and result.status in ("ok", "error"):
                return ToolResult(result.status, result.content, attempts)
        return ToolResult("unknown", otherwise, attempts)

    async def _intend(self, effect: Call | Undo, tool: Tool, policy: str) -> bool:
        """Record the intent durably; False when it is never durable within `SEND_WITHIN_S` of being recorded.

        A process that was stopped in between may have lost its shard without noticing. Appending once more notices.
        """
        timeout_s = tool.timeout_s or self._settings.timeout_s
        plan = UndoPlan(tool.undo.tool, tool.undo.arguments) if tool.undo and isinstance(effect, Call) else None
        faults.point("host.before_intent")
        for _ in range(INTENT_ATTEMPTS):
            begun_s, now_ms = self._clock_s(), self._shard.now_ms()
            self._shard.append(act.intent(effect, policy, now_ms + round(timeout_s * 1000), now_ms, plan))
            await self._shard.durable()
            faults.point("host.after_intent")
            if self._clock_s() - begun_s <= SEND_WITHIN_S:
                return True
        return False

    async def _guarded(self, ask: Ask, tool: Tool, effect: Call | Undo) -> ToolResult:
        request = ToolRequest(
            call_id=effect.call.id,
            session_id=effect.session_id,
            turn_id=effect.turn_id,
            arguments=effect.call.arguments,
        )
        try:
            return await ask(tool, request)
        except Exception as exc:
            # A fault of ours ends this call, not the host; it may have happened, so it is not "error".
            return ToolResult("unknown", f"internal fault while calling ({describe(exc)}); it may have happened", 1)


def describe(exc: BaseException) -> str:
    """An exception without its text, which may quote a customer: its class and where it was raised."""
    frame = traceback.extract_tb(exc.__traceback__)[-1]
    log.error("internal fault: %s at %s:%s in %s", type(exc).__name__, frame.filename, frame.lineno, frame.name)
    return f"{type(exc).__name__} in {frame.name}"

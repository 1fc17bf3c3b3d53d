"""The timers of one shard's turns: the wall clock of those that run, the deadlines of calls that wait for an approval."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hermes_spark.agent.approvals import time_left_ms
from hermes_spark.state.agent_state import WAITING, AgentState, Turn

Due = Callable[[str, str], None]
"""Called with session and turn id."""


class Timers:
    """At most two timers per turn. One that comes too early by the clock of records is set again by whom it calls."""

    def __init__(self, overdue: Due, lapsing: Due) -> None:
        """`overdue`: the turn has run too long. `lapsing`: a call that waits may have come to its deadline."""
        self._overdue, self._lapsing = overdue, lapsing
        self._running: dict[str, asyncio.TimerHandle] = {}
        self._waiting: dict[str, tuple[int, asyncio.TimerHandle]] = {}

    def set(self, state: AgentState, now_ms: int) -> None:
        """Have the timers that the session's open turn needs now, and no others."""
        turn = state.turn
        if turn is None:
            return
        if state.waiting:
            self._stop_running(turn.id)
        elif turn.id not in self._running and not turn.stopping:
            # (What is under way in a turn that is being stopped has time limits of its own, and so have its undos.)
            later = asyncio.get_running_loop().call_later
            left_s = max(0.0, time_left_ms(turn, now_ms) / 1000)
            self._running[turn.id] = later(left_s, self._fire_overdue, state.session_id, turn.id)
        self._set_waiting(state.session_id, turn, now_ms)

    def drop(self, turn_id: str) -> None:
        """The turn has ended."""
        self._stop_running(turn_id)
        self._stop_waiting(turn_id)

    def close(self) -> None:
        """Cancel all."""
        for turn_id in [*self._running, *self._waiting]:
            self.drop(turn_id)

    def _set_waiting(self, session_id: str, turn: Turn, now_ms: int) -> None:
        waiting = () if turn.stopping else turn.calls
        deadlines = [call.approve_by_ms for call in waiting if call.status == WAITING]
        deadline_ms = min(deadlines, default=0)
        if deadline_ms == self._waiting.get(turn.id, (0,))[0]:
            return
        self._stop_waiting(turn.id)
        if deadlines:
            left_s = max(0.0, (deadline_ms - now_ms) / 1000)
            handle = asyncio.get_running_loop().call_later(left_s, self._fire_lapsing, session_id, turn.id)
            self._waiting[turn.id] = (deadline_ms, handle)

    def _fire_overdue(self, session_id: str, turn_id: str) -> None:
        del self._running[turn_id]
        self._overdue(session_id, turn_id)

    def _fire_lapsing(self, session_id: str, turn_id: str) -> None:
        del self._waiting[turn_id]
        self._lapsing(session_id, turn_id)

    def _stop_running(self, turn_id: str) -> None:
        if handle := self._running.pop(turn_id, None):
            handle.cancel()

    def _stop_waiting(self, turn_id: str) -> None:
        if waiting := self._waiting.pop(turn_id, None):
            waiting[1].cancel()

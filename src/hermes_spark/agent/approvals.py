"""Calls that wait for somebody's approval: decisions that come early, in time, too late or never. Pure.

A call that needs an approval waits from the completion that asks for it, until an `approval` event decides or its recorded
deadline denies it. The first decision counts. A turn of which nothing but such calls is left *waits*: its wall clock stands
still, and it takes no room from others.
"""

from __future__ import annotations

from msgspec.structs import replace

from hermes_spark.agent.calls import close_if_done, with_call
from hermes_spark.events import Event
from hermes_spark.state.agent_state import DONE, NEW, WAITING, AgentState, CallState, Decision, Turn
from hermes_spark.state.records import Lapsed

KEPT_DECISIONS = 16
"""Early decisions kept for a session; the oldest goes first."""
ENDED_TURNS = 8
"""Ended turns that a session remembers, to tell a late approval from an early one."""

TAKEN, KEPT, STALE = "taken", "kept", "stale"


def effect_of(state: AgentState | None, event: Event) -> str:
    """What taking this `approval` does: `taken` (it decides), `kept` (its call does not wait yet) or `stale` (too late).

    It is too late when the turn has ended or is ending, when somebody decided before, and when the call needs no approval.
    """
    if state is None:
        return KEPT
    turn = state.turn
    if turn is not None and turn.id == event.turn_id:
        call = next((call for call in turn.past_calls + turn.calls if call.id == event.call_id), None)
        if turn.stopping or (call is not None and call.status != WAITING):
            return STALE
        if call is not None:
            return TAKEN
    elif event.turn_id in state.ended_turns:
        return STALE
    return STALE if _kept_for(state, event.turn_id, event.call_id) else KEPT


def approval(state: AgentState, event: Event, effect: str, time_ms: int) -> AgentState:
    """The state after an `approval` event that was taken with `effect`; those of older journals have none and do nothing."""
    decision = Decision(event.turn_id, event.call_id, event.decision == "approve", event.by, event.reason)
    if effect == KEPT:
        return replace(state, decisions=(*state.decisions, decision)[-KEPT_DECISIONS:])
    if effect == TAKEN and state.turn is not None and state.turn.id == event.turn_id:
        return _decide(state, state.turn, decision, time_ms)
    return state


def ask(state: AgentState, turn: Turn, time_ms: int) -> AgentState:
    """`state` with `turn`, which has new calls: those that wait and were decided early wait no more."""
    state = close_if_done(state, turn)
    for call in turn.calls:
        decision = _kept_for(state, turn.id, call.id) if call.status == WAITING else None
        if decision is not None and state.turn is not None:
            kept = tuple(other for other in state.decisions if other != decision)
            state = _decide(replace(state, decisions=kept), state.turn, decision, time_ms)
    return state


def lapsed(state: AgentState, record: Lapsed) -> AgentState:
    """Nobody has decided in time: the call is denied."""
    turn = state.turn
    if turn is None or turn.id != record.turn_id:
        return state
    return _decide(
        state,
        turn,
        Decision(turn.id, record.call_id, approve=False, by="", reason="nobody decided in time"),
        record.time_ms,
    )


def ended(state: AgentState, turn_id: str) -> AgentState:
    """`state` when a turn has ended: no decision is kept for it, and it is remembered."""
    kept = tuple(decision for decision in state.decisions if decision.turn_id != turn_id)
    return replace(state, decisions=kept, ended_turns=(*state.ended_turns, turn_id)[-ENDED_TURNS:])


def clocked(state: AgentState, time_ms: int) -> AgentState:
    """`state` after a record of `time_ms`, with the clock of its turn started, stopped or going on."""
    turn = state.turn
    if turn is None:
        return state
    if not turn.began_ms:
        turn = replace(turn, began_ms=time_ms)
    if _waits(turn) != bool(turn.waiting_since_ms):
        if turn.waiting_since_ms:
            paused_ms = turn.paused_ms + time_ms - turn.waiting_since_ms
            turn = replace(turn, paused_ms=paused_ms, waiting_since_ms=0)
        else:
            turn = replace(turn, waiting_since_ms=time_ms)
    return state if turn is state.turn else replace(state, turn=turn)


def time_left_ms(turn: Turn, now_ms: int) -> int:
    """How long the turn may still run, without the time it waited and the time nobody owned it."""
    return turn.limits.turn_timeout_ms - (now_ms - turn.began_ms - turn.paused_ms)


def _waits(turn: Turn) -> bool:
    statuses = {call.status for call in turn.calls}
    return WAITING in statuses and statuses <= {WAITING, DONE} and not turn.stopping


def _kept_for(state: AgentState, turn_id: str, call_id: str) -> Decision | None:
    return next((kept for kept in state.decisions if (kept.turn_id, kept.call_id) == (turn_id, call_id)), None)


def _decide(state: AgentState, turn: Turn, decision: Decision, time_ms: int) -> AgentState:
    call = next((call for call in turn.calls if call.id == decision.call_id), None)
    if call is None or call.status != WAITING or turn.stopping:
        return state
    if decision.approve:
        return replace(state, turn=with_call(turn, replace(call, status=NEW)))
    turn = with_call(turn, _denied(call, decision, time_ms))
    return close_if_done(state, replace(turn, errors=turn.errors + 1))


def _denied(call: CallState, decision: Decision, time_ms: int) -> CallState:
    by = f" by {decision.by}" if decision.by else ""
    why = f": {decision.reason}" if decision.reason else ""
    return replace(
        call, status=DONE, result="denied", content=f"not run: the call was denied{by}{why}", done_ms=time_ms
    )

"""What happens to the calls of a turn: their intents and results, and what a new owner's resumption does to them. Pure.

Used by `turn.apply`, which holds the picture of a whole turn. Every function takes a record in any state; one that no longer
fits changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from hermes_spark.agent import context, undo
from hermes_spark.state.agent_state import DONE, NEW, SENT, AgentState, CallState, Turn
from hermes_spark.state.records import Intent, Resumed, Returned

RESUMPTIONS = 3
"""The resumption of this number in a row, without progress in between, ends the turn: it may be what kills its hosts."""


def intent(state: AgentState, record: Intent) -> AgentState:
    """The call is about to be sent."""
    turn = state.turn
    call = _open_call(turn, record.call_id)
    if turn is None or call is None or call.status != NEW:
        return state
    sent = replace(call, status=SENT, policy=record.policy, sent_ms=record.time_ms, undo=record.undo)
    return replace(state, turn=with_call(turn, sent))


def returned(state: AgentState, record: Returned) -> AgentState:
    """The call has its result; the last one of a step closes it."""
    turn = state.turn
    call = _open_call(turn, record.call_id)
    if turn is None or call is None:
        return state
    done = replace(
        call,
        status=DONE,
        result=record.status,
        content=record.content,
        attempts=record.attempts,
        done_ms=record.time_ms,
    )
    turn = progressed(with_call(turn, done))
    if record.status != "ok":
        turn = replace(turn, errors=turn.errors + 1)
    return close_if_done(state, turn)


def close_if_done(state: AgentState, turn: Turn) -> AgentState:
    """`state` with `turn`; its step closed if every call of it is done: results enter history in call order."""
    if not all(call.status == DONE for call in turn.calls):
        return replace(state, turn=turn)
    messages = state.messages + context.results(turn.calls, turn.notes)
    turn = replace(turn, past_calls=turn.past_calls + turn.calls, calls=(), notes=())
    return replace(state, turn=turn, messages=messages)


def resumed(state: AgentState, record: Resumed) -> AgentState:
    """A new owner goes on with the turn; the last resumption allowed ends it, and nothing of it is sent again."""
    turn = state.turn
    if turn is None or turn.id != record.turn_id or record.times != turn.resumptions + 1 or turn.reply is not None:
        return state
    down_ms = 0 if turn.waiting_since_ms else record.time_ms - state.updated_ms
    turn = replace(turn, resumptions=record.times, paused_ms=turn.paused_ms + down_ms)
    if turn.resumptions - turn.resumptions_before < RESUMPTIONS:
        return replace(state, turn=turn)
    reason = f"resumed: the service restarted {RESUMPTIONS} times within this turn, which made no progress in between"
    if turn.stopping and all(call.status != SENT for call in turn.calls):
        turn = undo.given_up(turn, record.time_ms)
    turn = replace(turn, calls=settled(turn.calls, record.time_ms), stopping=turn.stopping or reason)
    return replace(state, turn=progressed(turn))


def progressed(turn: Turn) -> Turn:
    """`turn` when it has made progress: resumptions are counted anew."""
    return replace(turn, resumptions_before=turn.resumptions) if turn.resumptions else turn


def settled(calls: Iterable[CallState], time_ms: int) -> tuple[CallState, ...]:
    """`calls` as an ending turn leaves them: one never sent is `refused`, one without its result is `unknown`."""
    return tuple(call if call.status == DONE else _abandoned(call, time_ms) for call in calls)


def _abandoned(call: CallState, time_ms: int) -> CallState:
    if call.status == SENT:
        return replace(
            call, status=DONE, result="unknown", content="the turn ended without its result", done_ms=time_ms
        )
    return replace(call, status=DONE, result="refused", content="not run: the turn ended first", done_ms=time_ms)


def _open_call(turn: Turn | None, call_id: str) -> CallState | None:
    if turn is None:
        return None
    return next((call for call in turn.calls if call.id == call_id and call.status != DONE), None)


def with_call(turn: Turn, call: CallState) -> Turn:
    """`turn` with `call` in place of the one of that id."""
    return replace(turn, calls=tuple(call if other.id == call.id else other for other in turn.calls))

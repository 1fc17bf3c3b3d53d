"""Undoing what a turn did that fails or is cancelled: call by call, in reverse order, each undo once. Pure.

Only calls that succeeded are undone, with the tool and the arguments that their intents name. What is not known to have
happened cannot be undone; the outcome says so. Nothing else is rolled back.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from hermes_spark.events import undo_id_of
from hermes_spark.messages import JsonObject
from hermes_spark.state.agent_state import DONE, NEW, SENT, AgentState, CallState, Turn, UndoState
from hermes_spark.state.records import Intent, Returned, UndoSummary

_GIVEN_UP = "given up: the service restarted again and again while undoing"
_NOT_KNOWN = "not tried: whether the call happened is unknown"


def next_undo(turn: Turn) -> tuple[CallState, str, str] | None:
    """The undo that comes next as (the undo as a call, id of the call it undoes, why it cannot be made or empty), or None."""
    done = {undo.call_id: undo for undo in turn.undos}
    for call in reversed(turn.past_calls + turn.calls):
        undo = done.get(call.id)
        if call.undo is None or call.result != "ok" or (undo is not None and undo.status == DONE):
            continue
        arguments, problem = (undo.arguments, "") if undo is not None else _arguments(call)
        status = NEW if undo is None else SENT
        name, id_ = call.undo.tool, undo_id_of(call.id)
        return CallState(id_, name, arguments, call.step, status, policy="idempotent"), call.id, problem
    return None


def intent(state: AgentState, record: Intent) -> AgentState:
    """The undo is about to be sent."""
    turn = state.turn
    call = _undoable(turn, record.undoes)
    if turn is None or call is None or call.undo is None or any(undo.call_id == call.id for undo in turn.undos):
        return state
    undo = UndoState(call.id, record.call_id, call.undo.tool, record.arguments, sent_ms=record.time_ms)
    return replace(state, turn=replace(turn, undos=(*turn.undos, undo)))


def returned(state: AgentState, record: Returned) -> AgentState:
    """The undo has its result, or could not be made at all."""
    turn = state.turn
    call = _undoable(turn, record.undoes)
    if turn is None or call is None or call.undo is None:
        return state
    undo = next((undo for undo in turn.undos if undo.call_id == call.id), None)
    if undo is None:
        undo = UndoState(call.id, record.call_id, call.undo.tool, {})
    if undo.status == DONE:
        return state
    undo = replace(undo, status=DONE, result=record.status, content=record.content, done_ms=record.time_ms)
    # An undo that came back is progress.
    return replace(state, turn=replace(_with_undo(turn, undo), resumptions_before=turn.resumptions))


def given_up(turn: Turn, time_ms: int) -> Turn:
    """`turn` with all undos settled that are not yet."""
    while (coming := next_undo(turn)) is not None:
        call, undoes, _ = coming
        undo = UndoState(undoes, call.id, call.name, call.arguments, DONE, "unknown", _GIVEN_UP, done_ms=time_ms)
        if call.status == NEW:
            undo = replace(undo, result="not_run")
        turn = _with_undo(turn, undo)
    return turn


def summaries(turn: Turn) -> tuple[UndoSummary, ...]:
    """What the outcome of a turn without an answer says: the undos in the order they were made, then what was not tried."""
    made = [
        UndoSummary(u.call_id, u.id, u.tool, u.arguments, u.result, u.content, u.sent_ms, u.done_ms) for u in turn.undos
    ]
    unsure = [
        UndoSummary(call.id, undo_id_of(call.id), call.undo.tool, {}, "not_run", _NOT_KNOWN, 0, 0)
        for call in turn.past_calls + turn.calls
        if call.undo is not None and call.result in ("timeout", "unknown")
    ]
    return (*made, *unsure)


def _undoable(turn: Turn | None, call_id: str) -> CallState | None:
    calls = () if turn is None or turn.reply is not None else turn.past_calls + turn.calls
    return next((call for call in calls if call.id == call_id and call.result == "ok"), None)


def _with_undo(turn: Turn, undo: UndoState) -> Turn:
    others = tuple(other for other in turn.undos if other.call_id != undo.call_id)
    return replace(turn, undos=(*others, undo))


def _arguments(call: CallState) -> tuple[JsonObject, str]:
    """The arguments of the call's undo, or a sentence why they cannot be had."""
    if call.undo is None:
        raise ValueError(f"call {call.id} names no undo")
    try:
        result = msgspec.json.decode(call.content)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        result = call.content
    known = {"arguments": call.arguments, "result": result}
    arguments: JsonObject = {}
    for name, pointer in call.undo.arguments.items():
        value: object = known
        for part in pointer.split("/")[1:]:
            if not isinstance(value, dict) or part not in value:
                return {}, f"not made: its argument {name} is to come from {pointer}, which the call does not have"
            value = value[part]
        arguments[name] = value
    return arguments, ""

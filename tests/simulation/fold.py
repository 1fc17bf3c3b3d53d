"""Every record of a journal must fit the state that the records before it make: nothing may come from elsewhere.

This finds what a snapshot, a cache or an owner's memory holds and the journal does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hermes_spark.agent import approvals
from hermes_spark.agent.calls import settled
from hermes_spark.agent.turn import apply
from hermes_spark.state.agent_state import DONE, WAITING, AgentState, CallState, Turn
from hermes_spark.state.records import (
    Completed,
    Expired,
    Intent,
    Lapsed,
    Outcome,
    Overdue,
    Record,
    Rejected,
    Resumed,
    Returned,
    SessionRecord,
    Taken,
    TermStarted,
)


def misfits(journal: Iterable[tuple[int, int, Record]]) -> Iterator[str]:
    """A sentence for every (shard, lsn, record) that does not fit."""
    states: dict[str, AgentState] = {}
    for shard, lsn, record in journal:
        if isinstance(record, TermStarted | Rejected):
            continue
        before = states.get(record.session_id)
        if why := _misfit(before, record):
            yield f"record {lsn} of shard {shard} does not follow from those before it ({why}): {record}"
        after = apply(before, record)
        if after is None:
            states.pop(record.session_id, None)
        else:
            states[record.session_id] = after


def _misfit(state: AgentState | None, record: SessionRecord) -> str:
    if isinstance(record, Taken):
        return _taken(state, record)
    if state is None:
        return "there is no such session"
    if isinstance(record, Expired):
        due_ms = state.deadline_ms
        return "" if due_ms is not None and due_ms <= record.time_ms else f"it is due at {due_ms}"
    return _of_turn(state, record)


def _of_turn(state: AgentState, record: SessionRecord) -> str:
    turn = state.turn
    if turn is None:
        return "no turn is open"
    if isinstance(record, Completed | Overdue | Outcome | Resumed | Lapsed) and record.turn_id != turn.id:
        return "another turn is open"
    if isinstance(record, Completed) and (record.step != turn.step or turn.calls or turn.reply is not None):
        return f"step {turn.step} with {len(turn.calls)} calls is open"
    if isinstance(record, Outcome):
        return _outcome(state, record)
    if isinstance(record, Intent | Returned):
        return _call(turn, record)
    if isinstance(record, Lapsed) and record.time_ms < _approve_by(turn.calls, record.call_id):
        return "it was not due"
    return ""


def _call(turn: Turn, record: Intent | Returned) -> str:
    if record.undoes:
        done = {call.id for call in turn.past_calls + turn.calls if call.result == "ok" and call.undo is not None}
        return "" if record.undoes in done else "no such call was made"
    open_calls = {call.id for call in turn.calls if call.status not in (DONE, WAITING)}
    return "" if record.call_id in open_calls else "no such call is open"


def _taken(state: AgentState | None, record: Taken) -> str:
    event = record.event
    seen = state is not None and bool(event.event_id) and event.event_id in state.seen_event_ids
    if record.repeat != seen:
        return f"its event id was{'' if seen else ' not'} seen before"
    if event.type == "approval" and not record.repeat and record.effect != approvals.effect_of(state, event):
        return f"its effect is {approvals.effect_of(state, event)}"
    return ""


def _outcome(state: AgentState, record: Outcome) -> str:
    turn = state.turn
    assert turn is not None
    calls = [(call.id, call.result, call.content) for call in turn.past_calls + settled(turn.calls, record.time_ms)]
    told = [(call.id, call.status, call.content) for call in record.calls]
    if calls != told:
        return f"its calls became {calls}"
    if record.status == "completed" and record.reply != turn.reply:
        return f"its reply is {turn.reply!r}"
    return ""


def _approve_by(calls: tuple[CallState, ...], call_id: str) -> int:
    return next((call.approve_by_ms for call in calls if call.id == call_id and call.status == WAITING), 1 << 62)

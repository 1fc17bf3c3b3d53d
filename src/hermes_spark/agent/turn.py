"""The picture of a turn: what every recorded fact does to an AgentState. Read this first.

::

    Taken ──► queue ──► open turn
                            │
            ┌──────────► Complete ──Completed──┬─ an answer ────────────────► reply ──┐
            │               ▲                  ├─ cut: thrown away ──┐                │
            │               └──────────────────┼─────────────────────┘                ▼
            │                                  └─ calls, errors                    Finish ──Outcome──► next in queue
            │                                          ▼                              ▲
            └── step closed ◄──Returned── Call, Call, ... (each its Intent first)     │
                   ▲                       ▲                                          │
                   └─ denied, Lapsed ─── Wait (a call that needs an approval)         │
                                                                                      │
    cancel, Overdue, a failed completion ──► stopping ── when all calls sent are back │
                                                 └─ Undo, Undo, ... (one by one) ─────┘

`Complete`, `Call`, `Wait`, `Undo` and `Finish` are *effects* (`plan.next_effects` names those wanted now), the words on arrows
are *records*. `apply` alone changes a state. It has no clock, no chance and no I/O: what depends on them is in the records, so
folding a journal gives the state that was lived through. It takes any record in any state: one that no longer fits (a late
answer, a second result, an outcome of an ended turn) changes nothing but `updated_ms`.

Rules that hold throughout:

- At most one turn is open; messages and resets wait in `queue` and are served strictly in the order they were taken.
- The first reason to stop wins, and a turn that has its answer can no longer be stopped.
- A session is forgotten by `Expired` when it is idle; the record is void while a turn is open or an event waits.
- Every message event taken opens a turn, also one cancelled while it waited, so each gets exactly one outcome.
- `messages` keeps the order that `context` describes. A reply that was cut leaves no trace in it, and a turn that ends without
  an answer leaves an assistant message that says so.
"""

from __future__ import annotations

from msgspec.structs import replace

from hermes_spark.agent import approvals, audit, context, undo
from hermes_spark.agent import calls as calls_of
from hermes_spark.events import Event
from hermes_spark.messages import Message, ParsedCall
from hermes_spark.state.agent_state import DONE, WAITING, AgentState, CallState, Queued, Turn
from hermes_spark.state.records import (
    Completed,
    Expired,
    Intent,
    Lapsed,
    Outcome,
    Overdue,
    PlannedCall,
    Resumed,
    Returned,
    SessionRecord,
    Taken,
)

SEEN_EVENT_IDS = 256
"""Producer ids remembered per session; an older repeat is taken as new."""

_EMPTY_REPLY = "your reply was empty; answer the user, or call a tool"
_LAST_WORDS = {"cancelled": "(No answer: the turn was cancelled.)", "failed": "(No answer: the turn failed.)"}
"""What history shows for a turn without an answer; without the reason, which may be somebody else's text."""


_Step = Taken | Completed | Intent | Returned | Resumed | Lapsed | Overdue | Outcome


def apply(state: AgentState | None, record: SessionRecord) -> AgentState | None:
    """The state after `record`; None stands for a session of which nothing is kept, and only an event makes a new one."""
    if state is None and isinstance(record, Taken):
        state = AgentState(record.session_id, created_ms=record.time_ms)
    if state is None:
        return None
    if isinstance(record, Expired):
        return None if state.idle else state
    return replace(approvals.clocked(_step(state, record), record.time_ms), updated_ms=record.time_ms)


def _step(state: AgentState, record: _Step) -> AgentState:
    if isinstance(record, Taken):
        state = _taken(state, record)
    elif isinstance(record, Completed):
        state = _completed(state, record)
    elif isinstance(record, Intent):
        state = (undo if record.undoes else calls_of).intent(state, record)
    elif isinstance(record, Returned):
        state = (undo if record.undoes else calls_of).returned(state, record)
    elif isinstance(record, Resumed):
        state = calls_of.resumed(state, record)
    elif isinstance(record, Lapsed):
        state = approvals.lapsed(state, record)
    elif isinstance(record, Overdue):
        state = _overdue(state, record)
    else:
        state = _outcome(state, record)
    return state


# --- taking events


def _taken(state: AgentState, record: Taken) -> AgentState:
    if record.repeat:
        return state
    event = record.event
    # Of every type: a producer's repeat of a reset or cancel would otherwise hit what came after it.
    seen = (*state.seen_event_ids, event.event_id)[-SEEN_EVENT_IDS:] if event.event_id else state.seen_event_ids
    session_ttl_ms = state.session_ttl_ms if event.session_ttl_ms is None else event.session_ttl_ms
    state = replace(state, seen_event_ids=seen, ttl_ms=record.ttl_ms, session_ttl_ms=session_ttl_ms)
    if event.type == "cancel":
        return _cancel(state, event)
    if event.type == "approval":
        return approvals.approval(state, event, record.effect, record.time_ms)
    return _advance(replace(state, queue=(*state.queue, Queued(record))))


def _advance(state: AgentState) -> AgentState:
    """Serve the queue until a turn is open or nothing waits."""
    while state.turn is None and state.queue:
        state = _serve(replace(state, queue=state.queue[1:]), state.queue[0])
    return state


def _serve(state: AgentState, queued: Queued) -> AgentState:
    event = queued.taken.event
    if event.type == "reset":
        return replace(state, messages=(), memory={})
    messages = context.joined(state.messages, event.messages)
    stopping = queued.stopping
    if not stopping and (not messages or messages[-1].role != "user"):
        stopping = "invalid: the event's last message is not from the user, so there is nothing to answer"
    turn = Turn(
        id=queued.taken.turn_id,
        coordinates=event.coordinates,
        event_id=event.event_id,
        event_ts_ms=event.ts_ms,
        taken_ms=queued.taken.time_ms,
        limits=queued.taken.limits,  # already heed the event's own `max_tokens`: `limits.limits_of`
        tools=event.tools,
        metadata=event.metadata,
        stopping=stopping,
    )
    return replace(state, turn=turn, tools=event.tools, messages=messages)


def _cancel(state: AgentState, event: Event) -> AgentState:
    """Stop the turn that `event` names, open or waiting; without a name the open turn and all messages taken before it."""
    by = f" by {event.by}" if event.by else ""
    why = f": {event.reason}" if event.reason else ""
    reason = f"cancelled: asked for{by}{why}"
    queue = tuple(
        replace(queued, stopping=reason) if _is_meant(event, queued) and not queued.stopping else queued
        for queued in state.queue
    )
    turn = state.turn
    if turn is not None and event.turn_id in ("", turn.id):
        turn = _stop(turn, reason)
    return replace(state, turn=turn, queue=queue)


def _is_meant(cancel: Event, queued: Queued) -> bool:
    return queued.taken.event.type == "message" and cancel.turn_id in ("", queued.taken.turn_id)


def _stop(turn: Turn, reason: str) -> Turn:
    if turn.stopping or turn.reply is not None:
        return turn
    return replace(turn, stopping=reason)


# --- completions


def _completed(state: AgentState, record: Completed) -> AgentState:
    turn = state.turn
    if turn is None or turn.id != record.turn_id or turn.step != record.step or turn.calls or turn.reply is not None:
        return state
    if record.failure:
        return replace(state, turn=_stop(turn, record.failure))
    turn = calls_of.progressed(replace(turn, step=turn.step + 1, usage=turn.usage + record.usage))
    if turn.stopping:
        return replace(state, turn=turn)
    return _read(state, turn, record)


def _read(state: AgentState, turn: Turn, record: Completed) -> AgentState:
    has_text = bool(record.content.strip())
    if record.final:
        return replace(state, turn=_answer(turn, record) if has_text else _stop(turn, _no_answer(record)))
    if record.calls:
        return _ask(state, turn, record, record.errors)
    if record.truncated:
        # Thinking that used up the whole length would do so again.
        thinking = turn.thinking and (has_text or not record.reasoning)
        return replace(state, turn=replace(turn, cuts=turn.cuts + 1, thinking=thinking))
    if record.errors:
        return _ask(state, turn, record, record.errors)
    if has_text:
        return replace(state, turn=_answer(turn, record))
    return _ask(state, turn, record, (_EMPTY_REPLY,))


def _answer(turn: Turn, record: Completed) -> Turn:
    return replace(turn, reply=record.content, truncated=record.truncated)


def _no_answer(record: Completed) -> str:
    if record.truncated and record.reasoning:
        return "no_answer: the last completion was cut before its thinking ended"
    return "no_answer: the last completion held no text"


def _ask(state: AgentState, turn: Turn, record: Completed, notes: tuple[str, ...]) -> AgentState:
    """The model asked for calls, or wrote what could not be read: its message enters history and waits for its results."""
    calls = tuple(_call(planned, record) for planned in record.calls)
    spoken = Message(
        "assistant",
        record.content,
        record.reasoning,
        tuple(ParsedCall(planned.name, planned.arguments, planned.id) for planned in record.calls),
    )
    refused = sum(call.status == DONE for call in calls)
    turn = replace(turn, calls=calls, notes=notes, errors=turn.errors + refused + len(notes))
    state = replace(state, messages=(*state.messages, spoken))
    return approvals.ask(state, turn, record.time_ms)


def _call(planned: PlannedCall, record: Completed) -> CallState:
    call = CallState(planned.id, planned.name, planned.arguments, record.step, approve_by_ms=planned.approve_by_ms)
    if not planned.refusal:
        return replace(call, status=WAITING) if planned.approve_by_ms else call
    return replace(call, status=DONE, result="refused", content=planned.refusal, done_ms=record.time_ms)


# --- ends


def _overdue(state: AgentState, record: Overdue) -> AgentState:
    turn = state.turn
    if turn is None or turn.id != record.turn_id:
        return state
    seconds = turn.limits.turn_timeout_ms / 1000
    return replace(state, turn=_stop(turn, f"deadline: the turn took longer than {seconds:g} s"))


def _outcome(state: AgentState, record: Outcome) -> AgentState:
    turn = state.turn
    if turn is None or turn.id != record.turn_id:
        return state
    calls = calls_of.settled(turn.calls, record.time_ms)
    undone = " What it had changed was undone." if any(undo.status == "ok" for undo in record.undos) else ""
    last = Message("assistant", _LAST_WORDS.get(record.status, record.reply) + undone)
    messages = context.joined(state.messages + context.results(calls, turn.notes), (last,))
    state = replace(
        state,
        turn=None,
        messages=context.trim(context.without_reasoning(messages), turn.limits.history_chars),
        turns=state.turns + 1,
        calls=state.calls + sum(call.sent_ms > 0 for call in turn.past_calls + calls),
        audit_head=audit.hashes(record)[-1],
    )
    return _advance(approvals.ended(state, turn.id))

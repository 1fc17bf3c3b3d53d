"""The records of what an effect brought back. Pure: times come in as arguments, and every decision is made here once.

A host journals what these functions return and applies it with `turn.apply`. Text that came from a model or a tool is made
storable first, because a record that cannot be written or read again would stop its shard for ever.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from hermes_spark.agent import approvals
from hermes_spark.agent.calls import settled
from hermes_spark.agent.limits import limits_of
from hermes_spark.agent.plan import Call, Complete, Finish, Undo
from hermes_spark.agent.undo import summaries
from hermes_spark.events import Event, call_id_of, turn_id_of
from hermes_spark.llm.client import Completion
from hermes_spark.messages import JsonObject, ParsedCall, Usage, is_deeper
from hermes_spark.settings import AgentSettings
from hermes_spark.state.agent_state import AgentState, CallState, Turn
from hermes_spark.state.records import (
    CallSummary,
    Completed,
    Expired,
    Intent,
    Lapsed,
    Outcome,
    Overdue,
    PlannedCall,
    Resumed,
    Returned,
    Taken,
    UndoPlan,
)

REPLY_CHARS = 100_000
"""Characters of an outcome's reply: at most 400 kB of UTF-8, below the 1 MB that a Kafka broker takes by default."""
ARGUMENT_LEVELS = 32
"""Nesting of call arguments that is kept; decoders recurse, and a record must be readable on any stack."""

Check = Callable[[str, JsonObject], str]
"""Why the call (name, arguments) must not run, as a sentence for the model; empty when it may."""
ApproveWithin = Callable[[str], int]
"""How many milliseconds somebody has to approve a call of the named tool; 0: it needs no approval."""
SafeWhenCut = Callable[[str], bool]
"""Whether the named tool may run on the complete calls of a reply that was cut: only one without side effects may."""


def taken(
    state: AgentState | None, event: Event, query_id: str, settings: AgentSettings, batch: int, now_ms: int
) -> Taken:
    """The record of taking `event` into its session, whose state so far is `state`.

    `batch` is the micro-batch that handed it over, -1 for run-ahead. An `event_id` among those the session remembers makes it
    a repeat, which stays without effect.
    """
    repeat = state is not None and bool(event.event_id) and event.event_id in state.seen_event_ids
    return Taken(
        session_id=event.session_id,
        event=event,
        turn_id=turn_id_of(query_id, event.session_id, event.coordinates) if event.type == "message" else "",
        limits=limits_of(settings, event),
        batch=batch,
        time_ms=now_ms,
        repeat=repeat,
        effect=approvals.effect_of(state, event) if event.type == "approval" and not repeat else "",
    )


def completed(
    state: AgentState,
    effect: Complete,
    completion: Completion,
    check: Check,
    safe_when_cut: SafeWhenCut,
    now_ms: int,
) -> Completed:
    """The record of a completion, with its calls numbered and judged. `effect` must still be wanted by `state`.

    Calls beyond the turn's `max_calls` and those that `check` objects to are kept with their refusal. The calls of a cut reply
    are kept only when every one of them is `safe_when_cut`: it may have been about to say something that changes them. The
    final completion keeps none.
    """
    turn = _open_turn(state, effect.turn_id)
    reply = completion.reply
    usable = not effect.final and (not reply.truncated or all(safe_when_cut(call.name) for call in reply.calls))
    calls = reply.calls if usable else ()
    return Completed(
        session_id=effect.session_id,
        turn_id=effect.turn_id,
        step=effect.step,
        content=_storable(reply.content),
        reasoning=_storable(reply.reasoning),
        calls=tuple(_planned(turn, index, call, check) for index, call in enumerate(calls)),
        errors=tuple(map(_storable, reply.errors[: turn.limits.max_calls])),
        truncated=reply.truncated,
        final=effect.final,
        usage=completion.usage,
        time_ms=now_ms,
    )


def with_approvals(record: Completed, approve_within: ApproveWithin) -> Completed:
    """`record` with the deadlines of those calls that need somebody's approval."""

    def deadline(call: PlannedCall) -> PlannedCall:
        within_ms = 0 if call.refusal else approve_within(call.name)
        return replace(call, approve_by_ms=record.time_ms + within_ms) if within_ms else call

    return replace(record, calls=tuple(map(deadline, record.calls)))


def completion_failed(effect: Complete, kind: str, sentence: str, now_ms: int) -> Completed:
    """The record of a completion that did not come about: it ends the turn as `failed` with `kind: sentence`."""
    return Completed(
        session_id=effect.session_id,
        turn_id=effect.turn_id,
        step=effect.step,
        content="",
        reasoning="",
        calls=(),
        errors=(),
        truncated=False,
        final=effect.final,
        usage=Usage(),
        time_ms=now_ms,
        failure=_storable(f"{kind}: {sentence}"),
    )


def intent(effect: Call | Undo, policy: str, deadline_ms: int, now_ms: int, undo: UndoPlan | None = None) -> Intent:
    """The record that must be durable before the first byte of the call, or undo, leaves. `undo` is how the call is undone."""
    call, undoes = effect.call, effect.undoes if isinstance(effect, Undo) else ""
    return Intent(effect.session_id, call.id, call.arguments, policy, deadline_ms, now_ms, undo, undoes)


def returned(effect: Call | Undo, status: str, content: str, attempts: int, now_ms: int) -> Returned:
    """The record of a call's result; `status` is one of those that `Returned` lists."""
    undoes = effect.undoes if isinstance(effect, Undo) else ""
    return Returned(effect.session_id, effect.call.id, status, _storable(content), attempts, now_ms, undoes)


def overdue(session_id: str, turn_id: str, now_ms: int) -> Overdue:
    """The record that the wall-clock limit of an open turn has passed."""
    return Overdue(session_id, turn_id, now_ms)


def expired(state: AgentState, now_ms: int, *, final: bool) -> Expired:
    """The record that nothing is kept of an idle session any more; `final`: with what it ends with, for the sink."""
    return Expired(
        session_id=state.session_id,
        active_ms=state.updated_ms,
        ttl_ms=state.ttl_ms,
        turns=state.turns,
        calls=state.calls,
        created_ms=state.created_ms,
        time_ms=now_ms,
        final=final,
        messages=state.messages if final else (),
        memory=state.memory if final else {},
    )


def lapsed(session_id: str, turn_id: str, call_id: str, now_ms: int) -> Lapsed:
    """The record that nobody has decided about a waiting call in time."""
    return Lapsed(session_id, turn_id, call_id, now_ms)


def resumed(state: AgentState, turn_id: str, now_ms: int) -> Resumed:
    """The record that a new owner goes on with the open turn."""
    return Resumed(state.session_id, turn_id, _open_turn(state, turn_id).resumptions + 1, now_ms)


def outcome(state: AgentState, finish: Finish, now_ms: int) -> Outcome:
    """The outcome of the open turn, with all its calls in order. `finish` must still be wanted by `state`."""
    turn = _open_turn(state, finish.turn_id)
    reply = turn.reply if turn.reply is not None and finish.status == "completed" else ""
    return Outcome(
        session_id=state.session_id,
        turn_id=turn.id,
        coordinates=turn.coordinates,
        event_id=turn.event_id,
        status=finish.status,
        reason=finish.reason,
        reply=reply[:REPLY_CHARS],
        truncated=turn.truncated or len(reply) > REPLY_CHARS,
        steps=turn.step,
        calls=tuple(map(_summary, turn.past_calls + settled(turn.calls, now_ms))),
        usage=turn.usage,
        event_ts_ms=turn.event_ts_ms,
        taken_ms=turn.taken_ms,
        time_ms=now_ms,
        metadata=turn.metadata,
        audit_head=state.audit_head,
        undos=() if finish.status == "completed" else summaries(turn),
    )


def _open_turn(state: AgentState, turn_id: str) -> Turn:
    turn = state.turn
    if turn is None or turn.id != turn_id:
        raise ValueError(
            f"turn {turn_id} is not open; ask next_effects again before recording what an effect brought back"
        )
    return turn


def _planned(turn: Turn, index: int, call: ParsedCall, check: Check) -> PlannedCall:
    name, arguments = _storable(call.name), call.arguments
    refusal = _unstorable(arguments)
    if refusal:
        arguments = {}
    elif index >= turn.limits.max_calls:
        refusal = f"not run: at most {turn.limits.max_calls} calls are run at once"
    else:
        refusal = _storable(check(name, arguments))
    return PlannedCall(call_id_of(turn.id, turn.step, index), name, arguments, refusal)


def _summary(call: CallState) -> CallSummary:
    return CallSummary(
        id=call.id,
        name=call.name,
        arguments=call.arguments,
        status=call.result,
        content=call.content,
        step=call.step,
        attempts=call.attempts,
        sent_ms=call.sent_ms,
        done_ms=call.done_ms,
    )


def _storable(text: str) -> str:
    """`text` with a question mark for every lone surrogate, which UTF-8 cannot hold."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _unstorable(arguments: JsonObject) -> str:
    """Why `arguments` cannot be kept in a record; empty when they can."""
    if is_deeper(arguments, ARGUMENT_LEVELS):
        return f"the arguments are nested more than {ARGUMENT_LEVELS} levels deep"
    try:
        msgspec.msgpack.encode(arguments)
    except UnicodeEncodeError:
        return "the arguments hold half of a surrogate pair, which is no character"
    except OverflowError:
        return "the arguments hold an integer of more than 64 bits"
    return ""

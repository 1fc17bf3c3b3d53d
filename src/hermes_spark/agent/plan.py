"""What a turn wants done next, decided from its state alone. See `turn` for what the facts do to the state."""

from __future__ import annotations

import msgspec

from hermes_spark.agent import undo
from hermes_spark.agent.limits import is_final, max_tokens
from hermes_spark.state.agent_state import DONE, SENT, WAITING, AgentState, CallState, Turn


class Complete(msgspec.Struct, frozen=True):
    """Ask the model. The host renders `context.prompt(state, ...)` when it starts this."""

    session_id: str
    turn_id: str
    step: int
    final: bool
    """Without tools."""
    max_tokens: int
    thinking: bool

    @property
    def key(self) -> tuple[str, str]:
        """What makes this effect one: asked for again while it runs, it is not started twice."""
        return (self.turn_id, f"complete/{self.step}")


class Call(msgspec.Struct, frozen=True):
    """Run a tool call. With `call.status == "sent"` an earlier owner may have sent it: `call.policy` says what to do then."""

    session_id: str
    turn_id: str
    call: CallState

    @property
    def key(self) -> tuple[str, str]:
        """The call's id: one call, one effect."""
        return (self.turn_id, self.call.id)


class Wait(msgspec.Struct, frozen=True):
    """Nothing but time: append `act.lapsed` when `call.approve_by_ms` has passed."""

    session_id: str
    turn_id: str
    call: CallState

    @property
    def key(self) -> tuple[str, str]:
        """The call that waits."""
        return (self.turn_id, f"wait/{self.call.id}")


class Undo(msgspec.Struct, frozen=True):
    """Undo a call of a turn that ends without an answer. Sent before or not, it is sent (again) under the same key."""

    session_id: str
    turn_id: str
    call: CallState
    """The undo itself, as a call."""
    undoes: str
    problem: str
    """Why it cannot be made: record this as its result."""

    @property
    def key(self) -> tuple[str, str]:
        """The undo's id: one undo, one effect."""
        return (self.turn_id, self.call.id)


class Finish(msgspec.Struct, frozen=True):
    """Record the outcome (`act.outcome`)."""

    session_id: str
    turn_id: str
    status: str
    """`completed`, `failed` or `cancelled`."""
    reason: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """One outcome per turn."""
        return (self.turn_id, "finish")


Effect = Complete | Call | Wait | Undo | Finish


def next_effects(state: AgentState) -> tuple[Effect, ...]:
    """The effects that `state` wants now; empty when no turn is open. Asked again after every record.

    The same effect is named until a record settles it, so a host compares keys with what it already runs. An effect no longer
    named is no longer wanted: its task may be cancelled, and nothing it brings back needs recording. A sent call stays
    wanted until its result is recorded, also while the turn is being stopped.
    """
    turn = state.turn
    if turn is None:
        return ()
    if turn.stopping:
        return _stop(state.session_id, turn)
    if turn.calls:
        return tuple(
            (Wait if call.status == WAITING else Call)(state.session_id, turn.id, call)
            for call in turn.calls
            if call.status != DONE
        )
    if turn.reply is not None:
        return (Finish(state.session_id, turn.id, "completed"),)
    if turn.step >= turn.limits.max_steps:
        sentence = f"no_answer: the model gave no answer in {turn.step} completions"
        return _undo_or(Finish(state.session_id, turn.id, "failed", sentence), turn)
    return (Complete(state.session_id, turn.id, turn.step, is_final(turn), max_tokens(turn), turn.thinking),)


def _stop(session_id: str, turn: Turn) -> tuple[Effect, ...]:
    # A call that was sent has happened or not; the turn does not end before that is recorded. One that was not never is.
    under_way = tuple(Call(session_id, turn.id, call) for call in turn.calls if call.status == SENT)
    if under_way:
        return under_way
    kind = turn.stopping.partition(":")[0]
    return _undo_or(Finish(session_id, turn.id, "cancelled" if kind == "cancelled" else "failed", turn.stopping), turn)


def _undo_or(finish: Finish, turn: Turn) -> tuple[Effect, ...]:
    """The undo that comes next, one at a time; `finish` when there is none."""
    coming = undo.next_undo(turn)
    return (finish,) if coming is None else (Undo(finish.session_id, turn.id, *coming),)

"""What a turn wants done next, decided from its state alone. See `turn` for what the facts do to the state."""

from __future__ import annotations

import msgspec

from hermes_spark.state.agent_state import AgentState, CallState


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
    """Run a tool call. With `call.status == "sent"` an earlier owner may have sent it already: never send it again."""

    session_id: str
    turn_id: str
    call: CallState

    @property
    def key(self) -> tuple[str, str]:
        """The call's id: one call, one effect."""
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


Effect = Complete | Call | Finish


def next_effects(state: AgentState) -> tuple[Effect, ...]:
    """The effects that `state` wants now; empty when no turn is open. Asked again after every record."""
    raise NotImplementedError

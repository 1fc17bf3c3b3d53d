"""The bounds of a turn: what they are, which completion is the last one, and how long it may be. And that of a session."""

from __future__ import annotations

from hermes_spark.events import Event
from hermes_spark.settings import AgentSettings
from hermes_spark.state.agent_state import AgentState, Turn
from hermes_spark.state.records import Limits

CUT_DOUBLINGS = 2
"""A cut reply is asked for again with twice the length, then four times, and no more."""


def limits_of(settings: AgentSettings, event: Event) -> Limits:
    """The bounds of the turn that `event` causes, as its `Taken` record keeps them.

    The event's own `max_tokens` can lower the setting, never raise it.
    """
    tokens = settings.max_tokens if event.max_tokens is None else min(event.max_tokens, settings.max_tokens)
    return Limits(
        max_steps=settings.max_steps,
        max_tokens=tokens,
        token_budget=settings.token_budget,
        turn_timeout_ms=settings.turn_timeout_ms,
        max_errors=settings.max_errors,
        max_calls=settings.max_calls,
        history_chars=settings.history_chars,
    )


def time_to_live_ms(state: AgentState | None, event: Event, default_ms: int) -> int:
    """How long the session is kept without activity after `event`, as its `Taken` record keeps it; 0: for ever.

    What the event says for itself goes before what it says for the session, that before what an earlier event said for the
    session (`state`), and that before the setting, `default_ms`.
    """
    earlier = None if state is None else state.session_ttl_ms
    choices = (event.ttl_ms, event.session_ttl_ms, earlier)
    return next((choice for choice in choices if choice is not None), default_ms)


def is_final(turn: Turn) -> bool:
    """Whether the next completion is made without tools, so that an answer is forced.

    True for the last step, when the errors told to the model have reached their bound, and when the token budget is used up.
    """
    limits = turn.limits
    spent = turn.usage.prompt_tokens + turn.usage.completion_tokens
    return turn.step + 1 >= limits.max_steps or turn.errors >= limits.max_errors or spent >= limits.token_budget


def max_tokens(turn: Turn) -> int:
    """New tokens of the next completion: the limit, doubled per cut reply, at most to four times."""
    return turn.limits.max_tokens << min(turn.cuts, CUT_DOUBLINGS)

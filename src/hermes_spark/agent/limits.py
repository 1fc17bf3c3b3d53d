"""The bounds of a turn: which completion is the last one, and how long it may be."""

from __future__ import annotations

from hermes_spark.state.agent_state import Turn


def is_final(turn: Turn) -> bool:
    """Whether the next completion is made without tools, so that an answer is forced.

    True for the last step, when the errors told to the model have reached their bound, and when the token budget is used up.
    """
    limits = turn.limits
    spent = turn.usage.prompt_tokens + turn.usage.completion_tokens
    return turn.step + 1 >= limits.max_steps or turn.errors >= limits.max_errors or spent >= limits.token_budget


def max_tokens(turn: Turn) -> int:
    """New tokens of the next completion: the limit, doubled per cut reply, at most four times."""
    return turn.limits.max_tokens * min(4, int(2**turn.cuts))

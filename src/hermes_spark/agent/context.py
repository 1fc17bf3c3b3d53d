"""What the model is shown: the messages of a session, kept in an order that every chat template renders.

The order is `user`, then `assistant`, then either the next `user` or the `tool` messages that answer the assistant: first the
results of its calls in call order (templates carry no call ids, results are matched by position), then one message per piece
of its reply that could not be read. After `tool` messages comes an `assistant` message. Only the first message of all may be
an `assistant` one before any `user` has spoken (a greeting). An *exchange* is a user message and all that follows it up to
the next one.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from hermes_spark.messages import Message, ParsedCall
from hermes_spark.state.agent_state import AgentState, CallState

_json = msgspec.json.Encoder()
_SAID_FIRST = {
    "ok": "",
    "timeout": "error (timeout): ",
    "unknown": "error (unknown outcome): ",
    "not_run": "error (not run): ",
    "denied": "error (denied): ",
}
"""What stands before a result, by its status, so that a failure cannot pass for an answer; `error: ` for all others."""


def prompt(state: AgentState, system_prompt: str) -> tuple[Message, ...]:
    """The messages of the next completion: the system prompt unless it is empty, then history and open turn.

    When they hold more than the turn's `history_chars`, the oldest exchanges are left out, of this prompt only; the exchange
    of the open turn is always shown whole, because a model that does not see a result asks for the call again.
    """
    messages = state.messages
    if state.turn is not None:
        messages = messages[_newest_that_fit(messages, _sizes(messages), state.turn.limits.history_chars) :]
    if not system_prompt:
        return messages
    return (Message("system", system_prompt), *messages)


def joined(history: tuple[Message, ...], new: Iterable[Message]) -> tuple[Message, ...]:
    """`history` followed by `new`; neighbours of one role (user or assistant) become one message with a blank line between.

    An event may bring several user messages in a row, which some templates refuse.
    """
    messages = list(history)
    for message in new:
        last = messages[-1] if messages else None
        if last is not None and last.role == message.role and not last.calls:
            messages[-1] = replace(last, content=f"{last.content}\n\n{message.content}")
        else:
            messages.append(message)
    return tuple(messages)


def results(calls: Iterable[CallState], notes: Iterable[str]) -> tuple[Message, ...]:
    """The `tool` messages that close a step: the results in call order, then what could not be read in the reply."""
    answered = [Message("tool", _SAID_FIRST.get(call.result, "error: ") + call.content) for call in calls]
    return (*answered, *[Message("tool", f"error: {note}") for note in notes])


def without_reasoning(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """`messages` without what was thought in the newest exchange, which has ended; older ones hold no reasoning any more.

    Templates show thinking only within the turn it belongs to.
    """
    start = len(messages)
    while start and messages[start - 1].role != "user":
        start -= 1
    ended = [replace(message, reasoning="") if message.reasoning else message for message in messages[start:]]
    return (*messages[:start], *ended)


def trim(messages: tuple[Message, ...], max_chars: int) -> tuple[Message, ...]:
    """The newest part of a history whose last turn has ended, in at most `max_chars` characters where that is possible.

    The oldest exchanges go first, whole. When the newest alone is too long, its oldest assistant messages go, each with all
    its results; its user message and its last message stay, whatever their length.
    """
    sizes = _sizes(messages)
    first = _newest_that_fit(messages, sizes, max_chars)
    rest = first + 1
    excess = sum(sizes[first:]) - max_chars
    while excess > 0:
        following = next((i for i in range(rest + 1, len(messages)) if messages[i].role == "assistant"), None)
        if following is None:
            break
        excess -= sum(sizes[rest:following])
        rest = following
    return messages[first : first + 1] + messages[rest:]


def _newest_that_fit(messages: tuple[Message, ...], sizes: list[int], max_chars: int) -> int:
    """Where the oldest exchange begins that is kept; the newest is kept even when it does not fit."""
    total = 0
    start = -1
    for i in range(len(messages) - 1, -1, -1):
        total += sizes[i]
        if start >= 0 and total > max_chars:
            return start
        if messages[i].role == "user":
            start = i
    return 0


def _sizes(messages: tuple[Message, ...]) -> list[int]:
    """Characters of each message: text, thinking, names and JSON arguments of calls."""
    return [len(m.content) + len(m.reasoning) + (_calls_size(m.calls) if m.calls else 0) for m in messages]


def _calls_size(calls: tuple[ParsedCall, ...]) -> int:
    size = 0
    for call in calls:
        size += len(call.name) + len(_json.encode(call.arguments).decode())
    return size

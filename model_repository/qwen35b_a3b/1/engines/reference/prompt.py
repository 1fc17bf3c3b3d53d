"""Reads a rendered prompt: token ids to turns, tools, tool results, and how the reply must begin.

Turn borders are taken from token ids, never from text, so a user who writes `<|im_end|>` does not end a turn. Every departure
from the format raises `InvalidRequest`: this is what makes the engine a test of prompt rendering.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from itertools import pairwise

import numpy as np

from engines import Ids, InvalidRequest
from engines.reference.calls import AskedCall, read_call
from engines.reference.toolbox import CallFormat, Toolbox, read_toolbox
from engines.reference.vocabulary import Markup, Vocabulary

CACHED_TURNS = 4096
CACHED_TURN_TOKENS = 2048
"""Longer turns are read anew each time, so the cache stays below 4096 x 8 kB of keys."""


class Thinking(Enum):
    """How the reply begins."""

    OPEN = "open"
    """The prompt has opened the think block; the reply starts inside."""
    OFF = "off"
    """The prompt holds an empty think block: no thinking."""
    UNOPENED = "unopened"
    """The prompt ends after the role line (Qwen3): the reply opens the block itself."""


@dataclass(frozen=True)
class Turn:
    """One message as rendered."""

    role: str
    text: str
    """After the role line."""
    responses: tuple[str, ...] = ()
    """Tool results, when the turn consists of them."""
    calls: tuple[AskedCall, ...] = ()
    """What an assistant turn asked for."""

    @property
    def is_question(self) -> bool:
        """A user turn that is not made of tool results."""
        return self.role == "user" and not self.responses


@dataclass(frozen=True)
class ToolResult:
    """What a tool said, and what it was asked. `call` is None for a result without a call, such as a note on a bad reply."""

    call: AskedCall | None
    content: str


@dataclass(frozen=True)
class Prompt:
    """All that the planner looks at."""

    toolbox: Toolbox | None
    """None: the prompt offers no tools."""
    question: str
    """The last real user message."""
    results: tuple[ToolResult, ...]
    """Of this user turn, all steps together."""
    steps: int
    """Assistant turns since the question."""
    thinking: Thinking


class PromptReader:
    """Reads prompts over one vocabulary; keeps turns read lately, since prompts of a session repeat them."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._cached_turn = lru_cache(CACHED_TURNS)(self._read_turn)
        self._cached_toolbox = lru_cache(256)(read_toolbox)

    def read(self, ids: Ids) -> Prompt:
        """The prompt behind `ids`. Raises `InvalidRequest`."""
        turns, tail = self._split(ids)
        _check_order(turns)
        last = max((index for index, turn in enumerate(turns) if turn.is_question), default=-1)
        if last < 0:
            raise InvalidRequest("the prompt holds no user message")
        since = turns[last + 1 :]
        toolbox = self._cached_toolbox(turns[0].text) if turns[0].role == "system" else None
        thinking = _read_tail(tail)
        if thinking is Thinking.OPEN or (toolbox is not None and toolbox.format is CallFormat.QWEN35):
            _check_think_blocks(since)
        if toolbox is not None and toolbox.format is CallFormat.QWEN35 and thinking is Thinking.UNOPENED:
            raise InvalidRequest("the prompt ends without a think block, which the format of its tools demands")
        return Prompt(
            toolbox=toolbox,
            question=turns[last].text.strip(),
            results=_results(since),
            steps=sum(turn.role == "assistant" for turn in since),
            thinking=thinking,
        )

    def _split(self, ids: Ids) -> tuple[list[Turn], str]:
        """The closed turns, and the text after the last turn's opening."""
        vocabulary = self._vocabulary
        if ids.min() < 0 or ids.max() >= vocabulary.size:
            raise InvalidRequest(
                f"the prompt holds ids outside 0 to {vocabulary.size - 1}; client and model must use the same tokenizer"
            )
        opens = np.flatnonzero(ids == vocabulary.ids[Markup.TURN_OPEN])
        closes = np.flatnonzero(ids == vocabulary.ids[Markup.TURN_CLOSE])
        if len(opens) == 0 or opens[0] != 0:
            raise InvalidRequest("the prompt does not begin with <|im_start|>")
        if len(opens) != len(closes) + 1 or (closes < opens[:-1]).any() or (closes > opens[1:]).any():
            raise InvalidRequest("the prompt's <|im_start|> and <|im_end|> do not alternate, ending with an open turn")
        turns = []
        for open_at, close_at, next_at in zip(opens, closes, opens[1:], strict=False):
            if vocabulary.text(ids[close_at + 1 : next_at]) != "\n":
                raise InvalidRequest("between <|im_end|> and <|im_start|> there must be one line end and nothing else")
            body = ids[open_at + 1 : close_at]
            read = self._cached_turn if len(body) <= CACHED_TURN_TOKENS else self._read_turn
            turns.append(read(body.tobytes()))
        return turns, vocabulary.text(ids[opens[-1] + 1 :])

    def _read_turn(self, body: bytes) -> Turn:
        ids = np.frombuffer(body, dtype=np.int32)
        role, line_end, text = self._vocabulary.text(ids).partition("\n")
        if role not in ("system", "user", "assistant") or not line_end:
            raise InvalidRequest(f"a turn must begin with the line system, user or assistant, not {role[:40]!r}")
        if role == "user":
            return Turn(role, text, responses=self._responses(ids))
        if role == "assistant":
            return Turn(role, text, calls=self._calls(ids))
        return Turn(role, text)

    def _responses(self, ids: Ids) -> tuple[str, ...]:
        """The tool results a user turn is made of; none if it is a message."""
        found = self._enclosed(ids, Markup.RESPONSE_OPEN, Markup.RESPONSE_CLOSE)
        for content in found:
            if not (content.startswith("\n") and content.endswith("\n") and len(content) > 1):
                raise InvalidRequest("a tool response must stand between line ends inside its <tool_response> tags")
        return tuple(content[1:-1] for content in found)

    def _calls(self, ids: Ids) -> tuple[AskedCall, ...]:
        return tuple(read_call(body) for body in self._enclosed(ids, Markup.CALL_OPEN, Markup.CALL_CLOSE))

    def _enclosed(self, ids: Ids, opening: Markup, closing: Markup) -> list[str]:
        opens = np.flatnonzero(ids == self._vocabulary.ids[opening])
        closes = np.flatnonzero(ids == self._vocabulary.ids[closing])
        if len(opens) != len(closes) or (closes < opens).any() or (closes[:-1] > opens[1:]).any():
            raise InvalidRequest(f"{opening.value} and {closing.value} do not alternate in a turn of the prompt")
        return [self._vocabulary.text(ids[start + 1 : end]) for start, end in zip(opens, closes, strict=True)]


def _check_order(turns: list[Turn]) -> None:
    if any(turn.role == "system" for turn in turns[1:]):
        raise InvalidRequest("the prompt holds a system turn that is not the first")
    for before, after in pairwise(turns):
        if after.responses and before.role != "assistant":
            raise InvalidRequest("the prompt holds tool responses that do not follow an assistant turn")
        if before.calls and len(after.responses) < len(before.calls):
            raise InvalidRequest(
                f"the prompt holds {len(after.responses)} tool responses after {len(before.calls)} tool calls"
            )


def _check_think_blocks(since: list[Turn]) -> None:
    for turn in since:
        if turn.role == "assistant" and not (turn.text.startswith("<think>\n") and "\n</think>\n\n" in turn.text):
            raise InvalidRequest("an assistant turn after the last user message lacks its think block")


def _read_tail(tail: str) -> Thinking:
    for thinking, expected in (
        (Thinking.OPEN, "assistant\n<think>\n"),
        (Thinking.OFF, "assistant\n<think>\n\n</think>\n\n"),
        (Thinking.UNOPENED, "assistant\n"),
    ):
        if tail == expected:
            return thinking
    raise InvalidRequest(
        "the prompt must end with an open assistant turn and, unless its format has none, a think block, "
        f"not with {tail[-40:]!r}"
    )


def _results(since: list[Turn]) -> tuple[ToolResult, ...]:
    """Results in order, each with the call of the turn before at the same place."""
    results: list[ToolResult] = []
    for before, turn in pairwise(since):
        for index, content in enumerate(turn.responses):
            results.append(ToolResult(before.calls[index] if index < len(before.calls) else None, content))
    return tuple(results)

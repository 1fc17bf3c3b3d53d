"""Writes plans in the format that the prompt teaches, exactly as the chat templates render them in a later prompt."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from engines.reference.planner import Plan, PlannedCall
from engines.reference.prompt import Thinking
from engines.reference.toolbox import CallFormat
from engines.reference.vocabulary import Markup, Piece


def write(plan: Plan, thinking: Thinking, call_format: CallFormat) -> list[Piece]:
    """The pieces of a reply."""
    pieces: list[Piece] = []
    if thinking is Thinking.UNOPENED:
        pieces += [Markup.THINK_OPEN, "\n"]
    if thinking is not Thinking.OFF:
        pieces += [plan.thought, "\n", Markup.THINK_CLOSE, "\n\n"]
    if plan.content:
        pieces.append(plan.content)
    for index, call in enumerate(plan.calls):
        if index > 0:
            pieces.append("\n")
        elif plan.content:
            pieces.append("\n\n" if call_format is CallFormat.QWEN35 else "\n")
        pieces += _call(call, call_format)
    return pieces


def text_before(pieces: Iterable[Piece], stop_words: tuple[str, ...]) -> list[Piece]:
    """The pieces up to the first of the stop words, wherever it begins."""
    whole = list(pieces)
    texts = [piece.value if isinstance(piece, Markup) else piece for piece in whole]
    text = "".join(texts)
    end = min((at for word in stop_words if (at := text.find(word)) >= 0), default=len(text))
    kept: list[Piece] = []
    for piece, spelled in zip(whole, texts, strict=True):
        if len(spelled) > end:
            return [*kept, spelled[:end]]
        kept.append(piece)
        end -= len(spelled)
    return kept


def _call(call: PlannedCall, call_format: CallFormat) -> list[Piece]:
    if call_format is CallFormat.HERMES:
        body = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
        return [Markup.CALL_OPEN, f"\n{body}\n", Markup.CALL_CLOSE]
    pieces: list[Piece] = [Markup.CALL_OPEN, f"\n<function={call.name}>\n"]
    for name, value in call.arguments.items():
        pieces += [f"<parameter={name}>\n", _value(value), "\n</parameter>\n"]
    return [*pieces, "</function>\n", Markup.CALL_CLOSE]


def _value(value: Any) -> str:
    """Mappings and lists as JSON, all else as Python writes it: `True`, `None`, `1.5`, text as it is."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list)) else str(value)

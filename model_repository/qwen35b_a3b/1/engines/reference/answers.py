"""The sentences of replies, in the language of the question."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from engines.reference.prompt import ToolResult
from engines.reference.toolbox import JsonObject

MAX_FACT_CHARS = 600
"""Of one tool result."""
MAX_QUOTE_CHARS = 80
_FAILURE = re.compile(r"\s*(?:error\b|exception\b|failed\b|错误|失败)[:：]?\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Phrases:
    """One language."""

    thought_results: str
    thought_plain: str
    thought_call: str
    thought_calls: str
    found: str
    fact: str
    failed: str
    nothing: str
    ask: str
    plain: str
    separator: str
    stop: str


ENGLISH = Phrases(
    thought_results="The tools have answered; the answer repeats what they found.",
    thought_plain="No tool fits this request, so a plain answer follows.",
    thought_call="The request fits the tool {calls}.",
    thought_calls="The user asks for several things, so these tools are called at once: {calls}.",
    found="Here is what I found.",
    fact="{call}: {facts}",
    failed="The call of {call} failed: {reason}",
    nothing="nothing",
    ask="Please tell me {missing}; {tool} needs it.",
    plain='I have no tool that fits this request. You said: "{message}"',
    separator=", ",
    stop=".",
)
CHINESE = Phrases(
    thought_results="工具已经返回结果，据此回答。",
    thought_plain="没有合适的工具，直接回答。",
    thought_call="用户的问题可以用 {calls} 处理。",
    thought_calls="用户一次问了几件事，因此同时调用工具：{calls}。",
    found="查询结果如下。",
    fact="{call}：{facts}",
    failed="{call} 调用失败：{reason}",
    nothing="无",
    ask="请告诉我 {missing}，{tool} 需要它。",
    plain="没有合适的工具能处理这个请求。您说的是：“{message}”",
    separator="，",
    stop="。",
)


def thought_of_calls(calls: Iterable[tuple[str, JsonObject]], phrases: Phrases) -> str:
    """What is thought before tools are called."""
    named = [
        _call_text(name, tuple((key, text_of(value)) for key, value in arguments.items())) for name, arguments in calls
    ]
    form = phrases.thought_call if len(named) == 1 else phrases.thought_calls
    return form.format(calls=phrases.separator.join(named))


def from_results(results: tuple[ToolResult, ...], phrases: Phrases) -> str:
    """An answer that holds the facts of all results, and says which calls have failed."""
    lines = [_result_line(result, phrases) for result in results]
    return "\n".join([phrases.found, *lines])


def ask_for(tool: str, missing: tuple[str, ...], phrases: Phrases) -> str:
    """An answer that asks for what a tool needs."""
    return phrases.ask.format(missing=phrases.separator.join(missing), tool=tool)


def plain(message: str, phrases: Phrases) -> str:
    """An answer without tools."""
    shown = message if len(message) <= MAX_QUOTE_CHARS else message[:MAX_QUOTE_CHARS] + "…"
    return phrases.plain.format(message=shown)


def text_of(value: Any) -> str:
    """A JSON value in words: `tier: gold, orders: (order_id: A-1, status: shipped)`."""
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_inner_text(item)}" for key, item in value.items())
    if isinstance(value, list):
        return "; ".join(_inner_text(item) for item in value)
    return value if isinstance(value, str) else json.dumps(value)


def _inner_text(value: Any) -> str:
    return f"({text_of(value)})" if isinstance(value, dict) else text_of(value)


def _result_line(result: ToolResult, phrases: Phrases) -> str:
    call = _call_text(result.call.name, result.call.arguments) if result.call else "?"
    value = _parsed(result.content)
    failure = _failure(value)
    if failure is not None:
        return phrases.failed.format(call=call, reason=_cut(failure))
    facts = _cut(text_of(value)) or phrases.nothing
    return phrases.fact.format(call=call, facts=facts if facts.endswith((".", "。", "…")) else facts + phrases.stop)


def _parsed(content: str) -> Any:
    try:
        return json.loads(content)
    except (json.JSONDecodeError, RecursionError):
        return content.strip()


def _failure(value: Any) -> str | None:
    """Why a result is no result; None if it is one."""
    if isinstance(value, dict) and value.get("error"):
        return text_of(value["error"])
    if isinstance(value, str) and (found := _FAILURE.match(value)):
        return value[found.end() :] or value
    return None


def _call_text(name: str, arguments: tuple[tuple[str, str], ...]) -> str:
    shown = ", ".join(f"{key} {value}" for key, value in arguments)
    return f"{name} ({_cut(shown)})" if shown else name


def _cut(text: str) -> str:
    return text if len(text) <= MAX_FACT_CHARS else text[:MAX_FACT_CHARS] + "…"

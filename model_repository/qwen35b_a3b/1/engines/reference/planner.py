"""Decides what a reply says: which tools to call with which arguments, or which answer to give.

The rules, in order: answer when the tools of this user turn have answered, or when no tools are offered; else call, for each
thing the message asks for, the tool whose words fit best and whose required arguments the message holds; else answer plainly.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from engines.reference import answers
from engines.reference.arguments import fill
from engines.reference.lexicon import VAGUE
from engines.reference.prompt import Prompt
from engines.reference.spans import QUOTED
from engines.reference.toolbox import JsonObject, Kind, Tool, Toolbox
from engines.reference.words import features, is_chinese

MAX_CALLS = 4
MAX_PARTS = 8
"""Of a message; what follows stays one part."""
MAX_MESSAGE_CHARS = 4000
"""Of a longer message only its beginning is read; the rules are made for requests of a sentence or two."""
LEAST_SCORE = 0.5
"""What a tool's words must score: one word of its own in its description, or one that two tools are named after, do."""

_BORDER = re.compile(
    r"\s*(?:[,;，；、。！？!?]|\.(?=\s|$))+\s*|\s+(?:and|also|then|plus)\s+|以及|并且|并|然后|同时|另外|还有|和|与",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class PlannedCall:
    """A tool call to write."""

    name: str
    arguments: JsonObject


@dataclass(frozen=True)
class Plan:
    """What a reply says: calls, or an answer."""

    thought: str
    content: str = ""
    calls: tuple[PlannedCall, ...] = ()


@dataclass(frozen=True)
class _Request:
    """A part of the message with the tool that fits it; `missing` says what the tool still needs."""

    text: str
    tool: Tool | None = None
    call: PlannedCall | None = None
    missing: tuple[str, ...] = ()


def plan(prompt: Prompt) -> Plan:
    """The plan for a prompt; the same prompt always gets the same plan."""
    chinese = is_chinese(prompt.question)
    phrases = answers.CHINESE if chinese else answers.ENGLISH
    if prompt.results:
        return Plan(phrases.thought_results, answers.from_results(prompt.results, phrases))
    if prompt.toolbox is None:
        return Plan(phrases.thought_plain, answers.plain(prompt.question, phrases))
    requests = _requests(prompt.question[:MAX_MESSAGE_CHARS], prompt.toolbox)
    calls = _distinct([request.call for request in requests if request.call])
    if calls:
        return Plan(answers.thought_of_calls([(call.name, call.arguments) for call in calls], phrases), calls=calls)
    for request in requests:
        if request.tool is not None:
            return Plan(phrases.thought_plain, answers.ask_for(request.tool.name, request.missing, phrases))
    return Plan(phrases.thought_plain, answers.plain(prompt.question, phrases))


def _requests(message: str, toolbox: Toolbox) -> list[_Request]:
    """The message cut into what it asks for; parts that ask for nothing of their own join their neighbours."""
    found: list[_Request] = []
    pending = ""
    for part in _parts(message):
        text = pending + part
        request = _match(text, toolbox)
        if found and _adds_text(request, found[-1], part):
            request = _Request(text)
        elif found and request.tool is None:
            request = _again(part, found[-1]) or request
        if request.tool is not None and (request.call or not found):
            found.append(request)
            pending = ""
        elif found:
            found[-1] = _joined(found[-1], part)
        else:
            pending = text
    return found


def _parts(message: str) -> list[str]:
    """The parts between commas, full stops and words like `and`; each keeps the border before it. Quotes stay whole."""
    kept = [match.span() for match in QUOTED.finditer(message)]
    parts: list[str] = []
    start = 0
    for border in _BORDER.finditer(message):
        if len(parts) == MAX_PARTS - 1:
            break
        if border.start() > start and not any(a < border.start() < b for a, b in kept):
            parts.append(message[start : border.start()])
            start = border.start()
    parts.append(message[start:])
    return [part for part in parts if part.strip()]


def _match(text: str, toolbox: Toolbox) -> _Request:
    """The tool that fits `text` best: those whose required arguments it holds go first."""
    stripped = _without_border(text)
    spoken = features(stripped)
    best: tuple[tuple[bool, float], _Request] | None = None
    for tool in toolbox.tools:
        score = _score(tool, spoken)
        if score < LEAST_SCORE:
            continue
        filled = fill(tool, stripped)
        call = None if filled.missing else PlannedCall(tool.name, filled.arguments)
        rank = (call is not None, score)
        if best is None or rank > best[0]:
            best = (rank, _Request(stripped, tool, call, filled.missing))
    return best[1] if best else _Request(stripped)


def _score(tool: Tool, spoken: frozenset[str]) -> float:
    """How well a tool fits what is spoken of: 0 if it would change something that nobody asked to change."""
    if not tool.changes <= spoken:
        return 0.0
    shared = spoken & tool.weights.keys()
    if shared <= VAGUE:
        return 0.0
    return sum(tool.weights[feature] for feature in shared)


def _adds_text(request: _Request, before: _Request, part: str) -> bool:
    """Whether a part only goes on with the free text of the one before (`search for returns and refunds`)."""
    tool = request.tool
    return tool is not None and tool is before.tool and _takes_text(tool) and not tool.naming & features(part)


def _takes_text(tool: Tool) -> bool:
    return any(parameter.required and parameter.kind is Kind.TEXT for parameter in tool.parameters)


def _again(part: str, before: _Request) -> _Request | None:
    """The tool of the part before once more, if this part names another identifier or person for it (`A-1 and A-2`)."""
    tool = before.tool
    if tool is None or not any(p.required and p.kind in (Kind.IDENTIFIER, Kind.NAME) for p in tool.parameters):
        return None
    if _takes_text(tool):
        return None
    text = _without_border(part)
    filled = fill(tool, text)
    if filled.missing:
        return None
    return _Request(text, tool, PlannedCall(tool.name, filled.arguments))


def _joined(request: _Request, part: str) -> _Request:
    """The request with more text to take arguments from."""
    text = request.text + part
    if request.tool is None:
        return _Request(text)
    filled = fill(request.tool, text)
    call = None if filled.missing else PlannedCall(request.tool.name, filled.arguments)
    return _Request(text, request.tool, call, filled.missing)


def _without_border(text: str) -> str:
    border = _BORDER.match(text)
    return text[border.end() :] if border else text


def _distinct(calls: list[PlannedCall]) -> tuple[PlannedCall, ...]:
    distinct: list[PlannedCall] = []
    for call in calls:
        if call not in distinct:
            distinct.append(call)
    return tuple(distinct[:MAX_CALLS])

"""The tools that a prompt offers, read from its system turn, with what the planner needs to know of each."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from typing import Any

from engines import InvalidRequest
from engines.reference.lexicon import CHANGING
from engines.reference.words import features, spaced

JsonObject = dict[str, Any]


class CallFormat(Enum):
    """How calls are written; the prompt teaches it."""

    QWEN35 = "qwen3.5"
    """`<function=..><parameter=..>` inside `<tool_call>`."""
    HERMES = "hermes"
    """A JSON object inside `<tool_call>`."""


class Kind(Enum):
    """What a parameter wants, as far as its schema and its name tell."""

    CHOICE = "choice"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    LIST = "list"
    OBJECT = "object"
    IDENTIFIER = "identifier"
    EMAIL = "email"
    DATE = "date"
    TEXT = "text"
    """Free text: a query, a title, a message."""
    NAME = "name"
    """Any other string: a person, a city, a word."""


@dataclass(frozen=True)
class Parameter:
    """One parameter of a tool."""

    name: str
    kind: Kind
    required: bool
    schema: JsonObject
    features: frozenset[str]
    """What its name and description speak of."""
    fields: tuple[Parameter, ...] = ()
    """The parameters of an object."""


@dataclass(frozen=True)
class Tool:
    """One tool as the prompt describes it."""

    name: str
    parameters: tuple[Parameter, ...]
    weights: dict[str, float]
    """How much each feature of a message speaks for this tool."""
    changes: frozenset[str]
    """The changing actions that the tool is named after."""
    naming: frozenset[str]
    """What a message says to ask for the tool, rather than to tell it something: its name's words and its choices."""


@dataclass(frozen=True)
class Toolbox:
    """All tools of a prompt."""

    format: CallFormat
    tools: tuple[Tool, ...]


_TEXT_WORDS = (
    "query question q text message body content title subject summary description reason comment note prompt topic keyword"
    " keywords expression"
)
_TEXT_NAMES = frozenset(_TEXT_WORDS.split())
_OPENING = "# Tools\n\n"


def read_toolbox(system: str) -> Toolbox | None:
    """The tools of a system turn; None if it offers none. Raises `InvalidRequest` if its tools block is malformed."""
    start = 0 if system.startswith(_OPENING) else system.find("\n\n" + _OPENING)
    if start < 0:
        return None
    before, opened, rest = system[start:].partition("<tools>\n")
    block, closed, lesson = rest.partition("\n</tools>")
    if not before or not opened or not closed:
        raise InvalidRequest("the system turn announces tools but holds no <tools> block of lines")
    tools = tuple(_read_tool(line) for line in block.split("\n"))
    return Toolbox(_read_format(lesson), _weigh(tools))


def _parameters(schema: JsonObject) -> tuple[Parameter, ...]:
    """The parameters of an object schema, in its order."""
    properties = schema.get("properties") or {}
    required = frozenset(schema.get("required") or ())
    return tuple(
        _parameter(name, spec if isinstance(spec, dict) else {}, name in required) for name, spec in properties.items()
    )


def _read_format(lesson: str) -> CallFormat:
    if "<function=" in lesson and "<parameter=" in lesson:
        return CallFormat.QWEN35
    if '"arguments"' in lesson and "<tool_call>" in lesson:
        return CallFormat.HERMES
    raise InvalidRequest("the system turn lists tools but does not teach how to call them")


def _read_tool(line: str) -> Tool:
    try:
        spec = json.loads(line)
        function = spec.get("function", spec)
        name, description, schema = (
            function["name"],
            function.get("description") or "",
            function.get("parameters") or {},
        )
        parameters = _parameters(schema)
    except (json.JSONDecodeError, AttributeError, KeyError, TypeError):
        raise InvalidRequest(f"a line of the <tools> block is not the JSON of a function: {line[:80]!r}") from None
    own = features(spaced(name))
    weights = dict.fromkeys(features(description), 1.0)
    for parameter in parameters:
        weights.update((feature, 1.0) for feature in parameter.features)
        weights.update((feature, 1.0) for feature in _choice_features(parameter.schema))
    weights.update(dict.fromkeys(own, 2.0))
    choices = [p.features | _choice_features(p.schema) for p in parameters if p.kind is Kind.CHOICE]
    return Tool(name, parameters, weights, own & CHANGING, own.union(*choices))


def _weigh(tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
    """A feature that several tools share tells less."""
    shared: dict[str, int] = {}
    for tool in tools:
        for feature in tool.weights:
            shared[feature] = shared.get(feature, 0) + 1
    return tuple(
        Tool(
            tool.name,
            tool.parameters,
            {feature: weight / shared[feature] for feature, weight in tool.weights.items()},
            tool.changes,
            tool.naming,
        )
        for tool in tools
    )


def _parameter(name: str, schema: JsonObject, required: bool) -> Parameter:  # noqa: FBT001  a property, not a mode
    about = f"{spaced(name)} {schema.get('description') or ''}"
    schema = _of_union(schema)
    kind = _kind(name, schema)
    fields = _parameters(schema) if kind is Kind.OBJECT else ()
    return Parameter(name, kind, required, schema, features(about), fields)


def _choice_features(schema: JsonObject) -> frozenset[str]:
    return frozenset[str]().union(*(features(str(value)) for value in schema.get("enum") or ()))


def _kind(name: str, schema: JsonObject) -> Kind:
    if schema.get("enum"):
        return Kind.CHOICE
    kinds = {
        "integer": Kind.INTEGER,
        "number": Kind.NUMBER,
        "boolean": Kind.BOOLEAN,
        "array": Kind.LIST,
        "object": Kind.OBJECT,
    }
    return kinds.get(_type(schema)) or _string_kind(spaced(name).lower().split(), schema)


def _string_kind(words: list[str], schema: JsonObject) -> Kind:
    format_ = str(schema.get("format", ""))
    if format_ == "email" or "email" in words:
        return Kind.EMAIL
    if format_ == "date" or "date" in words:
        return Kind.DATE
    if words and words[-1] in ("id", "number", "no", "code", "sku"):
        return Kind.IDENTIFIER
    return Kind.TEXT if _TEXT_NAMES.intersection(words) else Kind.NAME


def _type(schema: JsonObject) -> str:
    """The first type that is not null."""
    declared = schema.get("type", "string")
    if isinstance(declared, list):
        return next((name for name in declared if name != "null"), "string")
    return str(declared)


def _of_union(schema: JsonObject) -> JsonObject:
    """The first branch of a union that is not null; a schema that is no union as it is."""
    branches = [branch for key in ("anyOf", "oneOf") for branch in schema.get(key) or () if isinstance(branch, dict)]
    return next((branch for branch in branches if branch.get("type") != "null"), schema)

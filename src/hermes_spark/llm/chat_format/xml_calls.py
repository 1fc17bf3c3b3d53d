"""Qwen3.5's XML calls: one `<function=NAME>` block after another, with a `<parameter=NAME>` for each argument.

The format cannot escape its own tags, so where a value ends is a judgement. A `</parameter>` ends a value only if the next
thing after it could only be markup: another declared parameter not given yet, a `</function>` that is itself followed as one
is, `</tool_call>`, or the end of the text. A whole call quoted inside a value is passed over by counting `<tool_call>` tags.
Whatever is doubtful is refused rather than repaired, so that text quoted in a value cannot become a call of its own.
"""

from __future__ import annotations

from hermes_spark.llm.chat_format.document import (
    CLOSE,
    END,
    FUNCTION,
    FUNCTION_END,
    OPEN,
    PARAMETER,
    PARAMETER_END,
    TEXT,
    Block,
    Document,
    Schemas,
    Unreadable,
)
from hermes_spark.llm.chat_format.values import typed
from hermes_spark.messages import JsonObject, ParsedCall


def read_xml(document: Document, index: int, schemas: Schemas) -> Block:
    """The calls that begin at tag `index`, a `<function=`, and the `</tool_call>` behind them if there is one.

    Several functions in one block are several calls. Missing closing tags are forgiven where nothing else can be meant: the
    `</tool_call>` always, the `</function>` before a `</tool_call>`. Raises `Unreadable`.
    """
    calls: list[ParsedCall] = []
    while True:
        call, index = _read_function(document, index, schemas)
        calls.append(call)
        tag = document.tags[index]
        if tag.kind == PARAMETER_END:
            return Block(tuple(calls), tag.end, cut=True)
        follower = document.follows(index)
        if tag.kind == CLOSE or follower not in (CLOSE, FUNCTION):
            return Block(tuple(calls), tag.end)
        index += 1
        if follower == CLOSE:
            return Block(tuple(calls), document.tags[index].end)


def _read_function(document: Document, index: int, schemas: Schemas) -> tuple[ParsedCall, int]:
    """The call that tag `index` opens, and the index of its last tag.

    That is its `</function>`, the `</tool_call>` where that is missing, or its last `</parameter>` where the text stops.
    """
    name = document.tags[index].name.strip()
    schema = schemas.get(name)
    arguments: JsonObject = {}
    while True:
        follower = document.follows(index)
        if follower == PARAMETER:
            index = _read_parameter(document, index + 1, schema, arguments)
        elif follower in (FUNCTION_END, CLOSE):
            return ParsedCall(name, arguments), index + 1
        elif follower == END and arguments and schema is not None and _has_required(schema, arguments):
            return ParsedCall(name, arguments), index  # T04: whole values only; whether to run it is the loop's choice
        else:
            found = "the text stops" if follower == END else "something else stands"
            raise Unreadable(f"{found} where a parameter or </function> was expected", cut=follower == END)


def _read_parameter(document: Document, index: int, schema: JsonObject | None, arguments: JsonObject) -> int:
    """Add the parameter that tag `index` opens to `arguments`; the index of its `</parameter>`."""
    tag = document.tags[index]
    name = tag.name.strip()
    if name in arguments:
        raise Unreadable(f"parameter {name} is given twice")
    last = _value_end(document, index, _names_after(name, schema, arguments))
    # Exactly one newline on each side is markup; every other one belongs to the value (T13).
    text = document.text[tag.end : document.tags[last].start].removeprefix("\n").removesuffix("\n")
    properties = _properties(schema)
    arguments[name] = typed(text, properties[name], schema or {}) if name in properties else text
    return last


def _value_end(document: Document, index: int, names: set[str] | None) -> int:
    """The index of the `</parameter>` that ends the value behind tag `index`. `names`: which parameters may follow.

    The first one outside of all quoted calls; if there is none, a quoted `<tool_call>` was never closed and the first one
    counts. Raises `Unreadable` for a value that does not end, and for one that ends in doubt.
    """
    depth = 0
    nested: int | None = None
    for at in range(index + 1, len(document.tags)):
        kind = document.tags[at].kind
        if kind == OPEN:
            depth += 1
        elif kind == CLOSE:
            depth = max(0, depth - 1)
        elif kind == PARAMETER_END and _ends_value(document, at, names):
            if depth == 0:
                return _checked(document, index, at)
            if nested is None and document.follows(at) != END:  # at the end it may be the quoted call that is cut
                nested = at
        elif depth == 0:
            _refuse_doubt(document, index, at)
    if nested is not None:
        return _checked(document, index, nested)
    raise Unreadable(f"parameter {document.tags[index].name.strip()} is not closed", cut=True)


def _ends_value(document: Document, at: int, names: set[str] | None) -> bool:
    follower = document.follows(at)
    if follower == PARAMETER:
        return names is None or document.tags[at + 1].name.strip() in names
    if follower == FUNCTION_END:
        return _ends_function(document, at + 1)
    return follower in (CLOSE, END)


def _ends_function(document: Document, at: int) -> bool:
    """Whether the `</function>` at `at` is one: before `</tool_call>` or another call, or with no other tag after it."""
    follower = document.follows(at)
    if follower == TEXT:  # text behind a call whose `</tool_call>` is missing
        return at + 1 == len(document.tags) or document.tags[at + 1].kind == OPEN
    return follower in (CLOSE, FUNCTION, OPEN, END)


def _checked(document: Document, index: int, at: int) -> int:
    """`at`, unless its closing tag is mangled: T19 is refused, the tag must not reach the tool as part of the value."""
    if document.tags[at].name:
        raise Unreadable(f"parameter {document.tags[index].name.strip()} is not closed by </parameter>")
    return at


def _refuse_doubt(document: Document, index: int, at: int) -> None:
    """Raise `Unreadable` if tag `at`, inside the value behind tag `index`, shows that the value should have ended before."""
    name = document.tags[index].name.strip()
    kind = document.tags[at].kind
    if kind == PARAMETER_END and document.follows(at) == PARAMETER:
        following = document.tags[at + 1].name.strip()
        raise Unreadable(f"parameter {name} is followed by {following}, which is not declared or was given before")
    if kind == FUNCTION_END and document.follows(at) == CLOSE and document.follows(at + 1) in (OPEN, END):
        raise Unreadable(f"parameter {name} is not closed")


def _names_after(name: str, schema: JsonObject | None, arguments: JsonObject) -> set[str] | None:
    """The parameters that may follow `name`; None when any may, because the tool or its parameters are not declared."""
    properties = _properties(schema)
    if not properties or (schema or {}).get("additionalProperties"):
        return None
    return set(properties) - set(arguments) - {name}


def _properties(schema: JsonObject | None) -> JsonObject:
    properties = (schema or {}).get("properties")
    return properties if isinstance(properties, dict) else {}


def _has_required(schema: JsonObject, arguments: JsonObject) -> bool:
    required = schema.get("required", [])
    return isinstance(required, list) and all(isinstance(key, str) and key in arguments for key in required)

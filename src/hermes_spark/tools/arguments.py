"""Whether a tool's parameters are a JSON schema, and whether a call's arguments fit it. Pure, and safe on hostile input.

Both sides come from outside: an event may bring its own schema, and arguments are what a model wrote. So schemas are bounded
in size and may refer to nothing outside themselves, and arguments are bounded in depth, count and length before any schema
looks at them. Answers are sentences for the model: short, at most `MAX_PROBLEMS`, each naming its parameter.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterator
from typing import Any, NoReturn

import jsonschema_rs
import msgspec

from hermes_spark.messages import JsonObject

MAX_PROBLEMS = 5
MAX_DEPTH = 32
MAX_VALUES = 10_000
"""Values in one call's arguments, nested ones included."""
MAX_CHARS = 1_000_000
"""Characters of all texts in one call's arguments."""
MAX_SCHEMA_BYTES = 65_536
"""A larger schema would fill a prompt by itself."""

_SHOWN_CHARS = 60
_MASK = "\ue000"  # a private-use character: stands for the value in the validator's messages
_UNSENDABLE = re.compile("[\0\ud800-\udfff]")
_Path = tuple[str | int, ...]


def schema_fault(parameters: JsonObject) -> str:
    """Why `parameters` cannot describe a tool's parameters, as the end of a sentence; empty when they can."""
    if parameters.get("type") != "object":
        return f'parameters must be a JSON schema of "type": "object", got "type": {quoted(parameters.get("type"))}'
    unusable = _unusable(parameters)
    if unusable:
        return f"parameters are no JSON schema that can be used: {unusable[0]}"
    try:
        _validator(msgspec.json.encode(parameters))
    except jsonschema_rs.ValidationError as exc:
        return f"parameters are no JSON schema: {_shorten(exc.message, 200)} (at {path_text(tuple(exc.instance_path))})"
    except (TypeError, ValueError) as exc:
        return f"parameters are no JSON schema that can be used: {_shorten(str(exc), 200)}"
    return ""


def argument_problems(parameters: JsonObject, arguments: JsonObject) -> tuple[str, ...]:
    """What is wrong with `arguments` under the schema `parameters` (one that has no `schema_fault`); empty when they fit.

    At most `MAX_PROBLEMS` sentences such as `content is required` or `day: "2026-01-15" is not of type integer`.
    """
    problems = _unusable(arguments)
    if not problems:
        errors = _validator(msgspec.json.encode(parameters)).iter_errors(arguments)
        problems = [_sentence(error) for error, _ in zip(errors, range(MAX_PROBLEMS), strict=False)]
    return tuple(problems)


def quoted(value: object) -> str:
    """`value` as JSON on one line, cut to a readable length and free of characters that cannot be sent."""
    return _shorten(json.dumps(value, ensure_ascii=False, default=str), _SHOWN_CHARS)


def path_text(path: _Path) -> str:
    """`("items", 0, "name")` as `items[0].name`; the whole is `the arguments`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{_shorten(part, _SHOWN_CHARS)}" for part in path)
    return text.removeprefix(".") or "the arguments"


def _shorten(text: str, chars: int) -> str:
    return _UNSENDABLE.sub("�", text if len(text) <= chars else f"{text[:chars]}…")


@functools.lru_cache(maxsize=1024)
def _validator(schema: bytes) -> jsonschema_rs.Validator:
    """The compiled schema. Compiling checks it against its draft's meta-schema; raises `ValueError` if it is none."""
    if len(schema) > MAX_SCHEMA_BYTES:
        raise ValueError(f"the schema has {len(schema)} bytes, at most {MAX_SCHEMA_BYTES} are taken")
    return jsonschema_rs.validator_for(schema.decode(), mask=_MASK, retriever=_retrieve_nothing)


def _retrieve_nothing(uri: str) -> NoReturn:
    """Schemas come with events: fetching what they name would let a producer call any address from here."""
    raise ValueError("references to other documents are not followed")


def _unusable(value: JsonObject) -> list[str]:
    """What no schema need be asked about: values that cannot be journaled or sent, sizes out of bounds."""
    problems: list[str] = []
    chars = 0
    for count, (path, each) in enumerate(_walk(value), start=1):
        chars += sum(len(text) for text in (each, *path[-1:]) if isinstance(text, str))
        if len(path) > MAX_DEPTH or count > MAX_VALUES or chars > MAX_CHARS:
            return [f"too large: at most {MAX_DEPTH} levels, {MAX_VALUES} values and {MAX_CHARS} characters are taken"]
        fault = _fault_of_value(each) or _fault_of_value(path[-1] if path else "")
        if fault:
            problems.append(f"{path_text(path)} {fault}")
    return problems[:MAX_PROBLEMS]


def _fault_of_value(value: object) -> str:
    if isinstance(value, str) and _UNSENDABLE.search(value):
        return "holds a NUL character or half a surrogate pair; send plain text"
    if isinstance(value, float) and not math.isfinite(value):
        return "is not a finite number"
    if (
        isinstance(value, int) and not -(2**63) <= value < 2**64
    ):  # the range of msgpack, which the journal is written in
        return "is an integer of more than 64 bits; send it as text"
    return ""


def _walk(value: JsonObject) -> Iterator[tuple[_Path, Any]]:
    """`value` and every value below it with its path, in order, without recursion."""
    stack: list[tuple[_Path, Any]] = [((), value)]
    while stack:
        path, each = stack.pop()
        yield path, each
        if isinstance(each, dict):
            stack.extend(((*path, key), each[key]) for key in reversed(each))
        elif isinstance(each, (list, tuple)):
            stack.extend(((*path, index), each[index]) for index in reversed(range(len(each))))


def _sentence(error: jsonschema_rs.ValidationError) -> str:
    kind = error.kind
    path = tuple(error.instance_path)
    if isinstance(kind, jsonschema_rs.ValidationErrorKind.Required):
        return f"{path_text((*path, kind.property))} is required"
    if isinstance(kind, jsonschema_rs.ValidationErrorKind.AdditionalProperties):
        return f"{', '.join(path_text((*path, name)) for name in kind.unexpected[:MAX_PROBLEMS])}: no such parameter"
    return f"{path_text(path)}: {_expectation(error)}"


def _expectation(error: jsonschema_rs.ValidationError) -> str:
    """`"x" is not of type integer or null`; the validator's own words where the problem is no type."""
    shown = quoted(error.instance)
    types = _types(error.kind)
    if types:
        return f"{shown} is not of type {' or '.join(types)}"
    return _shorten(error.message, 200).replace(_MASK, shown)


def _types(kind: jsonschema_rs.ValidationErrorKind) -> list[str]:
    """The types that would have been right, for a failed `type` or for an `anyOf`/`oneOf` of types."""
    if isinstance(kind, jsonschema_rs.ValidationErrorKind.Type):
        return kind.types
    if isinstance(kind, (jsonschema_rs.ValidationErrorKind.AnyOf, jsonschema_rs.ValidationErrorKind.OneOfNotValid)):
        inner = [error.kind for branch in kind.context for error in branch]
        if all(isinstance(each, jsonschema_rs.ValidationErrorKind.Type) for each in inner):
            return [name for each in inner for name in _types(each)]
    return []

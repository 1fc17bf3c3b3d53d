"""What the text of an XML parameter means under its JSON schema.

The format writes every value as bare text, so only the schema tells `"3"` from 3. Text that fits no declared type stays
as it is: the registry's validation then tells the model, and nothing is guessed (T38).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from hermes_spark.llm.chat_format.document import Unreadable
from hermes_spark.llm.chat_format.literals import integer, read_whole, real
from hermes_spark.messages import JsonObject

_INTEGER = re.compile(r"([+-]?\d+)(?:\.0+)?", re.ASCII)
_REAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,4})?", re.ASCII)
_COMPOSING = frozenset(("anyOf", "oneOf", "allOf", "$ref", "nullable"))
_NAMES: dict[type, str] = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}


def typed(text: str, schema: Any, root: JsonObject) -> Any:
    """`text` as a value of one of the types that `schema` allows, or `text` itself when it fits none of them.

    `root` is the schema of all the tool's parameters, which `$ref`s point into. Where a string is allowed as well,
    another type is taken only if `text` is just how that value is written: T37 leaves unions open, and `02134` must not
    lose its zero.
    """
    types = types_of(schema, root)
    if not types or types == {"string"}:
        return text
    if "null" in types and text in ("null", "None"):  # the template writes None, models also write null
        return None
    bare = text.strip()
    for name, read in _READERS.items():
        if name not in types:
            continue
        value = read(bare)
        if value is not None and ("string" not in types or _is_written_as(value, text)):
            return value
    return text


def types_of(schema: Any, root: JsonObject) -> set[str]:
    """The JSON types that `schema` names, in itself, by its `enum` or `const`, in `anyOf` and the like, or behind a `$ref`."""
    if isinstance(schema, dict) and isinstance(schema.get("type"), str) and _COMPOSING.isdisjoint(schema):
        return {schema["type"]}  # nearly all there are
    types: set[str] = set()
    seen: set[str] = set()
    todo = [schema]
    while todo:  # no recursion: schemas come with events and may be deep or refer to themselves
        node = todo.pop()
        if not isinstance(node, dict):
            continue
        types |= _own_types(node)
        for key in ("anyOf", "oneOf", "allOf"):
            branches = node.get(key)
            todo += branches if isinstance(branches, list) else []
        reference = node.get("$ref")
        if isinstance(reference, str) and reference not in seen:
            seen.add(reference)
            todo.append(_target(reference, root))
    return types


def _own_types(schema: JsonObject) -> set[str]:
    declared = schema.get("type")
    if isinstance(declared, str):
        types = {declared}
    elif isinstance(declared, list):
        types = {name for name in declared if isinstance(name, str)}
    else:
        allowed = schema.get("enum", [schema["const"]] if "const" in schema else [])
        types = {_NAMES.get(type(value), "string") for value in allowed} if isinstance(allowed, list) else set()
    return types | {"null"} if schema.get("nullable") is True else types


def _target(reference: str, root: JsonObject) -> Any:
    """What a reference inside the document points at; None when nothing."""
    if not reference.startswith("#"):
        return None
    node: Any = root
    for part in filter(None, reference[1:].split("/")):
        if not isinstance(node, dict):
            return None
        node = node.get(part.replace("~1", "/").replace("~0", "~"))
    return node


def _integer(text: str) -> Any:
    match = _INTEGER.fullmatch(text)
    value = integer(match[1]) if match else None
    return value if isinstance(value, int) else None


def _number(text: str) -> Any:
    if text.lstrip("+-").isdecimal():
        return _integer(text)  # by way of float, 9007199254740993 would become another number (T40)
    value = real(text) if _REAL.fullmatch(text) else None
    return value if isinstance(value, float) else None


def _boolean(text: str) -> Any:
    return {"true": True, "false": False}.get(text.lower())


def _structure(kind: type) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        if not text.startswith(("{", "[")):
            return None
        try:
            value = read_whole(text)
        except Unreadable:
            return None
        return value if isinstance(value, kind) else None

    return read


_READERS: dict[str, Callable[[str], Any]] = {
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
    "object": _structure(dict),
    "array": _structure(list),
}


def _is_written_as(value: Any, text: str) -> bool:
    return isinstance(value, (dict, list)) or text in (str(value), str(value).lower())

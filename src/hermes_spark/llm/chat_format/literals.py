"""JSON values, and Python's way of writing them, out of text that a model wrote.

Why not `json.loads` and `ast.literal_eval` as they are: a value is followed by other text; raw newlines stand in strings;
`NaN`, `1e999` and integers of more than 64 bits would be values that no record can hold; and `literal_eval` emits warnings,
and is documented to exhaust memory or the stack on hostile input.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from hermes_spark.llm.chat_format.document import Unreadable

MAX_DEPTH = 64
"""Levels of nesting that are read; what a record may hold is less (`agent.act.ARGUMENT_LEVELS`)."""

_TOKEN = re.compile(
    r"""\s*(?:(?P<open>[\[{])|(?P<close>[\]}])|(?P<mark>[:,])"""
    r"""|(?P<string>'[^'\\]*(?:\\.[^'\\]*)*'|"[^"\\]*(?:\\.[^"\\]*)*")"""
    r"""|(?P<word>True|False|None|true|false|null)\b|(?P<number>-?\d[\d.eE+-]*))""",
    re.DOTALL | re.ASCII,
)
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "\\": "\\", "'": "'", '"': '"', "/": "/", "\n": ""}
_WORDS = {"True": "true", "False": "false", "None": "null"}


def integer(digits: str) -> int | str:
    """The integer, or its text if it has more than 64 bits: exact, and nothing that a record cannot hold."""
    if len(digits) > 21:  # a sign and 20 digits hold every 64-bit integer; `int` refuses texts of 4,300 digits
        return digits
    value = int(digits)
    return value if -(2**63) <= value < 2**64 else digits


def real(digits: str) -> float | str:
    """The number, or its text if it is too large to be finite."""
    value = float(digits)
    return value if math.isfinite(value) else digits


def _name(word: str) -> str:
    return word  # NaN, Infinity, -Infinity: no JSON, kept as text for the validation to refuse


# strict=False: models write raw newlines in strings.
_DECODER = json.JSONDecoder(strict=False, parse_int=integer, parse_float=real, parse_constant=_name)


def read_value(text: str, start: int) -> tuple[Any, int]:
    """The JSON value at `start`, or else the Python dict or list there, and the offset behind it.

    Raises `Unreadable` when it is neither or nested deeper than `MAX_DEPTH`, with `cut` when the text stops inside it.
    """
    try:
        value, end = _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        found = _read_python(text, start)
        if found is None:
            cut = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string")
            raise Unreadable(f"its JSON is malformed ({error.msg} at character {error.pos - start})", cut=cut) from None
        return found
    except RecursionError:
        raise Unreadable(f"it is nested more than {MAX_DEPTH} levels deep") from None
    _check_depth(text, start, end)
    return value, end


def read_whole(text: str) -> Any:
    """The value that is all of `text` but white space. Raises `Unreadable`."""
    bare = text.strip()
    value, end = read_value(bare, 0)
    if end != len(bare):
        raise Unreadable("there is more text behind its JSON")
    return value


def _check_depth(text: str, start: int, end: int) -> None:
    """Raise `Unreadable` if the JSON in `text[start:end]`, known to be well-formed, is too deep."""
    if text.count("[", start, end) + text.count("{", start, end) <= MAX_DEPTH:
        return
    depth = 0
    for match in _TOKEN.finditer(text, start, end):
        depth += (match.lastgroup == "open") - (match.lastgroup == "close")
        if depth > MAX_DEPTH:
            raise Unreadable(f"it is nested more than {MAX_DEPTH} levels deep")


def _read_python(text: str, start: int) -> tuple[Any, int] | None:
    """A dict or list as Python writes it (`{'a': True}`, trailing commas), by way of JSON. No tuples, no bytes."""
    json_parts: list[str] = []
    depth, at = 0, start
    while True:
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            return None
        kind, token, at = match.lastgroup, match[match.lastgroup], match.end()
        depth += (kind == "open") - (kind == "close")
        if kind == "close" and json_parts[-1:] == [","] and json_parts[-2] not in "[{":
            json_parts.pop()
        json_parts.append(_as_json(kind, token))
        if depth <= 0 or depth > MAX_DEPTH or not json_parts[-1]:
            break
    return _decoded("".join(json_parts), at) if depth == 0 else None


def _decoded(json_text: str, end: int) -> tuple[Any, int] | None:
    try:
        return _DECODER.decode(json_text), end
    except json.JSONDecodeError:
        return None


def _as_json(kind: str, token: str) -> str:
    """The token in JSON; empty if it cannot be said for sure what it means."""
    if kind == "string":
        body = token[1:-1]
        if any(m[3] and m[3] not in _ESCAPED for m in _ESCAPE.finditer(body)):
            return ""  # `\d`, `\0`, `\N{..}`: guessing would hand the tool another text than the model meant
        return json.dumps(_ESCAPE.sub(_unescaped, body), ensure_ascii=False)
    return _WORDS.get(token, token)


def _unescaped(match: re.Match[str]) -> str:
    code = match[1] or match[2]
    return chr(int(code, 16)) if code else _ESCAPED[match[3]]

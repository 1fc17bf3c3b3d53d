"""Hermes' JSON calls: objects with `name` and `arguments` between `<tool_call>` and `</tool_call>`."""

from __future__ import annotations

import re
from typing import Any

from hermes_spark.llm.chat_format.document import Block, Unreadable
from hermes_spark.llm.chat_format.literals import read_value, read_whole
from hermes_spark.messages import JsonObject, ParsedCall

_SPACE = re.compile(r"\s*")


def read_json(text: str, start: int) -> Block:
    """The calls in the block whose first object begins at `start`; several objects are several calls (T20).

    Objects are read to their own end, never to the next tag, so a `</tool_call>` in a string is just text (T07). A
    block that nobody closes ends with its last object (T05). Raises `Unreadable` when anything in the block is not a
    call: with a misplaced brace, the object read so far would be a call with some arguments missing.
    """
    calls: list[ParsedCall] = []
    at = start
    while text.startswith("{", at):
        value, end = read_value(text, at)
        calls.append(_call(value))
        at = _after_space(text, end)
    if text.startswith("</tool_call>", at):
        return Block(tuple(calls), at + len("</tool_call>"))
    if at == len(text) or text.startswith("<tool_call>", at):
        return Block(tuple(calls), at)
    raise Unreadable("there is more text behind its JSON object")


def _after_space(text: str, start: int) -> int:
    match = _SPACE.match(text, start)
    return match.end() if match else start


def _call(value: JsonObject) -> ParsedCall:
    name = value.get("name")
    if not isinstance(name, str):
        raise Unreadable('its JSON object has no "name" that is a string')
    return ParsedCall(name.strip(), _arguments(value.get("arguments")))


def _arguments(value: Any) -> JsonObject:
    """An object as it is; a string that holds one (T41); nothing, null and blank text mean no arguments."""
    if isinstance(value, str):
        value = read_whole(value) if value.strip() else None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Unreadable('its "arguments" are not a JSON object')
    return value

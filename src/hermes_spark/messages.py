"""Chat messages, tool calls and replies: the values that agent, model client and formats share.

All are frozen `msgspec.Struct`s; JSON-like payloads (`arguments`, schemas) are plain dicts that nobody may change in place.
"""

from __future__ import annotations

from typing import Any

import msgspec

JsonObject = dict[str, Any]


class ParsedCall(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """One tool call as the model asked for it, with typed arguments."""

    name: str
    arguments: JsonObject = {}
    id: str = ""
    """The stable call id (32 hex digits), given by the host when the completion is recorded; empty before."""


class Message(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """One chat message. Roles: `system`, `user`, `assistant`, `tool`."""

    role: str
    content: str = ""
    reasoning: str = ""
    """What an assistant message thought before it spoke; always a string, never None."""
    calls: tuple[ParsedCall, ...] = ()
    """The tool calls of an assistant message; their results follow as `tool` messages in the same order."""


class ToolSpec(msgspec.Struct, frozen=True, array_like=True):
    """What the model is told about a tool."""

    name: str
    description: str
    parameters: JsonObject
    """A JSON schema of type `object`."""

    def as_function(self) -> JsonObject:
        """The `{"type": "function", "function": {...}}` object that chat templates list."""
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": self.parameters},
        }


class Reply(msgspec.Struct, frozen=True):
    """A model's raw text, read: what to show, what was thought, what to call, what to tell the model."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[ParsedCall, ...] = ()
    """Well-formed calls in the order of the text. Names and argument types may still be wrong: the registry checks."""
    errors: tuple[str, ...] = ()
    """One sentence for the model per piece that could not be read."""
    truncated: bool = False
    """The text was cut (by its length limit, or as its own form shows)."""


class Usage(msgspec.Struct, frozen=True, array_like=True):
    """Token counts of one completion, or summed over a turn."""

    prompt_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.prompt_tokens + other.prompt_tokens, self.completion_tokens + other.completion_tokens)


def is_deeper(value: object, levels: int) -> bool:
    """Whether a JSON value nests lists and objects more than `levels` deep; never recurses further than that."""
    if isinstance(value, dict):
        inner = list(value.values())
    elif isinstance(value, list):
        inner = value
    else:
        return False
    return levels == 0 or any(is_deeper(item, levels - 1) for item in inner)

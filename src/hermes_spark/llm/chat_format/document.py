"""The tags of a text: where calls, functions and parameters open and close. Which of them count is decided by the readers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from hermes_spark.messages import JsonObject, ParsedCall

OPEN, CLOSE = "open", "close"  # <tool_call>, </tool_call>
FUNCTION, FUNCTION_END = "function", "function_end"  # <function=NAME>, </function>
PARAMETER, PARAMETER_END = "parameter", "parameter_end"  # <parameter=NAME>, </parameter>
TEXT, END = "text", "end"  # what else may follow a tag: other text, or the end of the document

# A closing tag may be mangled, as in `</parameter1>` or `</parameter/>`; its surplus is then the tag's name. The group that
# matched names the kind and ends before the `>`. White space behind is taken along, to see at once what follows.
_TAG = re.compile(
    r"<(?:(?P<open>tool_call)|(?P<close>/tool_call)"
    r"|function=(?P<function>[^<>\n]*)|(?P<function_end>/function)"
    r"|parameter=(?P<parameter>[^<>\n]*)|/parameter(?P<parameter_end>[^<>\s]{0,8}))>\s*"
)

Schemas = Mapping[str, JsonObject]
"""The parameters' JSON schema of each declared tool."""


class Unreadable(ValueError):
    """A call cannot be read. The text ends the sentence "A tool call could not be read: ...". Never leaves the package."""

    def __init__(self, reason: str, *, cut: bool = False) -> None:
        super().__init__(reason)
        self.cut = cut
        """The text simply stops, where a malformed call is closed or followed by something else."""


class Block(msgspec.Struct, frozen=True):
    """The calls of one `<tool_call>` block and the offset behind it."""

    calls: tuple[ParsedCall, ...]
    end: int
    cut: bool = False
    """The text stops before the block is closed, but behind a complete value: T04."""


class Tag(msgspec.Struct, frozen=True, gc=False):
    """One tag: its kind (a constant of this module), its name if it has one, and its place."""

    kind: str
    name: str
    start: int
    end: int
    next: int
    """Where the next text that is no white space stands."""


class Document(NamedTuple):
    """A text with its tags in order. Readers name a tag by its index."""

    text: str
    tags: list[Tag]

    def follows(self, index: int) -> str:
        """The kind of the tag after tag `index` if only white space stands between; else `TEXT`, or `END`."""
        tags, following = self.tags, self.tags[index].next
        if following == len(self.text):
            return END
        return tags[index + 1].kind if index + 1 < len(tags) and tags[index + 1].start == following else TEXT

    def first_at(self, offset: int, index: int) -> int:
        """The index of the first tag at or behind `offset`, searched from tag `index` on."""
        while index < len(self.tags) and self.tags[index].start < offset:
            index += 1
        return index


def read_tags(text: str) -> Document:
    """The tags of `text`, found without looking at what they stand in."""
    if "<tool_call>" not in text and "<function=" not in text:
        return Document(text, [])  # no call can begin, so no other tag matters
    return Document(text, [_tag(match) for match in _TAG.finditer(text)])


def _tag(match: re.Match[str]) -> Tag:
    group = match.lastindex or 0
    return Tag(match.lastgroup or "", match[group], match.start(), match.end(group) + 1, match.end())

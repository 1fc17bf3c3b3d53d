"""Which tags of a text are calls, and what is left as text.

A call is a `<tool_call>` with a JSON object or a `<function=` behind it, whatever format was taught (T23), or a bare
`<function=` of a declared tool at the start of a line (T16). Text is what stands in a code fence, closed or not, what
stands between backticks, and a `<tool_call>` mentioned within a sentence. (T52 is open: nothing tells an example from a
call for sure. Running an example is worse than showing a call, so a fence always wins; outside of fences a call is a
call, whatever follows it.)

After a block that cannot be read nothing more is read, unless it plainly held no value (T17): its end would be a guess,
and text quoted in it could be taken for calls. For the same reason nothing is run at all when a `</parameter>` is left
over behind a call: then some value ended too early. What this cannot notice is a quoted text that closes the call,
opens another, and opens a parameter that takes up the leftover tags: those bytes are the same as those of several
calls.
"""

from __future__ import annotations

import re

import msgspec

from hermes_spark.llm.chat_format.document import (
    CLOSE,
    FUNCTION,
    OPEN,
    PARAMETER,
    PARAMETER_END,
    Block,
    Document,
    Schemas,
    Tag,
    Unreadable,
    read_tags,
)
from hermes_spark.llm.chat_format.json_calls import read_json
from hermes_spark.llm.chat_format.xml_calls import read_xml
from hermes_spark.messages import ParsedCall

_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})[^`\n]*\n", re.MULTILINE)
_BROKEN_TAG = re.compile(r"<tool_call>\s*<function[^<>\n]*\s*(?:</function>\s*)?</tool_call>")


class Fault(msgspec.Struct, frozen=True):
    """Why a block was refused."""

    reason: str
    cut: bool = False
    """The text stops inside it."""
    rest_skipped: bool = False
    """Whatever stands behind it was not read."""


class Scan(msgspec.Struct, frozen=True):
    """A text, read."""

    texts: tuple[str, ...]
    """What stands before, between and behind the blocks; without any block the whole text."""
    calls: tuple[ParsedCall, ...] = ()
    faults: tuple[Fault, ...] = ()
    spans: tuple[tuple[int, int], ...] = ()
    """Where the readable blocks stand."""
    cut: bool = False

    @property
    def has_blocks(self) -> bool:
        """Whether there is any call, readable or not."""
        return bool(self.spans or self.faults)

    @property
    def is_blank(self) -> bool:
        """Whether there is nothing but white space."""
        return not self.has_blocks and not any(text.strip() for text in self.texts)


def scan(text: str, schemas: Schemas) -> Scan:
    """The calls and the texts of a reply, or of a part of it, in order."""
    document = read_tags(text)
    return _Scanner(document, schemas).run() if document.tags else Scan((text,))


class _Scanner:
    def __init__(self, document: Document, schemas: Schemas) -> None:
        self._document = document
        self._text = document.text
        self._schemas = schemas
        self._texts: list[str] = []
        self._calls: list[ParsedCall] = []
        self._faults: list[Fault] = []
        self._spans: list[tuple[int, int]] = []
        self._cut = False
        self._at = 0  # read so far
        self._has_fences = "```" in document.text or "~~~" in document.text
        self._fence_searched = 0
        self._fence_end = 0
        self._has_xml = False
        self._open_parameters = 0  # outside of readable blocks, since the last one
        self._is_doubtful = False

    def run(self) -> Scan:
        index = 0
        while index < len(self._document.tags):
            if self._is_call(index):
                self._read_block(index)
                index = self._document.first_at(self._at, index + 1)
            else:
                self._pass(self._document.tags[index])
                index += 1
        self._texts.append(self._text[self._at :])
        if self._is_doubtful:
            fault = Fault("a </parameter> is left over, so it is unclear where the values end", rest_skipped=True)
            return Scan((self._texts[0],), faults=(fault,), cut=self._cut)
        calls, faults, spans = tuple(self._calls), tuple(self._faults), tuple(self._spans)
        return Scan(tuple(self._texts), calls, faults, spans, self._cut)

    def _is_call(self, index: int) -> bool:
        tag = self._document.tags[index]
        if tag.kind == OPEN:
            return not self._is_mention(index) and not self._is_fenced(tag)
        if tag.kind != FUNCTION or tag.name.strip() not in self._schemas:
            return False
        line = self._text[self._text.rfind("\n", 0, tag.start) + 1 : tag.start]
        return not line.strip() and not self._is_fenced(tag)

    def _is_mention(self, index: int) -> bool:
        """Whether the `<tool_call>` is a word of a sentence: the line goes on, and no `</tool_call>` closes it."""
        tag = self._document.tags[index]
        if self._text[tag.start - 1 : tag.start] == "`" == self._text[tag.end : tag.end + 1]:
            return True
        if "\n" in self._text[tag.end : tag.next] or self._text[tag.next : tag.next + 1] in ("", "{", "<"):
            return False
        return not self._is_closed(index)

    def _is_closed(self, index: int) -> bool:
        """Whether a `</tool_call>` comes before the next `<tool_call>`."""
        tags = self._document.tags
        kinds = (tags[at].kind for at in range(index + 1, len(tags)))
        return next((kind for kind in kinds if kind in (OPEN, CLOSE)), OPEN) == CLOSE

    def _is_fenced(self, tag: Tag) -> bool:
        while self._has_fences and tag.start >= self._fence_end:
            fence = _FENCE.search(self._text, max(self._at, self._fence_searched), tag.start)
            if fence is None:
                self._fence_searched = tag.start
                return False
            closing = re.compile(rf"^[ \t]*{fence[1]}{fence[1][0]}*[ \t]*$", re.MULTILINE).search(
                self._text, fence.end()
            )
            self._fence_end = self._fence_searched = closing.end() if closing else len(self._text)
        return self._has_fences

    def _read_block(self, index: int) -> None:
        tag = self._document.tags[index]
        self._texts.append(self._text[self._at : tag.start])
        try:
            block = self._block(index)
        except Unreadable as error:
            self._refuse(index, error)
            return
        self._calls += block.calls
        self._cut = self._cut or block.cut
        self._spans.append((tag.start, block.end))
        self._at = block.end
        self._open_parameters = 0

    def _block(self, index: int) -> Block:
        tag = self._document.tags[index]
        if tag.kind == FUNCTION or self._document.follows(index) == FUNCTION:
            block = read_xml(self._document, index + (tag.kind == OPEN), self._schemas)
            self._has_xml = True
            return block
        if self._text.startswith("{", tag.next):
            return read_json(self._text, tag.next)
        if self._text.startswith("<function", tag.next):
            raise Unreadable("its <function=NAME> tag is broken")
        raise Unreadable("it holds neither a <function=NAME> nor a JSON object")

    def _refuse(self, index: int, error: Unreadable) -> None:
        broken = _BROKEN_TAG.match(self._text, self._document.tags[index].start)
        self._at = broken.end() if broken else len(self._text)
        skipped = [tag for tag in self._document.tags[index:] if tag.start < self._at]
        for tag in skipped:
            self._count(tag)
        # T02: what is closed and cannot be read is malformed, what just stops is cut, whatever finish_reason says.
        is_closed = any(tag.kind == CLOSE for tag in skipped)
        cut = not is_closed or (error.cut and not self._text.rstrip().endswith("</tool_call>"))
        self._cut = self._cut or cut
        self._faults.append(Fault(str(error), cut, rest_skipped=broken is None))

    def _pass(self, tag: Tag) -> None:
        """Leave a tag outside of calls as text, but for a stray `</tool_call>` behind a call, which is dropped (T16)."""
        if tag.kind == CLOSE and self._spans and not self._is_fenced(tag):
            self._texts.append(self._text[self._at : tag.start])
            self._at = tag.end
        self._count(tag)

    def _count(self, tag: Tag) -> None:
        self._open_parameters += (tag.kind == PARAMETER) - (tag.kind == PARAMETER_END)
        self._is_doubtful = self._is_doubtful or (self._has_xml and self._open_parameters < 0)

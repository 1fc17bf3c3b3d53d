"""A model's raw text as a `Reply`: thinking, answer, calls, and what to tell the model about the rest."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hermes_spark.llm.chat_format.document import Schemas
from hermes_spark.llm.chat_format.render import Format
from hermes_spark.llm.chat_format.scan import Fault, Scan, scan
from hermes_spark.messages import Reply, ToolSpec

_THINK, _THINK_END = "<think>", "</think>"
_PARTIAL_TAG = re.compile(
    "(?:"
    + "|".join(tag[:n] for tag in ("<tool_call>", "<function=", _THINK_END) for n in range(len(tag) - 1, 1, -1))
    # A whole `<function=` only counts at the start of a line, as where it is read.
    + r"|^[ \t]*<function=[^<>\n]*)\Z",
    re.MULTILINE,
)
_FORMS: dict[Format, str] = {
    "qwen3.5": "a <tool_call> with one <function=NAME> and in it one <parameter=NAME> for each argument, every tag closed",
    "hermes": 'a <tool_call> with one JSON object that has "name" and "arguments"',
}


def parse_reply(
    text: str, *, tools: Sequence[ToolSpec], format: Format, finish_reason: str, in_thinking: bool
) -> Reply:
    """Read what the model wrote. Pure and total: no text whatever makes it raise.

    `text` is the decoded reply without its end token. `in_thinking`: the prompt ended inside `<think>`, so the text
    begins there (`qwen3.5` with thinking on). A `<think>` that the model writes itself, at the very start, is read as
    well. `format` only decides how errors ask for a call; every block is read by what it holds. `finish_reason`
    `length` marks the reply as cut.

    Calls are passed on with any name, declared or not, even an empty one (T31): refusing them is the loop's business.
    XML values get the types of the tool's schema; where they do not fit they stay text, and JSON numbers that are not
    finite or have more than 64 bits become text. NUL characters and lone surrogates stay as they are: the registry
    refuses arguments with them. Markup that cannot be read is hidden from the content and told to the model. Text
    behind a call is content (T22). A reply that was cut may still have whole calls, `truncated` tells (T04, T05); only
    the loop knows whether they may run.
    """
    is_cut = finish_reason == "length"
    if is_cut:
        text = _PARTIAL_TAG.sub("", text)
    schemas = {tool.name: tool.parameters for tool in tools}
    start = text.lstrip()
    if start.startswith(_THINK):
        reasoning, found = _read_thinking(start[len(_THINK) :], schemas, is_cut)
    elif in_thinking:
        reasoning, found = _read_thinking(text, schemas, is_cut)
    else:
        reasoning, found = "", scan(text, schemas)
    return Reply(
        content="\n\n".join(filter(None, map(str.strip, found.texts))),
        reasoning=reasoning.strip(),
        calls=found.calls,
        errors=tuple(_sentence(fault, format) for fault in found.faults),
        truncated=is_cut or found.cut,
    )


def _read_thinking(text: str, schemas: Schemas, is_cut: bool) -> tuple[str, Scan]:  # noqa: FBT001 - a fact, not a mode
    """The thinking at the start of `text` and the rest, read.

    Draft calls within closed thinking stay there (T26). They are taken only when the model thought, called, closed its
    thinking and then wrote nothing more: not a call, not a broken one, not a word.
    """
    end = text.find(_THINK_END)
    if end < 0:
        return _read_unclosed(text, scan(text, schemas), is_cut)
    answer = scan(text[end + len(_THINK_END) :], schemas)
    if "<tool_call>" not in text[:end]:
        return text[:end], answer
    whole = scan(text, schemas)
    if _is_in_call(text, end, whole):
        return _read_unclosed(text, whole, is_cut)
    drafts = scan(text[:end], schemas)
    if drafts.calls and answer.is_blank and not is_cut:
        return "\n".join(drafts.texts), Scan((), drafts.calls, drafts.faults)
    return text[:end], answer


def _is_in_call(text: str, end: int, whole: Scan) -> bool:
    """Whether the `</think>` at `end` is quoted in a call's value: one readable call has it, and no other begins after it."""
    return any(start < end < stop and "<tool_call>" not in text[end:stop] for start, stop in whole.spans)


def _read_unclosed(text: str, found: Scan, is_cut: bool) -> tuple[str, Scan]:  # noqa: FBT001 - a fact, not a mode
    """Thinking that nobody closed: the first call ends it (T25), but not if the model went on thinking until it was cut.

    Without a call all of it is thinking, and the reply is cut, whatever finish_reason says (T28).
    """
    if not found.has_blocks or (is_cut and found.texts[-1].strip()):
        return text, Scan((), cut=True)
    return found.texts[0], Scan(found.texts[1:], found.calls, found.faults, cut=found.cut)


def _sentence(fault: Fault, format: Format) -> str:
    verdict = "was cut off" if fault.cut else "could not be read"
    skipped = "neither it nor what followed it was run" if fault.rest_skipped else "it was not run"
    return f"A tool call {verdict}: {fault.reason}; {skipped}, so write it again as {_FORMS[format]}."

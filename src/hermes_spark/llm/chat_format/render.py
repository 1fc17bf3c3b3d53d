"""A chat as the prompt that the model was trained on, byte for byte, in pieces that say what may hold special tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import msgspec

from hermes_spark.messages import Message, ParsedCall, ToolSpec

Format = Literal["qwen3.5", "hermes"]
"""`qwen3.5`: XML calls, the default. `hermes`: JSON calls, as Qwen2.5, Qwen3 and Hermes models write them."""

QWEN_TOOLS_HEAD = "# Tools\n\nYou have access to the following functions:\n\n<tools>\n"
QWEN_TOOLS_TAIL = """</tools>

If you choose to call a function ONLY reply in the following format with NO suffix:

<tool_call>
<function=example_function_name>
<parameter=example_parameter_1>
value_1
</parameter>
<parameter=example_parameter_2>
This is the value for the second parameter
that can span
multiple lines
</parameter>
</function>
</tool_call>

<IMPORTANT>
Reminder:
- Function calls MUST follow the specified format: an inner <function=...></function> block must be nested within \
<tool_call></tool_call> XML tags
- Required parameters MUST be specified
- You may provide optional reasoning for your function call in natural language BEFORE the function call, but NOT after
- If there is no function call available, answer the question like normal with your current knowledge and do not tell \
the user about function calls
</IMPORTANT>"""
HERMES_TOOLS_HEAD = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
"""
HERMES_TOOLS_TAIL = """</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>"""

_START, _STOP = "<|im_start|>", "<|im_end|>\n"
_NO_THINKING = "<think>\n\n</think>\n\n"


TEMPLATE_SHA256 = "98ffd397ddab7fb8ae71d20749d95406738c59ba2699f0244fd34958b9b3a751"
"""Of `model_repository/qwen35b_a3b/tokenizer/chat_template.jinja`, whose bytes `render` writes in the format qwen3.5 (tested).
Where a checkpoint brings just this template, `render` takes its place: a chat of 60 messages costs it a tenth."""


class Piece(msgspec.Struct, frozen=True):
    """A part of a prompt."""

    text: str
    trusted: bool
    """Special tokens in `text` are meant: it is markup. All else is to be tokenized as plain text."""


class _Writer:
    """Collects the pieces of a prompt, which begins with markup and has some between any two texts from outside."""

    def __init__(self) -> None:
        self._pieces: list[Piece] = []
        self._markup = ""

    def markup(self, text: str) -> None:
        self._markup += text

    def outside(self, text: str) -> None:
        """Text from users, tools, the model, tool descriptions or a system prompt (a column of a table, in SQL)."""
        if text:
            self._pieces += (Piece(self._markup, trusted=True), Piece(text, trusted=False))
            self._markup = ""

    def pieces(self) -> tuple[Piece, ...]:
        end = (Piece(self._markup, trusted=True),) if self._markup else ()
        return (*self._pieces, *end)


def by_message(pieces: Sequence[Piece]) -> Iterator[tuple[Piece, ...]]:
    """The pieces of a prompt in groups that begin where a message begins, so that each can be tokenized by itself.

    A special token stands at every such place; no tokenizer merges across it. Joined, the groups are the same prompt.
    """
    group: list[Piece] = []
    for piece in pieces:
        if not piece.trusted:
            group.append(piece)
            continue
        head, *starts = piece.text.split(_START)
        if head:
            group.append(Piece(head, trusted=True))
        for start in starts:
            if group:
                yield tuple(group)
            group = [Piece(_START + start, trusted=True)]
    if group:
        yield tuple(group)


def render(
    messages: Sequence[Message], tools: Sequence[ToolSpec], *, format: Format, thinking: bool
) -> tuple[Piece, ...]:
    r"""The whole prompt, up to where the model's reply begins. Neighbouring pieces differ in trust; none is empty.

    The texts joined are, byte for byte, what these chat templates give for the same chat with `add_generation_prompt`,
    `reasoning_content` always a string, `tools` as `ToolSpec.as_function()` in `json.dumps(ensure_ascii=False)`:

    - `qwen3.5`: Qwen3.5's. One system message: the tools' block, a blank line, the system text; left out when there is
      neither. Every message is trimmed. After the last real user message each assistant message has a think block, even
      an empty one; before it none has. Values are bare text between one newline on each side: mappings and lists in
      JSON, all else as Python's `str` writes it (`True`, `None`). The prompt ends in `<think>\n`, or in an empty block
      without `thinking`.
    - `hermes`: Qwen3's. The system text goes before the tools' block. Nothing is trimmed, but newlines at the edges of
      thinking and before the content that follows it. After the last real user message an assistant message has a think
      block if it has reasoning or is the last one. Calls are JSON. The model opens its thinking itself.

    A real user message is one that is not all `<tool_response>...</tool_response>`, which is how tool results are
    written: as user messages, neighbouring ones in one. If only such a message is there it counts as real, where the
    templates give up.

    Trusted is markup alone. A call's inside (`<function=` and `<parameter=` are no special tokens) is
    one untrusted piece with its names and values, and so is the list of tools.

    The agent guarantees the order: system first if at all, and a user message. Raises `ValueError` where a template
    would.
    """
    _check(messages)
    last_query = _last_query(messages, format)
    write = _Writer()
    history = _render_system(write, messages, tools, format)
    for index in range(history, len(messages)):
        message = messages[index]
        if message.role == "tool":
            _render_result(write, messages, index, format)
        elif message.role == "user":
            write.markup(f"{_START}user\n")
            write.outside(_trimmed(message.content, format))
            write.markup(_STOP)
        else:
            is_last = index == len(messages) - 1
            thoughts = _thoughts(message, format, is_last=is_last) if index > last_query else None
            _render_assistant(write, message, thoughts, format)
    write.markup(f"{_START}assistant\n")
    if not thinking:
        write.markup(_NO_THINKING)
    elif format == "qwen3.5":
        write.markup("<think>\n")
    return write.pieces()


def render_calls(calls: Sequence[ParsedCall], *, format: Format) -> str:
    """The calls as a model writes them, one block each; the inverse of `parse_reply`."""
    write = _Writer()
    _render_calls(write, calls, format)
    return "".join(piece.text for piece in write.pieces())


def _check(messages: Sequence[Message]) -> None:
    for index, message in enumerate(messages):
        if message.role == "system" and index > 0:
            raise ValueError(
                f"message {index} is a system message; the chat format takes one as the first message only"
            )
        if message.role not in ("system", "user", "assistant", "tool"):
            raise ValueError(
                f"message {index} has the role {message.role!r}; the chat format knows system, user, assistant and tool"
            )
    if all(message.role != "user" for message in messages):
        raise ValueError("the chat has no user message; keep the last one when history is shortened")


def _last_query(messages: Sequence[Message], format: Format) -> int:
    users = [index for index, message in enumerate(messages) if message.role == "user"]
    for index in reversed(users):
        text = _trimmed(messages[index].content, format)
        if not (text.startswith("<tool_response>") and text.endswith("</tool_response>")):
            return index
    return users[-1]


def _trimmed(text: str, format: Format) -> str:
    return text.strip() if format == "qwen3.5" else text


def _render_system(write: _Writer, messages: Sequence[Message], tools: Sequence[ToolSpec], format: Format) -> int:
    """Write the system message; how many messages that used up."""
    has_text = messages[0].role == "system"
    text = _trimmed(messages[0].content, format) if has_text else ""
    if not tools and not has_text:
        return 0
    write.markup(f"{_START}system\n")
    if not tools:
        write.outside(text)
    elif format == "qwen3.5":
        _render_tools(write, tools, QWEN_TOOLS_HEAD, QWEN_TOOLS_TAIL)
        write.markup("\n\n" if text else "")
        write.outside(text)
    else:
        write.outside(text)
        write.markup("\n\n" if has_text else "")
        _render_tools(write, tools, HERMES_TOOLS_HEAD, HERMES_TOOLS_TAIL)
    write.markup(_STOP)
    return int(has_text)


def _render_tools(write: _Writer, tools: Sequence[ToolSpec], head: str, tail: str) -> None:
    write.markup(head)
    write.outside("".join(f"{_json(tool.as_function())}\n" for tool in tools))
    write.markup(tail)


def _render_result(write: _Writer, messages: Sequence[Message], index: int, format: Format) -> None:
    if messages[index - 1].role != "tool" or index == 0:
        write.markup(f"{_START}user")
    write.markup("\n<tool_response>\n")
    write.outside(_trimmed(messages[index].content, format))
    write.markup("\n</tool_response>")
    if index + 1 == len(messages) or messages[index + 1].role != "tool":
        write.markup(_STOP)


def _thoughts(message: Message, format: Format, *, is_last: bool) -> str | None:
    """What stands in the think block of a message of the current turn; None for no block."""
    if format == "qwen3.5":
        return message.reasoning.strip()
    return message.reasoning.strip("\n") if message.reasoning or is_last else None


def _render_assistant(write: _Writer, message: Message, thoughts: str | None, format: Format) -> None:
    write.markup(f"{_START}assistant\n")
    content = _trimmed(message.content, format)
    if thoughts is not None:
        write.markup("<think>\n")
        write.outside(thoughts)
        write.markup("\n</think>\n\n")
    write.outside(content if thoughts is None or format == "qwen3.5" else content.lstrip("\n"))
    if message.calls and content:
        write.markup("\n\n" if format == "qwen3.5" else "\n")
    _render_calls(write, message.calls, format)
    write.markup(_STOP)


def _render_calls(write: _Writer, calls: Sequence[ParsedCall], format: Format) -> None:
    body = _XML_OR_JSON[format]
    for index, call in enumerate(calls):
        write.markup("\n<tool_call>" if index else "<tool_call>")
        write.outside(body(call))
        write.markup("</tool_call>")


def _xml(call: ParsedCall) -> str:
    parameters = [f"<parameter={name}>\n{_text(value)}\n</parameter>\n" for name, value in call.arguments.items()]
    return f"\n<function={call.name}>\n{''.join(parameters)}</function>\n"


def _text(value: Any) -> str:
    return _json(value) if isinstance(value, (dict, list, tuple)) else str(value)


def _hermes(call: ParsedCall) -> str:
    # The template pastes the name between quotes; in JSON's escapes the same for every name that a tool can have.
    return f'\n{{"name": {_json(call.name)}, "arguments": {_json(call.arguments)}}}\n'


_XML_OR_JSON: dict[Format, Callable[[ParsedCall], str]] = {"qwen3.5": _xml, "hermes": _hermes}

_json = json.JSONEncoder(ensure_ascii=False).encode  # `json.dumps` would build the encoder for every value

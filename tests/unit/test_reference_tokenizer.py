"""The shipped tokenizer: reproducible, lossless, with Qwen's tokens; its template agrees with our own renderer."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from hermes_spark.llm.chat_format import render
from hermes_spark.messages import JsonObject, Message, ParsedCall, ToolSpec

DIRECTORY = Path(__file__).resolve().parents[2] / "model_repository" / "qwen35b_a3b" / "tokenizer"
TOKENIZER = Tokenizer.from_file(str(DIRECTORY / "tokenizer.json"))
CHECKPOINT = AutoTokenizer.from_pretrained(str(DIRECTORY), local_files_only=True)

TOOLS = (
    ToolSpec("crm_query", "Look up a <b>customer</b> / 查询客户", {"type": "object", "properties": {"z": {}, "a": {}}}),
    ToolSpec("now", "", {"type": "object", "properties": {}}),
)
SYSTEM = Message("system", "  Answer briefly.\n")
USER = Message("user", " 查一下客户张三的订单状态 \n")
VALUES = {
    "title": "  indented\nline2\n",
    "count": 3,
    "tags": ["a<b", "é", {"k": None}],
    "pin": True,
    "due": None,
    "x": 1.5,
}
CALLING = Message("assistant", "Saving both.", "need\ntwo calls\n", (ParsedCall("save", VALUES), ParsedCall("now")))
SILENT = Message("assistant", "", "", (ParsedCall("now", {"数": {"嵌套": ["值"]}}),))
RESULTS = (Message("tool", " ok 1 \n"), Message("tool", "ok 2"))
ANSWER = Message("assistant", "It is </think> shipped. ", "thought")

CHATS = {
    "one message": (USER,),
    "system text": (SYSTEM, USER),
    "empty system text": (Message("system", ""), USER),
    "parallel calls": (USER, CALLING, *RESULTS),
    "no content": (SYSTEM, USER, SILENT, Message("tool", "12:00")),
    "two steps": (USER, CALLING, *RESULTS, SILENT, Message("tool", "error: late")),
    "late user turn": (
        SYSTEM,
        USER,
        CALLING,
        *RESULTS,
        ANSWER,
        Message("user", "And now?"),
        SILENT,
        Message("tool", "1"),
    ),
    "greeting first": (Message("assistant", "Hello!"), USER),
    "a quoted result": (USER, ANSWER, Message("user", "<tool_response>\nmine\n</tool_response>")),
}


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("tools", [(), TOOLS], ids=["no tools", "tools"])
@pytest.mark.parametrize("chat", CHATS.values(), ids=CHATS.keys())
def test_the_template_and_the_renderer_agree(
    chat: tuple[Message, ...], tools: tuple[ToolSpec, ...], thinking: bool
) -> None:
    ours = "".join(piece.text for piece in render(chat, tools, format="qwen3.5", thinking=thinking))
    templates = CHECKPOINT.apply_chat_template(
        [as_chat(message) for message in chat],
        tools=[tool.as_function() for tool in tools] or None,
        tokenize=False,
        add_generation_prompt=True,
        enable_thinking=thinking,
    )
    assert templates == ours


@pytest.mark.parametrize(
    ("chat", "reason"),
    [
        ([{"role": "tool", "content": "x"}], "No user query"),
        ([{"role": "user", "content": "x"}, {"role": "system", "content": "y"}], "at the beginning"),
        ([{"role": "user", "content": "x"}, {"role": "developer", "content": "y"}], "developer"),
    ],
)
def test_the_template_refuses_what_qwens_refuses(chat: list[JsonObject], reason: str) -> None:
    from jinja2 import TemplateError

    with pytest.raises(TemplateError, match=reason):
        CHECKPOINT.apply_chat_template(chat, tokenize=False)


def test_the_committed_files_are_what_build_makes(tmp_path: Path) -> None:
    build_module().build(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert json.loads((tmp_path / name).read_bytes()) == json.loads((DIRECTORY / name).read_bytes())


@given(st.text())
def test_any_text_round_trips(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text).ids, skip_special_tokens=False) == text


def test_qwens_tokens_are_single_and_markup_survives_decoding() -> None:
    markup = "<think></think><tool_call></tool_call><tool_response></tool_response>"
    ids = TOKENIZER.encode(f"<|im_start|>{markup}<|im_end|><|endoftext|>").ids
    assert len(ids) == 9
    assert TOKENIZER.decode(ids, skip_special_tokens=True) == markup
    assert CHECKPOINT.eos_token == "<|im_end|>"


def test_a_typical_reply_has_some_forty_tokens() -> None:
    reply = (
        "The request fits the tool order_status (order_id A-1001).\n</think>\n\n<tool_call>\n<function=order_status>\n"
        "<parameter=order_id>\nA-1001\n</parameter>\n</function>\n</tool_call>"
    )
    assert 30 <= len(TOKENIZER.encode(reply).ids) <= 60


def as_chat(message: Message) -> JsonObject:
    chat: JsonObject = {"role": message.role, "content": message.content}
    if message.role == "assistant":
        chat["reasoning_content"] = message.reasoning
    if message.calls:
        chat["tool_calls"] = [{"function": {"name": call.name, "arguments": call.arguments}} for call in message.calls]
    return chat


def build_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_tokenizer", DIRECTORY / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

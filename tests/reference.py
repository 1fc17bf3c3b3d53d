"""The reference engine without a server: prompts as the model client makes them, replies as it reads them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

import engines
from engines.reference import ReferenceEngine
from hermes_spark.llm.chat_format import Format, parse_reply
from hermes_spark.llm.tokenizer import ChatTokenizer
from hermes_spark.messages import Message, ParsedCall, Reply, ToolSpec

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "model_repository" / "qwen35b_a3b"
TOOLS = tuple(
    ToolSpec(tool["name"], tool["description"], tool["parameters"])
    for tool in yaml.safe_load((ROOT / "conf" / "tools.yaml").read_text(encoding="utf-8"))["tools"]
)
TOKENIZERS: dict[Format, ChatTokenizer] = {
    "qwen3.5": ChatTokenizer.load(MODEL / "tokenizer", format="qwen3.5"),
    "hermes": ChatTokenizer.load(MODEL / "tokenizer", format="hermes"),
}
# The directory's template is Qwen3.5's; without one, prompts are rendered by the package, which has both formats.
TOKENIZERS["hermes"]._hf.chat_template = None
TOKENIZER = TOKENIZERS["qwen3.5"]
ENGINE = engines.load(engines.Parameters({}, MODEL))
assert isinstance(ENGINE, ReferenceEngine)


def generate(
    messages: str | Sequence[Message], tools: Sequence[ToolSpec] = TOOLS, max_tokens: int = 1024, **chat: Any
) -> engines.Generation:
    chat_format = chat.get("format", "qwen3.5")
    history = [Message("user", messages)] if isinstance(messages, str) else messages
    ids = TOKENIZERS[chat_format].encode(history, tools, thinking=chat.get("thinking", True))
    return ENGINE.answer(engines.GenerationRequest(ids, max_tokens))[0]


def text(generation: engines.Generation) -> str:
    return TOKENIZER.decode(np.array(generation.output_ids, np.int32))


def ask(messages: str | Sequence[Message], tools: Sequence[ToolSpec] = TOOLS, **chat: Any) -> Reply:
    generation = generate(messages, tools, **chat)
    chat_format = chat.get("format", "qwen3.5")
    in_thinking = chat_format == "qwen3.5" and chat.get("thinking", True)
    return parse_reply(
        text(generation),
        tools=tools,
        format=chat_format,
        finish_reason=generation.finish_reason,
        in_thinking=in_thinking,
    )


def calls(messages: str | Sequence[Message], tools: Sequence[ToolSpec] = TOOLS, **chat: Any) -> list[tuple[str, Any]]:
    reply = ask(messages, tools, **chat)
    assert reply.errors == ()
    return [(call.name, call.arguments) for call in reply.calls]


def after_results(question: str, *results: str) -> list[Message]:
    """A turn in which `crm_query` was asked once for every result."""
    asked = tuple(ParsedCall("crm_query", {"customer": f"张三{index}"}) for index in range(len(results)))
    said = [Message("assistant", "", "I look.", asked)] if asked else []
    return [Message("user", question), *said, *[Message("tool", result) for result in results]]

"""Marked words in the last user message make the reference engine err in the way that they say, and in no other."""

from __future__ import annotations

import asyncio

import pytest

import engines
from hermes_spark.messages import Message
from reference import ENGINE, TOKENIZER, TOOLS, after_results, ask, calls, generate, text

QUESTION = "Search the knowledge base for ink, top 5"
RIGHT = [("kb_search", {"query": "ink, top 5", "top_k": 5})]


def test_cut_ends_inside_the_last_call() -> None:
    generation = generate(f"{QUESTION} [[cut]]")
    assert generation.finish_reason == "length"
    assert text(generation) in text(generate(QUESTION))
    assert text(generation).count("<tool_call>") > text(generation).count("</tool_call>")
    assert ask(f"{QUESTION} [[cut]]").truncated


def test_cut_thinking_ends_inside_the_think_block() -> None:
    generation = generate(f"{QUESTION} [[cut-thinking]]")
    assert generation.finish_reason == "length"
    assert "</think>" not in text(generation)
    assert text(generate(QUESTION)).startswith(text(generation))


def test_an_unknown_tool_is_one_that_the_prompt_does_not_offer() -> None:
    ((name, _),) = calls(f"{QUESTION} [[unknown-tool]]")
    assert name not in {tool.name for tool in TOOLS}
    assert ask("hello [[unknown-tool]]", []).calls == ()


def test_wrong_types_break_the_schema_in_both_formats() -> None:
    for chat_format in ("qwen3.5", "hermes"):
        ((name, arguments),) = calls(f"{QUESTION} [[wrong-types]]", format=chat_format)
        assert (name, arguments["top_k"]) == ("kb_search", "many")
        assert calls("Cancel ticket T-1 [[wrong-types]]", format=chat_format) == [("cancel_ticket", {})]


def test_a_loop_asks_again_whatever_the_tools_answer() -> None:
    assert calls(after_results(f"{QUESTION} [[loop]]", "found")) == RIGHT
    assert calls(after_results(QUESTION, "found")) == []
    assert ask(after_results(f"{QUESTION} [[loop]]", "found"), []).content


def test_junk_holds_no_readable_call() -> None:
    reply = ask(f"{QUESTION} [[junk]]")
    assert reply.errors
    assert reply.calls == ()


def test_empty_says_nothing() -> None:
    reply = ask(f"{QUESTION} [[empty]]")
    assert (reply.content, reply.calls) == ("", ())
    assert generate(f"{QUESTION} [[empty]]", thinking=False).output_ids == ()


def test_no_think_close_calls_inside_thinking() -> None:
    assert "</think>" not in text(generate(f"{QUESTION} [[no-think-close]]"))
    assert calls(f"{QUESTION} [[no-think-close]]") == RIGHT


@pytest.mark.parametrize(("mark", "extra_ms"), [("[[slow:250]]", 250), ("[[slow:999999]]", 600_000), ("[[slow]]", 0)])
def test_slow_waits_longer(mark: str, extra_ms: int) -> None:
    ids = TOKENIZER.encode([Message("user", f"{QUESTION} {mark}")], TOOLS, thinking=True)
    generation, waited = ENGINE.answer(engines.GenerationRequest(ids, 1024))
    assert waited == extra_ms
    assert generation == generate(QUESTION)


async def test_the_wait_is_the_profile_and_the_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    ids = TOKENIZER.encode([Message("user", f"{QUESTION} [[slow:500]]")], TOOLS, thinking=True)
    generation = await ENGINE.generate(engines.GenerationRequest(ids, 1024))
    assert waits == [pytest.approx(0.112 + len(generation.output_ids) / 2180 + 0.5)]


def test_a_numbered_mark_acts_at_the_first_steps_only() -> None:
    assert ask(f"{QUESTION} [[junk:1]]").errors
    assert "found" in ask(after_results(f"{QUESTION} [[junk:1]]", "found")).content
    assert ask(after_results(f"{QUESTION} [[junk:2]]", "found")).errors


def test_marks_of_older_messages_and_of_tools_do_not_count() -> None:
    history = [
        *after_results(f"{QUESTION} [[junk]]", "[[empty]]"),
        Message("assistant", "Done."),
        Message("user", QUESTION),
    ]
    assert calls(history) == RIGHT
    assert ask(after_results(QUESTION, "[[empty]]")).content

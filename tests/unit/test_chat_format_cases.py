"""Every case of `tests/cases/toolcalls.jsonl` that is about the format, against the answer it gives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hermes_spark.llm.chat_format import parse_reply, render
from hermes_spark.messages import Message, ParsedCall, Reply, ToolSpec
from hermes_spark.tools.arguments import argument_problems

CASES = {
    case["id"]: case
    for case in map(json.loads, (Path(__file__).parents[1] / "cases/toolcalls.jsonl").read_text("utf-8").splitlines())
}
TABLE = [case for case in CASES.values() if "machine_expected" in case and case["format"] != "stream"]
EXPLICIT = {"T19", "T29", "T32", "T47", "T52", "T53", "T55"}
COVERED_BY_THE_AGENT = {"T46", "T58"}  # call order and lost results: tests/unit/test_agent_*
AMBIGUOUS_WHEN_CUT = {"T08", "T10"}  # cut behind a quoted closing tag, they read as if the value ended there


def tools_of(case: dict) -> list[ToolSpec]:
    return [ToolSpec(tool["name"], "", tool["parameters"]) for tool in case["tools"]]


def read(case: dict, **changes) -> Reply:
    """Read the reply of `case`, or with `text`, `finish_reason` and so on changed."""
    return parse_reply(
        changes.get("text", case["input"]),
        tools=tools_of(case),
        format=changes.get("format", "hermes" if case["format"] == "json" else "qwen3.5"),
        finish_reason=changes.get("finish_reason", case["finish_reason"]),
        in_thinking=changes.get("in_thinking", case["prefill_think"]),
    )


def test_no_case_is_left_out():
    assert {case["id"] for case in TABLE} | EXPLICIT | COVERED_BY_THE_AGENT == set(CASES)


@pytest.mark.parametrize("format", ["qwen3.5", "hermes"])
@pytest.mark.parametrize("case", TABLE, ids=lambda case: case["id"])
def test_case(case, format):
    expected = case["machine_expected"]
    reply = read(case, format=format)
    if "arguments" in expected:
        assert [call.arguments for call in reply.calls] == expected["arguments"]
    assert bool(reply.errors) == expected.get("parse_error", False)
    assert reply.truncated == expected.get("truncated", reply.truncated)
    assert reply.content == expected.get("content", reply.content)
    assert reply.reasoning == expected.get("reasoning", reply.reasoning)
    assert all(text in reply.content for text in expected.get("content_contains", ()))
    if "parsed_but_not_executable" in expected:
        assert [call.name for call in reply.calls] == expected["parsed_but_not_executable"]
    assert "<tool_call>" not in reply.content
    assert all(isinstance(key, str) for call in reply.calls for key in call.arguments)


@pytest.mark.parametrize(
    ("case", "truncated"), [("T01", True), ("T02", True), ("T05", False), ("T28", True), ("T38", False), ("T56", False)]
)
def test_cut_and_malformed_are_told_apart(case, truncated):
    assert read(CASES[case]).truncated is truncated


def test_t02_t56_say_which_of_the_two_it_was():
    assert "was cut off" in read(CASES["T02"]).errors[0]
    assert "malformed" in read(CASES["T56"]).errors[0]
    assert "cut" not in read(CASES["T56"]).errors[0]


def test_t04_is_recovered_only_with_every_required_parameter():
    case = CASES["T04"]
    assert read(case).calls == (ParsedCall("get_temp", {"city": "Oslo", "days": 3}),)
    without_city = "<tool_call>\n<function=get_temp>\n<parameter=days>\n3\n</parameter>\n"
    assert read(case, text=without_city).calls == ()
    assert read(case, text=case["input"].rsplit("</parameter>", 1)[0]).calls == ()


def test_t05_is_marked_as_cut_when_the_length_ended_it():
    assert not read(CASES["T05"]).truncated
    assert read(CASES["T05"], finish_reason="length").truncated


def test_t16_needs_a_declared_name_and_the_start_of_a_line():
    case = CASES["T16"]
    assert read(case, text=case["input"].replace("get_temp", "get_wind")).calls == ()
    assert read(case, text=case["input"].replace("look.\n", "look. ")).calls == ()


def test_t19_a_mangled_closing_tag_is_refused():
    reply = read(CASES["T19"])
    assert reply.calls == ()
    assert "city is not closed" in reply.errors[0]
    two = CASES["T19"]["input"].replace("</parameter1>", "</parameter/>\n<parameter=days>\n3\n</parameter>")
    assert read(CASES["T19"], text=two).calls == ()


def test_t26_the_draft_stays_in_the_reasoning_whatever_follows():
    case = CASES["T26"]
    assert "<function=now>" in read(case).reasoning
    thinking = case["input"].split("</think>")[0]
    assert read(case, text=f"{thinking}</think>\n\nIt is noon.").calls == ()
    assert read(case, text=f"{thinking}</think>\n\n<tool_call>\n{{broken\n</tool_call>").calls == ()
    assert read(case, text=f"{thinking}</think>\n\n", finish_reason="length").calls == ()
    assert read(case, text=thinking, finish_reason="length").calls == ()
    assert [call.name for call in read(case, text=f"{thinking}</think>\n\n").calls] == ["now"]


def test_t29_a_literal_think_tag_in_history_does_not_split_the_message():
    stored = json.loads(CASES["T29"]["input"])
    chat = [Message("user", "What is it?"), Message(stored["role"], stored["content"]), Message("user", "Go on")]
    text = "".join(piece.text for piece in render(chat, (), format="qwen3.5", thinking=True))
    assert "<|im_start|>assistant\nThe tag </think> closes thinking.<|im_end|>\n" in text


def test_t32_a_doubled_argument_object_is_an_error():
    reply = read(CASES["T32"], text=f"<tool_call>\n{CASES['T32']['input']}\n</tool_call>")
    assert reply.calls == ()
    assert "more text behind its JSON" in reply.errors[0]


def test_t38_t43_stay_text_and_the_validation_names_the_parameters():
    problems = {}
    for case in (CASES["T38"], CASES["T43"]):
        (call,) = read(case).calls
        problems[call.name] = " ".join(argument_problems(case["tools"][0]["parameters"], call.arguments))
    assert "day" in problems["plan"]
    assert "urgent" in problems["plan"]
    assert "content" in problems["write_file"]


def test_t43_an_empty_value_is_a_value():
    text = CASES["T43"]["input"].replace("</function>", "<parameter=content>\n</parameter>\n</function>")
    assert read(CASES["T43"], text=text).calls[0].arguments == {"path": "empty.txt", "content": ""}


def test_t41_arguments_that_are_no_object_are_an_error():
    for arguments in ('"hello"', "[]", "1", '"[1]"', '"{}{}"'):
        reply = read(CASES["T41"], text=f'<tool_call>\n{{"name": "get_temp", "arguments": {arguments}}}\n</tool_call>')
        assert reply.calls == (), arguments
        assert len(reply.errors) == 1
    for arguments in ('""', "null", '"{}"'):
        reply = read(CASES["T41"], text=f'<tool_call>\n{{"name": "get_temp", "arguments": {arguments}}}\n</tool_call>')
        assert reply.calls == (ParsedCall("get_temp"),), arguments


def test_t47_chunks_joined_are_the_reply():
    chunks = json.loads(CASES["T47"]["input"].removeprefix("chunks: "))
    reply = read(CASES["T47"], text="".join(chunks))
    assert [call.arguments for call in reply.calls] == CASES["T47"]["machine_expected"]["arguments"]
    for count in range(1, len(chunks)):  # and the part that has arrived never shows a piece of a tag
        assert read(CASES["T47"], text="".join(chunks[:count]), finish_reason="length").content == ""


def test_t52_an_example_in_a_fence_is_text():
    case = CASES["T52"]
    assert read(case).calls == ()
    assert read(case).content == case["input"]
    cut_in_the_fence = case["input"].rsplit("```", 1)[0]
    assert read(case, text=cut_in_the_fence).calls == ()
    behind_the_fence = f"{case['input']}\n<tool_call>\n<function=now>\n</function>\n</tool_call>"
    assert read(case, text=behind_the_fence).calls == (ParsedCall("now"),)
    assert read(case, text="Write `<tool_call>` and then `</tool_call>`.").content.startswith("Write `<tool_call>`")
    assert read(case, text="A <tool_call> opens a call.").errors == ()


def test_t53_a_rejected_call_leaves_nothing_that_cannot_be_rendered():
    call = json.loads(CASES["T53"]["input"])["tool_calls"][0]["function"]
    text = f'<tool_call>\n{{"name": "{call["name"]}", "arguments": {json.dumps(call["arguments"])}}}\n</tool_call>'
    reply = read(CASES["T53"], text=text)
    assert reply.calls == ()
    assert len(reply.errors) == 1
    chat = [Message("user", "Write"), Message("assistant", text), Message("user", reply.errors[0])]
    assert render(chat, (), format="qwen3.5", thinking=True)


def test_t55_a_chat_that_no_template_takes_is_named():
    call = Message("assistant", calls=(ParsedCall("now"),))
    with pytest.raises(ValueError, match="no user message"):
        render([Message("system", "S"), call, Message("tool", "12:00")], (), format="qwen3.5", thinking=True)
    with pytest.raises(ValueError, match="no user message"):
        render([], (), format="hermes", thinking=True)
    with pytest.raises(ValueError, match="first message only"):
        render([Message("user", "Hi"), Message("system", "S")], (), format="qwen3.5", thinking=True)
    with pytest.raises(ValueError, match="'developer'"):
        render([Message("developer", "D"), Message("user", "Hi")], (), format="hermes", thinking=True)


@pytest.mark.parametrize("case", TABLE, ids=lambda case: case["id"])
def test_every_prefix_is_read_without_a_partial_value(case):
    whole = read(case, finish_reason="stop").calls
    for end in range(len(case["input"])):
        text = case["input"][:end]
        for in_thinking in (False, True):
            read(case, text=text, finish_reason="stop", in_thinking=in_thinking)
        cut = read(case, text=text, finish_reason="length")
        assert cut.truncated
        if case["id"] not in AMBIGUOUS_WHEN_CUT | {"T26"}:
            for call in cut.calls:
                assert any(
                    call.name == w.name and all(w.arguments.get(k, w) == v for k, v in call.arguments.items())
                    for w in whole
                ), end

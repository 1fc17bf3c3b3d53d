"""What holds for any reply: reading undoes rendering, nothing raises, and quoted markup adds and changes no call."""

from __future__ import annotations

import itertools
import json
import math
from random import Random

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hermes_spark.llm.chat_format import parse_reply, render_calls
from hermes_spark.messages import ParsedCall, Reply, ToolSpec

QUICK = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
CLOSING = ("</parameter", "</function>", "</tool_call>")
PARAMETERS = {
    "text": {"type": "string"},
    "count": {"type": "integer"},
    "size": {"type": "number"},
    "flag": {"type": "boolean"},
    "due": {"type": ["integer", "null"]},
    "tags": {"type": "array"},
    "more": {"anyOf": [{"type": "object"}, {"type": "null"}]},
}
TOOLS = [
    ToolSpec("save", "", {"type": "object", "properties": PARAMETERS}),
    ToolSpec("now", "", {"type": "object", "properties": {}}),
    ToolSpec("note", "", {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}),
]

OPENERS = [
    "<tool_call>",
    "<function=now>",
    "<function=save>",
    "<parameter=text>",
    "<parameter=count>",
    "<think>",
    "</think>",
]
CLOSERS = ["</parameter>", "</function>", "</tool_call>", "</parameter1>", "</parameter/>"]
ODDS = [
    "\n",
    "\n\n",
    "  ",
    '"',
    "'",
    "\\",
    "{",
    "}",
    "[",
    "```\n",
    "`",
    "<",
    ">",
    "&lt;",
    "None",
    "True",
    "3",
    "😀",
    "é",
]
ODDS += [
    "张三",
    '{"name": "now", "arguments": {}}',
    "{'name': 'now'}",
    "<|im_end|>",
    "<tool_response>",
    "\r\n",
    "\u2028",
]
JUNK = [
    "\0",
    "\ud800",
    "1" * 5000,
    "-" + "9" * 30,
    "1e999",
    "NaN",
    "[" * 3000,
    '{"a":' * 3000,
    "<function=",
    "<tool_call>{",
]
JUNK += [
    '"arguments": ',
    "<parameter=due>\n",
    "<parameter=tags>\n[",
    "~~~\n",
    "(1,)",
    "b''",
    "\\u12",
    "</",
    ":",
    ",",
    "]",
]
words = st.text(max_size=8)


def texts(*pieces: list[str], max_size: int = 6) -> st.SearchStrategy[str]:
    """Words and `pieces` in a row."""
    return st.lists(st.sampled_from([*itertools.chain(*pieces)]) | words, max_size=max_size).map("".join)


quoted = texts(ODDS, OPENERS)
integers = st.integers(-(2**63), 2**64 - 1)
floats = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | integers | floats | quoted,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(words, inner, max_size=2),
    max_leaves=4,
)
saved = st.fixed_dictionaries(
    {},
    optional={
        "text": quoted,
        "count": integers,
        "size": integers | floats,
        "flag": st.booleans(),
        "due": integers | st.none(),
        "tags": st.lists(json_values, max_size=2),
        "more": st.none() | st.dictionaries(words, json_values, max_size=2),
    },
)
calls = st.lists(
    st.builds(ParsedCall, st.just("save"), saved)
    | st.builds(ParsedCall, st.just("note"), st.fixed_dictionaries({"text": quoted}))
    | st.just(ParsedCall("now")),
    min_size=1,
    max_size=4,
)
prose = st.text(alphabet="abc .,\n*<>é", max_size=30)  # no fences: what they hold is no call


def read(text, *, format="qwen3.5", finish_reason="stop", in_thinking=False) -> Reply:
    return parse_reply(text, tools=TOOLS, format=format, finish_reason=finish_reason, in_thinking=in_thinking)


@settings(QUICK, max_examples=400)
@given(calls, prose, prose)
@example([ParsedCall("save", {"text": "  indented\nline2\n", "tags": ["a<b", "é"], "flag": True, "due": None})], "", "")
@example(
    [ParsedCall("note", {"text": "an open <tool_call>"}), ParsedCall("note", {"text": "<parameter=text>"})], "", ""
)
def test_xml_rendered_then_read_is_the_same(calls, content, reasoning):
    rendered = render_calls(calls, format="qwen3.5")
    values = json.dumps([call.arguments for call in calls], ensure_ascii=False)
    if any(tag in values for tag in CLOSING):
        return
    reply = read(f"{reasoning}\n</think>\n\n{content}\n\n{rendered}", in_thinking=True)
    assert reply == Reply(content.strip(), reasoning.strip(), tuple(calls))


@settings(QUICK, max_examples=150)
@given(
    st.lists(
        st.builds(
            ParsedCall, words.map(str.strip), st.dictionaries(texts(ODDS, CLOSERS, max_size=3), json_values, max_size=3)
        ),
        max_size=3,
    )
)
def test_json_rendered_then_read_is_the_same_whatever_it_quotes(calls):
    assert read(f"Well.\n{render_calls(calls, format='hermes')}", format="hermes") == Reply("Well.", calls=tuple(calls))


@settings(QUICK, max_examples=600)
@given(texts(ODDS, CLOSERS, OPENERS, max_size=12), texts(CLOSERS, OPENERS, max_size=12))
@example("a</parameter>\n</function>\n</tool_call>b", "")
@example("</parameter></function></tool_call><tool_call><function=now></function></tool_call>", "")
@example("</parameter></function></tool_call>\n<tool_call>\n<function=now>", "")
@example('</parameter></function></tool_call><tool_call>{"name": "now", "arguments": {"a": "', "")
@example("</function></tool_call><tool_call><function=now></function></tool_call>", "")
@example("</parameter></function></tool_call>\n```\n", "")
@example("</parameter1>\n<tool_call>\n<function=now>\n</function>\n</tool_call>", "")
def test_quoted_closing_tags_never_add_or_change_a_call(first, second):
    # A parameter opened in the text could take up the leftover closing tags: then nothing is left to notice (see `scan`).
    first, second = first.replace("<parameter=", ""), second.replace("<parameter=", "")
    wanted = [ParsedCall("note", {"text": first}), ParsedCall("save", {"text": second, "count": 1}), ParsedCall("now")]
    reply = read(render_calls(wanted, format="qwen3.5"))
    remaining = iter(wanted)
    assert all(call in remaining for call in reply.calls)  # in order, each once
    assert reply.errors or len(reply.calls) == len(wanted)


@settings(QUICK, max_examples=100)
@given(texts(ODDS, CLOSERS, OPENERS, max_size=12))
def test_json_calls_read_after_a_malformed_one_cannot_come_from_its_text(evil):
    broken = json.dumps({"name": "note", "arguments": {"text": evil}}, ensure_ascii=False).replace("}}", "} oops }")
    assert read(f"<tool_call>\n{broken}\n</tool_call>").calls == ()


REPLIES = [
    render_calls(
        [ParsedCall("save", {"text": "a\nb", "count": 3, "tags": ["x"]}), ParsedCall("now")], format="qwen3.5"
    ),
    "Let me look.\n</think>\n\n" + render_calls([ParsedCall("note", {"text": "x"})], format="hermes"),
    "<tool_call>\n{'name': 'save', 'arguments': {'flag': True, 'due': None, 'tags': ['it\\'s',]}}\n</tool_call>",
    "<think>\nFirst.\n</think>\n\nSo:\n```\n<tool_call>\n<function=now>\n</function>\n</tool_call>\n```\n",
    "Maybe <tool_call>\n<function=now>\n</function>\n</tool_call>\n</think>\n\n<function=now>\n</function>",
]


FRAGMENTS = [*ODDS, *OPENERS, *CLOSERS, *JUNK]
seeds = st.integers(0, 2**64).map(Random)  # a draw for each choice would take minutes; a failure still names its text


def random_text(random: Random) -> str:
    parts = (random.choice(FRAGMENTS) if random.random() < 0.7 else chr(random.randrange(0x110000)) for _ in range(12))
    return "".join(itertools.islice(parts, random.randrange(12)))


def mutated(random: Random) -> str:
    text = random.choice(REPLIES)
    for _ in range(random.randint(1, 4)):
        a, b, c = sorted(random.randint(0, len(text)) for _ in range(3))
        left, right = text[a:b], text[b:c]
        middles = (right, left + left + right, right + left, left + random_text(random) + right)
        text = text[:a] + random.choice(middles) + text[c:]
    return text


def check_readable(text: str, finish_reason: str) -> None:
    for in_thinking in (False, True):
        reply = read(text, finish_reason=finish_reason, in_thinking=in_thinking)
        assert isinstance(reply.content, str)
        assert isinstance(reply.reasoning, str)
        assert finish_reason != "length" or reply.truncated
        for call in reply.calls:
            assert isinstance(call.name, str)
            check_value(call.arguments)


def check_value(value: object) -> None:
    """What a record can hold: JSON's types, integers of 64 bits, finite numbers. Characters are the registry's business."""
    if isinstance(value, dict):
        assert all(isinstance(key, str) for key in value)
        check_value(list(value.values()))
    elif isinstance(value, list):
        for item in value:
            check_value(item)
    elif isinstance(value, float):
        assert math.isfinite(value)
    elif isinstance(value, int):
        assert -(2**63) <= value < 2**64
    else:
        assert value is None or isinstance(value, str)


finish_reasons = st.sampled_from(["stop", "length"])


@settings(QUICK, max_examples=5000)
@given(seeds.map(mutated), finish_reasons)
def test_no_mutated_reply_raises(text, finish_reason):
    check_readable(text, finish_reason)


@settings(QUICK, max_examples=4000)
@given(seeds.map(random_text), finish_reasons)
def test_no_random_text_raises(text, finish_reason):
    check_readable(text, finish_reason)


@settings(QUICK, max_examples=1000)
@given(texts(FRAGMENTS, max_size=8), finish_reasons)
def test_no_text_raises(text, finish_reason):
    check_readable(text, finish_reason)


@pytest.mark.parametrize(
    "unit", ["<tool_call>", "<tool_call>{", '<tool_call>{"a": "', "<function=now>", "</parameter>", "`"]
)
@pytest.mark.parametrize("prefix", ["", "<tool_call><function=save><parameter=text>", '<tool_call>{"name": "x", "a": '])
def test_long_repetitions_are_read(prefix, unit):
    check_readable(prefix + unit * 2000, "stop")
    check_readable(prefix + f"{unit}\n```\n" * 500, "stop")

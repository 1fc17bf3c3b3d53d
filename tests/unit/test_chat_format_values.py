"""Values under their schemas, literals, and single rules of reading that no case of the table shows."""

from __future__ import annotations

import pytest

from hermes_spark.llm.chat_format import parse_reply, render_calls
from hermes_spark.llm.chat_format.document import Unreadable
from hermes_spark.llm.chat_format.literals import read_value
from hermes_spark.llm.chat_format.values import typed, types_of
from hermes_spark.messages import ParsedCall, Reply, ToolSpec

TOOLS = [
    ToolSpec("now", "", {"type": "object", "properties": {}}),
    ToolSpec("note", "", {"type": "object", "properties": {"text": {"type": "string"}, "n": {"type": "integer"}}}),
    ToolSpec("open", "", {"type": "object", "properties": {"a": {}}, "additionalProperties": True}),
]
NOW = "<tool_call>\n<function=now>\n</function>\n</tool_call>"


def read(text, *, finish_reason="stop", in_thinking=False) -> Reply:
    return parse_reply(text, tools=TOOLS, format="qwen3.5", finish_reason=finish_reason, in_thinking=in_thinking)


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "integer"}, " 7\n", 7),
        ({"type": "integer"}, "+5", 5),
        ({"type": "integer"}, "3.0", 3),
        ({"type": "integer"}, "3.5", "3.5"),
        ({"type": "integer"}, "٣", "٣"),
        ({"type": "integer"}, "1_000", "1_000"),
        ({"type": "integer"}, "None", "None"),
        ({"type": "integer"}, str(2**64 - 1), 2**64 - 1),
        ({"type": "integer"}, str(2**64), str(2**64)),
        ({"type": "integer"}, "9" * 5000, "9" * 5000),
        ({"type": "number"}, "1e3", 1000.0),
        ({"type": "number"}, "-.5", -0.5),
        ({"type": "number"}, "inf", "inf"),
        ({"type": "number"}, "1e999", "1e999"),
        ({"type": "number"}, str(10**30), str(10**30)),
        ({"type": "boolean"}, "TRUE", True),
        ({"type": "boolean"}, "yes", "yes"),
        ({"type": "array"}, "(1, 2)", "(1, 2)"),
        ({"type": "array"}, '{"a": 1}', '{"a": 1}'),
        ({"type": "array"}, "[1, 2,]", [1, 2]),
        ({"type": "object"}, '{"a": 1} and more', '{"a": 1} and more'),
        ({"type": "object"}, '{"a": NaN, "b": 1e999, "c": 18446744073709551616}', None),
        ({"type": "string"}, "null", "null"),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": "string", "nullable": True}, "None", None),
        ({"type": ["string", "integer"]}, "3", 3),
        ({"type": ["string", "integer"]}, "02134", "02134"),
        ({"type": ["string", "number"]}, "1e5", "1e5"),
        ({"type": ["string", "boolean"]}, "true", True),
        ({"type": ["string", "boolean"]}, "TRUE", "TRUE"),
        ({"type": ["string", "object"]}, '{"a": 1}', {"a": 1}),
        ({"enum": [1, 2, None]}, "2", 2),
        ({"enum": ["1", "2"]}, "2", "2"),
        ({"const": 4}, "4", 4),
        ({"enum": "broken"}, "4", "4"),
        ({}, "3", "3"),
        (True, "3", "3"),
        ({"$ref": "#/$defs/n~1a"}, "3", 3),
        ({"$ref": "#/$defs/missing/deep"}, "3", "3"),
        ({"$ref": "https://example.org/n"}, "3", "3"),
        ({"$ref": "#/$defs/loop"}, "3", 3),
        ({"allOf": [{"type": "integer"}], "oneOf": "broken"}, "3", 3),
    ],
)
def test_typed(schema, text, value):
    root = {"$defs": {"n/a": {"type": "integer"}, "loop": {"anyOf": [{"$ref": "#/$defs/loop"}, {"type": "integer"}]}}}
    if value is None and text.startswith("{"):
        value = {"a": "NaN", "b": "1e999", "c": "18446744073709551616"}
    found = typed(text, schema, root)
    assert found == value
    assert type(found) is type(value)


def test_types_of_a_schema_as_deep_as_it_likes():
    schema: dict = {"type": ["integer"]}
    for _ in range(20_000):
        schema = {"anyOf": [schema]}
    assert types_of(schema, {}) == {"integer"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{'a': True, 'b': None, 'c': false, 'd': [],}", {"a": True, "b": None, "c": False, "d": []}),
        (r"""{'it\'s': "say \"x\"", 'nl': 'a\nb\x41\u00e9'}""", {"it's": 'say "x"', "nl": "a\nbAé"}),
        ("['a\nb', -1.5e3] rest", ["a\nb", -1500.0]),
        ("{'a': 'tail \\\\'}", {"a": "tail \\"}),
    ],
)
def test_python_literals(text, value):
    assert read_value(text, 0)[0] == value


@pytest.mark.parametrize(
    "text",
    [
        "{'a': b'x'}",
        "{'a': 1 if x else 2}",
        "{'a': (1,)}",
        r"{'a': '\d'}",
        r"['\d']",
        "{'a'}",
        "{1: 2}",
        "{,}",
        "[01]",
        "['a' 'b']",
        "{'a': " * 100,
        "[" * 100 + "]" * 100,
        "['" + "[" * 70,
        "[" * 100_000,
        "{'a': [}",
    ],
)
def test_what_is_no_literal_is_unreadable(text):
    with pytest.raises(Unreadable):
        read_value(text, 0)


def test_brackets_in_strings_are_not_depth():
    assert read_value('["' + "[" * 5000 + '"]', 0)[0] == ["[" * 5000]


def test_unknown_and_blank_names_are_passed_on():
    assert read("<tool_call>\n<function=>\n</function>\n</tool_call>").calls == (ParsedCall(""),)
    parameters = "<parameter=x>\n3\n</parameter>\n<parameter=y>\n</parameter>\n"
    text = f"<tool_call>\n<function= nope >\n{parameters}</function></tool_call>"
    assert read(text).calls == (ParsedCall("nope", {"x": "3", "y": ""}),)


def test_undeclared_parameters():
    def one(name, *names):
        parameters = "".join(f"<parameter={each}>\nv\n</parameter>\n" for each in names)
        return read(f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>")

    assert one("open", "a", "b", "c").calls == (ParsedCall("open", {"a": "v", "b": "v", "c": "v"}),)
    assert one("note", "other").calls == (ParsedCall("note", {"other": "v"}),)
    assert "followed by other, which is not declared" in one("note", "text", "other").errors[0]
    assert "text" in one("note", "text", "text").errors[0]
    assert "a is given twice" in one("open", "a", "a").errors[0]


def test_forgiven_are_closing_tags_that_nothing_depends_on():
    note = ParsedCall("note", {"text": "x"})
    body = "<function=note>\n<parameter=text>\nx\n</parameter>\n"
    for text in (
        f"<tool_call>{body}</tool_call>",
        f"<tool_call>{body}</function>",
        f"<tool_call>\n{body}</function>\nBack soon.",
        f"  {body}</function></tool_call>",
    ):
        reply = read(text)
        assert (reply.calls, reply.errors, reply.truncated) == ((note,), (), False), text
    assert read(f"<tool_call>\n{body}</function>\n{body}</function>\n</tool_call>").calls == (note, note)
    assert read(f"<tool_call>\n{body}</function>\n{NOW}").calls == (note, ParsedCall("now"))
    assert read(f"<tool_call>\n{body}").truncated


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ("<tool_call>\n<function=note>\n<parameter=text>\nx\n</function>\n</tool_call>", "text is not closed"),
        ("<tool_call>\n<function=note>\nx\n</function>\n</tool_call>", "something else stands"),
        ("<tool_call>\nnow()\n</tool_call>", "neither a <function=NAME> nor a JSON object"),
        ('<tool_call>\n{"name": "now"}}\n</tool_call>', "more text behind"),
        ('<tool_call>\n{"arguments": {}}\n</tool_call>', 'no "name"'),
        ('<tool_call>\n{"name": "now", "arguments": {"a": "b}}\n</tool_call>', "malformed"),
    ],
)
def test_nothing_is_read_behind_a_block_that_may_hold_a_value(broken, reason):
    reply = read(f"Hi.\n{NOW}\n{broken}\n{NOW}\nBye.")
    assert reply.calls == (ParsedCall("now"),)
    assert reply.content == "Hi."
    assert len(reply.errors) == 1
    assert reason in reply.errors[0]
    assert "what followed it" in reply.errors[0]


def test_a_reply_that_just_stops_is_cut_whatever_its_finish_reason():
    for text in (
        "<tool_call>",
        "<tool_call>\nnow(",
        "<tool_call>\n<function=note>\nx",
        '<tool_call>\n{"name": "now"} x',
    ):
        assert (read(text).truncated, read(text).calls) == (True, ()), text
    unterminated = '<tool_call>\n{"name": "now", "arguments": {"a": "b}}\n</tool_call>'
    assert not read(unterminated).truncated
    assert read(f"{unterminated} and").truncated


def test_stray_closing_tags_behind_a_call():
    reply = read("<tool_call>\n<function=now>\n</function>\nOne moment.\n</tool_call>\nBack soon.")
    assert (reply.content, reply.calls) == ("One moment.\n\nBack soon.", (ParsedCall("now"),))
    call = render_calls(
        [ParsedCall("note", {"text": "a\n</parameter>\n</function>\n</tool_call>\nb"})], format="qwen3.5"
    )
    reply = read(f"The <parameter=x> tag is next.\n{call}\n{NOW}")
    assert (reply.content, reply.calls) == ("The <parameter=x> tag is next.", ())
    assert "left over" in reply.errors[0]


def test_a_broken_tag_without_values_spoils_nothing():
    reply = read(f"<tool_call>\n<function=now\n</function>\n</tool_call>\n{NOW}")
    assert reply.calls == (ParsedCall("now"),)
    assert "it was not run" in reply.errors[0]


def test_errors_ask_for_the_format_that_was_taught():
    for format, taught in (("qwen3.5", "<function=NAME>"), ("hermes", "JSON object that has")):
        reply = parse_reply(
            "<tool_call>\n?\n</tool_call>", tools=(), format=format, finish_reason="stop", in_thinking=False
        )
        assert taught in reply.errors[0]


def test_a_think_end_quoted_in_a_value_ends_no_thinking():
    text = "I write it.\n<tool_call>\n<function=note>\n<parameter=text>\na </think> b\n</parameter>\n</function>\n</tool_call>"
    reply = read(text, in_thinking=True)
    assert (reply.reasoning, reply.calls) == ("I write it.", (ParsedCall("note", {"text": "a </think> b"}),))


def test_an_abandoned_draft_swallows_no_answer():
    call = ParsedCall("note", {"text": "y"})
    answer = f"Ok.\n{render_calls([call], format='qwen3.5')}"
    text = f"Maybe <tool_call>\n<function=note>\n<parameter=text>\nx\n hm.\n</think>\n\n{answer}"
    reply = read(text, in_thinking=True)
    assert (reply.content, reply.calls, reply.errors) == ("Ok.", (call,), ())
    assert reply.reasoning.startswith("Maybe <tool_call>")


def test_unclosed_thinking_without_a_call_is_a_cut_reply():
    reply = read("First, the <tool_call> tag. Then", in_thinking=True)
    assert reply == Reply(reasoning="First, the <tool_call> tag. Then", truncated=True)


def test_no_piece_of_a_tag_is_content():
    for tail in ("<t", "<tool_cal", "<func", "\n<function=get_te", "\n  <function=now"):
        assert read(f"Let me see.{tail}", finish_reason="length").content == "Let me see."
    assert read("a <", finish_reason="length").content == "a <"
    assert read("The tag is <tool_call", finish_reason="stop").content == "The tag is <tool_call"


def test_fences():
    call = f"```\n{NOW}\n```"
    assert read(call).calls == ()
    assert read(f"~~~~xml\n{NOW}\n~~~\n{NOW}").calls == ()
    assert read(f"```\nx\n```\n{NOW}").calls == (ParsedCall("now"),)
    assert read(f"{NOW}\n```\n{NOW}\n```").calls == (ParsedCall("now"),)
    quoted = "<tool_call>\n<function=note>\n<parameter=text>\n```\ncode\n</parameter>\n</function>\n</tool_call>"
    assert len(read(f"{quoted}\n{NOW}").calls) == 2


def test_characters_that_no_record_holds_are_passed_on_for_the_registry_to_refuse():
    reply = read('<tool_call>\n{"name": "note", "arguments": {"text": "\\u0000\\ud83d"}}\n</tool_call>')
    assert reply.calls == (ParsedCall("note", {"text": "\0\ud83d"}),)


@pytest.mark.parametrize(
    "value",
    [
        "<tool_call>\n<function=note>\n<parameter=text>\ninner\n</parameter>\n</function>\n</tool_call>",
        "a </tool_call> b <tool_call>\n<function=note>\n<parameter=text>\nx\n</parameter>\n</function>\n</tool_call> c",
        "a\n</parameter>\n</function>\nb",
        "a </parameter> b </function> c </tool_call> d",
    ],
)
def test_quoted_markup_that_can_be_told_apart_is_kept_whole(value):
    call = ParsedCall("note", {"text": value})
    assert read(f"{render_calls([call], format='qwen3.5')}\n{NOW}").calls == (call, ParsedCall("now"))

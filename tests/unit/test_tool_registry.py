"""The tool file, the choice of an event, and the check of a model's calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_spark.errors import SettingsError
from hermes_spark.messages import ToolSpec
from hermes_spark.settings import ToolSettings
from hermes_spark.tools.arguments import MAX_DEPTH, argument_problems, schema_fault
from hermes_spark.tools.registry import Registry, Tool, UndoRule

ROOT = Path(__file__).parents[2]
SCHEMA = {
    "type": "object",
    "properties": {
        "content": {"type": "string"},
        "day": {"type": "integer"},
        "due": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "tags": {"type": "array", "items": {"type": "object", "required": ["name"]}},
        "level": {"enum": ["low", "high"]},
    },
    "required": ["content"],
    "additionalProperties": False,
}


def tool(name: str = "save_note", **fields: Any) -> Tool:
    return Tool(**{"name": name, "description": "d", "parameters": SCHEMA, "url": "http://h/x", **fields})


def load(tmp_path: Path, text: str, base_url: str = "") -> Registry:
    path = tmp_path / "tools.yaml"
    path.write_text(text, encoding="utf-8")
    return Registry.load(ToolSettings(file=str(path), base_url=base_url))


def entry(**fields: object) -> str:
    whole = {"name": "a", "description": "d", "parameters": {"type": "object"}, "url": "http://h/x", **fields}
    return msgspec.json.encode({"tools": [{k: v for k, v in whole.items() if v is not ...}]}).decode()  # JSON is YAML


def test_the_shipped_file_loads() -> None:
    registry = Registry.load(ToolSettings(file=str(ROOT / "conf" / "tools.yaml"), base_url="http://127.0.0.1:81/"))
    names = [spec.name for spec in registry.specs(None)]
    assert names == ["crm_query", "order_status", "kb_search", "create_ticket", "cancel_ticket"]
    found = registry.get("crm_query")
    assert found is not None
    assert found.url == "http://127.0.0.1:81/tools/crm_query"
    assert not found.side_effects
    assert registry.get("nothing") is None
    assert {spec.name: registry.get(spec.name).policy for spec in registry.specs(None)} == dict.fromkeys(
        names, "idempotent"
    )


def test_the_file_with_approvals_loads() -> None:
    file = ROOT / "conf" / "tools-approvals.yaml"
    registry = Registry.load(ToolSettings(file=str(file), base_url="http://127.0.0.1:81/"))
    refund = registry.get("refund_order")
    assert refund is not None
    assert (refund.policy, refund.reconcile_url) == ("reconcile", "http://127.0.0.1:81/reconcile")
    assert [registry.approve_within_ms(name, 9) for name in ("refund_order", "create_ticket", "none")] == [
        600_000,
        0,
        0,
    ]
    create = registry.get("create_ticket")
    assert create is not None
    assert create.undo == UndoRule("cancel_ticket", {"ticket_id": "/result/ticket_id"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tools: [", "not YAML"),
        ("", "`tools`"),
        ("tools: {}", "`tools`"),
        ("tools: []\nmore: 1", "`tools`"),
        ("tools: [1]", "tool 1: Expected `object`, got `int`"),
        ("tools:\n- &a [*a]", "not YAML that JSON could hold"),
        (entry(colour="red"), 'tool "a": Object contains unknown field `colour`'),
        (entry(url=...), "missing required field `url`"),
        (entry(name="9lives"), 'tool "9lives": a name is'),
        (entry(name="x" * 65), "a name is"),
        (entry(name="a\n"), "a name is"),
        (entry(policy="hope"), 'policy is "hope"; expected unknown, idempotent, reconcile'),
        (entry(policy="reconcile"), "the policy reconcile and a reconcile_url go together"),
        (entry(reconcile_url="http://h/r"), "the policy reconcile and a reconcile_url go together"),
        (entry(policy="reconcile", reconcile_url="ftp://h/r"), "reconcile_url is none; expected http(s)"),
        (entry(policy="reconcile", reconcile_url="/r"), "tools.base_url"),
        (entry(parameters={"type": "objekt"}), '"type": "object", got "type": "objekt"'),
        (entry(parameters={}), '"type": "object"'),
        (entry(parameters={"type": "object", "properties": []}), "no JSON schema"),
        (entry(parameters={"type": "object", "properties": {"q": {"type": "text"}}}), "properties.q.type"),
        (entry(parameters={"type": "object", "properties": {"q": {"$ref": "#/no"}}}), "no JSON schema"),
        (entry(timeout_s=0), "timeout_s is 0.0"),
        (entry(approval_timeout_s=0), "approval_timeout_s is 0.0"),
        (entry(undo={"tool": "b"}), 'tool "a": undo names "b", which is no tool of this file'),
        (entry(timeout_s=601), "timeout_s is 601.0"),
        (entry(timeout_s="5"), "got `str`"),
        (entry(url="ftp://h/x"), "expected http(s)"),
        (entry(url="http://"), "expected http(s)"),
        (entry(url="http://h:99999/"), "expected http(s)"),
        (entry(url="http://h/a b"), "expected http(s)"),
        (entry(url="http://me:pw@h/"), "credentials into headers"),
        (entry(url="/x"), "tools.base_url"),
        (entry(headers={"Idempotency-Key": "1"}), "cannot be set"),
        (entry(headers={"a b": "1"}), "cannot be set"),
        (entry(headers={"X": "1\r\nY: 2"}), "does not allow"),
        (entry(headers={"X": "${NOT_SET_ANYWHERE}"}), "'NOT_SET_ANYWHERE', which is not set"),
    ],
)
def test_faults_of_the_file_name_file_and_remedy(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, text)
    assert expected in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / "tools.yaml"))


def test_a_name_given_twice_and_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="given twice"):
        Registry([tool(), tool()])
    with pytest.raises(SettingsError, match=r"tools\.file: cannot read .*nowhere"):
        Registry.load(ToolSettings(file="nowhere.yaml"))


def test_header_secrets_come_from_the_environment_and_never_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_TOKEN", "s3cret")
    found = load(tmp_path, entry(url="http://h/x?key=s3cret", headers={"Authorization": "Bearer ${SHOP_TOKEN}"})).get(
        "a"
    )
    assert found is not None
    assert found.headers == {"Authorization": "Bearer s3cret"}
    assert "s3cret" not in f"{found!r} {found} {found.__rich_repr__()}"
    monkeypatch.setenv("SHOP_TOKEN", "s3cret\n")
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, entry(headers={"Authorization": "Bearer ${SHOP_TOKEN}"}))
    assert "s3cret" not in str(caught.value)


def test_specs_follow_the_choice() -> None:
    registry = Registry([tool("a"), tool("b"), tool("c")])
    own = ToolSpec("b", "mine", {"type": "object"})
    assert [spec.name for spec in registry.specs(None)] == ["a", "b", "c"]
    assert registry.specs(()) == ()
    assert registry.specs(("c", own, "gone")) == (ToolSpec("c", "d", SCHEMA), own)
    assert registry.specs((ToolSpec("a", "", {"type": "object"}),))[0].description == "d"


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ""),
        ((), ""),
        (("a", ToolSpec("b", "", {"type": "object"})), ""),
        (("zz",), 'tools: "zz" is no tool; available: a, b'),
        (("a", "a"), "given twice"),
        ((ToolSpec("a", "", {"type": "objekt"}),), '"type": "object"'),
        ((ToolSpec("a", "", {"type": "object", "properties": {"x": {"type": 5}}}),), "no JSON schema"),
        ((ToolSpec("a", "", {"type": "object", "$ref": "http://127.0.0.1:9/secret"}),), "not followed"),
        ((ToolSpec("a", "", {"type": "object", "$schema": "http://127.0.0.1:9/secret"}),), "no JSON schema"),
        ((ToolSpec("a", "", {"type": "object", "maximum": 10**30}),), "64 bits"),
        ((ToolSpec("a", "", {"type": "object", "enum": ["x" * 70_000]}),), "65536"),
    ],
)
def test_refused_choices(choice: Any, expected: str) -> None:
    refusal = Registry([tool("a"), tool("b")]).refuse_choice(choice)
    assert expected in refusal
    assert bool(refusal) == bool(expected)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"content": "x"}, ""),
        ({"content": "x", "due": None, "day": 2**63}, ""),
        ({}, "save_note: content is required"),
        ({"content": "x", "day": "2026-01-15"}, 'save_note: day: "2026-01-15" is not of type integer'),
        ({"content": "x", "due": "soon"}, 'save_note: due: "soon" is not of type integer or null'),
        ({"content": "x", "tags": [{}]}, "save_note: tags[0].name is required"),
        ({"content": "x", "more": 1}, "save_note: more: no such parameter"),
        ({"content": "x", "level": "mid"}, 'save_note: level: "mid" is not one of "low" or "high"'),
        ({"content": "a\0b"}, "save_note: content holds a NUL character or half a surrogate pair; send plain text"),
        ({"content": "\ud83d"}, "save_note: content holds a NUL character or half a surrogate pair; send plain text"),
        ({"content": "x", "day": 2**64}, "save_note: day is an integer of more than 64 bits; send it as text"),
        ({"content": "x", "day": float("inf")}, "save_note: day is not a finite number"),
    ],
)
def test_checked_arguments(arguments: dict[str, Any], expected: str) -> None:
    assert Registry([tool()]).check("save_note", arguments, None) == expected


def test_problems_are_few_and_short_and_sizes_are_bounded() -> None:
    registry = Registry([tool()])
    many = registry.check("save_note", {"content": "x", "tags": [5] * 100}, None)
    assert many.count("is not of type") == 5
    assert len(registry.check("save_note", {"content": "x", "day": "9" * 100_000}, None)) < 200
    deep: dict[str, Any] = {}
    for _ in range(5_000):
        deep = {"d": deep}
    for huge in (deep, {"tags": [0] * 20_000}, {"content": "x" * 1_000_001}, {"k" * 1_000_001: 1}):
        assert "too large" in registry.check("save_note", huge, None)


def test_a_recursive_schema_is_usable() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#"}, "v": {"type": "integer"}}}
    arguments: dict[str, Any] = {"v": "x"}
    for _ in range(MAX_DEPTH - 2):
        arguments = {"next": arguments}
    assert schema_fault(node) == ""
    assert "is not of type integer" in argument_problems(node, arguments)[0]


def test_unknown_tools_are_answered_with_the_closest_names() -> None:
    registry = Registry([tool(f"tool_{n:02}") for n in range(30)] + [tool("crm_query")])
    answer = registry.check("crm_qery", {}, None)
    assert answer.startswith('"crm_qery" is no tool; available: crm_query, ')
    assert answer.endswith(" and 11 more")
    assert answer.count("tool_") == 19
    assert registry.check("  ", {}, None) == "the call names no tool"
    assert registry.check("crm_query", {}, ("tool_01",)) == (
        '"crm_query" is not offered in this conversation; available: tool_01'
    )
    assert len(registry.check("x" * 100_000, {}, ())) < 200


def test_an_event_s_own_schema_is_the_one_that_counts() -> None:
    choice = (ToolSpec("save_note", "", {"type": "object", "required": ["title"]}),)
    registry = Registry([tool()])
    assert registry.check("save_note", {"title": "x"}, choice) == ""
    assert registry.check("save_note", {"content": "x"}, choice) == "save_note: title is required"
    bad = (ToolSpec("save_note", "", {"type": "object", "required": 5}),)  # journaled by an older version, say
    assert "no JSON schema" in registry.check("save_note", {}, bad)


texts = st.text(st.characters(exclude_categories=()), max_size=8)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from(["content", "day", "due", "tags", "level", "\ud800"]), json_values), st.text())
def test_whatever_a_model_writes_is_answered_and_what_passes_can_be_journaled(
    arguments: dict[str, Any], name: str
) -> None:
    registry = Registry([tool()])
    registry.check(name, arguments, None).encode()
    if registry.check("save_note", arguments, None) == "":
        msgspec.msgpack.encode(arguments)


@given(json_values, json_values)
def test_whatever_an_event_calls_a_schema_is_answered(properties: Any, extra: Any) -> None:
    fault = schema_fault({"type": "object", "properties": properties, "anyOf": extra})
    fault.encode()
    if not fault:
        msgspec.msgpack.encode(properties)

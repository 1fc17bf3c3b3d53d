"""AgentState to Arrow and back: nothing is lost, whatever the state; older arrays load, others are refused by name."""

from __future__ import annotations

import io
import math
import types
from random import Random
from typing import Any, Literal, Union, get_args, get_origin

import msgspec
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoints import busy
from hermes_spark.errors import StateError
from hermes_spark.events import Coordinates, InvalidEvent, Row, parse_event
from hermes_spark.messages import Message, ToolSpec
from hermes_spark.state.agent_state import SCHEMA_VERSION, AgentState, decode_state, encode_state
from hermes_spark.state.arrow import AGENT_STATE, describe, from_struct, to_struct

TEXTS = ["", " ", "look", "张三", "\x00\n", "null", '{"a": 1}', "\U0001f980"]
SCALARS: dict[Any, list[Any]] = {
    str: TEXTS,
    int: [0, 1, -1, 2**31, 2**63 - 1, -(2**63)],
    bool: [True, False],
    float: [0.0, -0.0, 1.0, 0.1, 1e300, math.nan, math.inf],
    bytes: [b"", b"\xff\x00"],
}
INT64 = st.integers(-(2**63), 2**63 - 1)
JSON = st.recursive(
    st.none() | st.booleans() | INT64 | st.floats(allow_nan=False) | st.just(math.nan) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def anything(kind: Any, chance: Random) -> Any:
    """Any value of a field's type; knows nothing of the code under test.

    By a seed, because hypothesis needs seconds to draw a few hundred values one by one.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if kind in SCALARS:
        return chance.choice(SCALARS[kind])
    if origin is Literal:
        return chance.choice(inner)
    if origin in (Union, types.UnionType):
        each = chance.choice(inner)
        return None if each is types.NoneType else anything(each, chance)
    if origin is tuple:
        return tuple(anything(inner[0], chance) for _ in range(chance.randrange(3)))
    if origin is dict:
        return {chance.choice(TEXTS): anything(inner[1], chance) for _ in range(chance.randrange(3))}
    if kind is Any:
        return anything(chance.choice([str, int, float, bool, int | None, dict[str, Any], list[Any]]), chance)
    if origin is list:
        return [anything(inner[0], chance) for _ in range(chance.randrange(3))]
    return kind(**{field.name: anything(field.type, chance) for field in msgspec.structs.fields(kind)})


def a_state(seed: int) -> AgentState:
    return msgspec.structs.replace(anything(AgentState, Random(seed)), schema_version=SCHEMA_VERSION)


STATES = st.lists(st.integers(0, 2**64).map(a_state), max_size=3)


def encoded(states: list[AgentState]) -> list[bytes]:
    """Compared as bytes, in which a NaN is equal to itself and 1 is not 1.0."""
    return [encode_state(state) for state in states]


@given(STATES)
def test_nothing_is_lost(states):
    array = to_struct(states)
    assert array.type == AGENT_STATE
    assert encoded(from_struct(array)) == encoded(states)


@given(STATES)
def test_nothing_is_lost_in_a_file(states):
    file = io.BytesIO()
    pyarrow.parquet.write_table(pa.table({"state": to_struct(states)}), file)
    read = pyarrow.parquet.read_table(file)["state"].combine_chunks()
    assert encoded(from_struct(read)) == encoded(states)


@given(st.dictionaries(st.text(max_size=3), JSON, max_size=3), st.text())
def test_whatever_json_and_texts_hold(memory, text):
    states = [AgentState("s", (Message("user", text),), memory=memory)]
    assert encoded(from_struct(to_struct(states))) == encoded(states)


def test_the_columns_have_the_words_of_the_design():
    names = AGENT_STATE.names
    assert names[:4] == ["session_id", "messages", "tools", "memory"]
    assert {"turn", "queue", "schema_version"} <= set(names)


def test_a_tool_by_name_is_no_tool_with_a_schema():
    tools = ("look", ToolSpec("book", "", {}))
    (state,) = from_struct(to_struct([AgentState("s", tools=tools)]))
    assert state.tools == tools


def test_no_choice_of_tools_is_not_the_choice_of_none():
    states = [AgentState("s", tools=None), AgentState("s", tools=())]
    assert [state.tools for state in from_struct(to_struct(states))] == [None, ()]


def without(kind: pa.DataType, names: set[str]) -> pa.DataType:
    """A type as it was before these fields existed, at every level."""
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, without(field.type, names)) for field in kind if field.name not in names])
    return pa.list_(without(kind.value_type, names)) if pa.types.is_list(kind) else kind


def test_an_array_from_before_some_fields_takes_their_defaults(tmp_path):
    states = list(busy(tmp_path).states.values())
    older = without(AGENT_STATE, {"seen_event_ids", "notes", "truncated", "memory"})
    read = from_struct(pa.array(to_struct(states).to_pylist(), older))
    expected = [msgspec.structs.replace(state, seen_event_ids=()) for state in states]
    assert any(state.seen_event_ids for state in states)
    assert read == expected


@pytest.mark.parametrize(
    ("array", "named"),
    [
        (pa.array([1]), "int64"),
        (pa.array([{"session_id": "s", "messages": "hello"}]), "string"),
        (pa.array([{"turns": 1}]), "session_id"),
        (pa.array([{"session_id": "s", "memory": "{half"}]), "JSON"),
        (pa.array([{"session_id": "s", "memory": "[1]"}]), "JSON"),
        (pa.array([{"session_id": "s", "schema_version": SCHEMA_VERSION + 1}]), "schema version"),
    ],
)
def test_an_array_of_something_else_is_refused(array, named):
    with pytest.raises(StateError, match=named):
        from_struct(array)


def test_described_values_are_plain_and_named(tmp_path):
    state = busy(tmp_path).states["s-open"]
    told = describe(state)
    assert told["turn"]["metadata"] == {"channel": "web"}
    assert told["turn"]["calls"][0]["arguments"] == {"q": "first"}
    assert [queued["taken"]["event"]["type"] for queued in told["queue"]] == ["message", "reset"]
    assert msgspec.json.decode(msgspec.json.encode(told)) == told


def test_a_state_of_a_later_version_is_not_misread():
    later = encode_state(AgentState("s1", schema_version=SCHEMA_VERSION + 1))
    with pytest.raises(StateError, match=f"'s1' was stored with schema version {SCHEMA_VERSION + 1}"):
        decode_state(later)


def test_a_state_of_an_earlier_version_becomes_one_of_this():
    assert decode_state(encode_state(AgentState("s1", schema_version=0))).schema_version == SCHEMA_VERSION


def test_no_event_brings_an_integer_that_no_column_holds():
    row = '{"session_id": "s", "messages": [{"role": "user", "content": "x"}], "max_tokens": %d}'
    largest = Row(Coordinates("p", 0), 0, (row % (2**63 - 1)).encode())
    assert parse_event(largest, max_bytes=1000).max_tokens == 2**63 - 1
    with pytest.raises(InvalidEvent, match="max_tokens is 9223372036854775808"):
        parse_event(Row(Coordinates("p", 0), 0, (row % 2**63).encode()), max_bytes=1000)

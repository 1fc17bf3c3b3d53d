"""AgentState as Arrow: one struct per session with the fields of the state, `{session_id, messages, tools, memory, ...}`.

The struct type follows from the fields of the state's classes, so a field that is added there is a column here:

============================== =====================================================================
in the state                   in Arrow
============================== =====================================================================
text, integer, float, boolean  string, int64, double, bool
a struct; a tuple of something  a struct; a list of it
a value that may be missing    the same, null when it is
a text or a tool               the tool's struct; a text is its name, and all else is null then
anything else (arguments,      string with JSON; floats that JSON has no word for are `NaN`, `Infinity`
metadata, memory)              and `-Infinity`
============================== =====================================================================

Nothing is lost on the way but the bits of a NaN: `from_struct(to_struct(states))` encodes to the same bytes as `states`.
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Iterable
from typing import Any, Literal, Protocol, Union, get_args, get_origin

import msgspec
import pyarrow as pa

from hermes_spark.errors import StateError
from hermes_spark.messages import JsonObject
from hermes_spark.state.agent_state import AgentState, checked_version

_PLAIN: dict[Any, pa.DataType] = {
    str: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    bytes: pa.binary(),
}

AsJson = Callable[[Any], Any]
"""What becomes of a value that has no Arrow type of its own."""


class _Codec(Protocol):
    """Between one type of the state and one of Arrow, by way of Arrow's Python values."""

    type: pa.DataType

    def pack(self, value: Any, as_json: AsJson) -> Any: ...

    def unpack(self, value: Any) -> Any: ...


class _Plain:
    def __init__(self, type_: pa.DataType) -> None:
        self.type = type_

    def pack(self, value: Any, _: AsJson) -> Any:
        return value

    def unpack(self, value: Any) -> Any:
        return value


class _Json:
    type = pa.string()

    def __init__(self, kind: Any) -> None:
        self._kind = kind

    def pack(self, value: Any, as_json: AsJson) -> Any:
        return as_json(msgspec.to_builtins(value))

    def unpack(self, value: Any) -> Any:
        return msgspec.convert(json.loads(value), self._kind)


class _List:
    def __init__(self, item: _Codec) -> None:
        self._item = item
        self.type = pa.list_(item.type)

    def pack(self, value: Any, as_json: AsJson) -> Any:
        return [self._item.pack(item, as_json) for item in value]

    def unpack(self, value: Any) -> Any:
        return tuple(map(self._item.unpack, value))


class _Optional:
    def __init__(self, inner: _Codec) -> None:
        self._inner = inner
        self.type = inner.type

    def pack(self, value: Any, as_json: AsJson) -> Any:
        return None if value is None else self._inner.pack(value, as_json)

    def unpack(self, value: Any) -> Any:
        return None if value is None else self._inner.unpack(value)


class _Struct:
    def __init__(self, cls: type[msgspec.Struct]) -> None:
        self._cls = cls
        self._fields = {field.name: (_codec(field.type), field.required) for field in msgspec.structs.fields(cls)}
        self.type = pa.struct([(name, codec.type) for name, (codec, _) in self._fields.items()])

    def pack(self, value: Any, as_json: AsJson) -> Any:
        return {name: codec.pack(getattr(value, name), as_json) for name, (codec, _) in self._fields.items()}

    def unpack(self, value: Any) -> Any:
        return self._cls(**dict(self._given(value)))

    def _given(self, row: JsonObject) -> Iterable[tuple[str, Any]]:
        """The fields that the row has; what an older version did not know is null there and takes its default."""
        for name, (codec, required) in self._fields.items():
            if row[name] is not None or isinstance(codec, _Optional):
                yield name, codec.unpack(row[name])
            elif required:
                raise StateError(f"The field {name} of a {self._cls.__name__} is null; every one of them has a value.")


class _TextOr:
    """A text or a struct, of which the text would be the first field."""

    def __init__(self, struct: _Struct) -> None:
        self._struct = struct
        self.type = struct.type
        self._names = [field.name for field in struct.type]

    def pack(self, value: Any, as_json: AsJson) -> Any:
        if isinstance(value, str):
            return {**dict.fromkeys(self._names), self._names[0]: value}
        return self._struct.pack(value, as_json)

    def unpack(self, value: Any) -> Any:
        if all(value[name] is None for name in self._names[1:]):
            return value[self._names[0]]
        return self._struct.unpack(value)


def _codec(kind: Any) -> _Codec:
    if kind in _PLAIN:
        return _Plain(_PLAIN[kind])
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _Struct(kind)
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal and all(isinstance(value, str) for value in inner):
        return _Plain(pa.string())
    if origin is tuple and inner[1:] == (...,):
        return _List(_codec(inner[0]))
    if origin in (Union, types.UnionType):
        return _codec_of_union(kind, [each for each in inner if each is not types.NoneType])
    return _Json(kind)


def _codec_of_union(kind: Any, inner: list[Any]) -> _Codec:
    if len(inner) == 1:
        return _Optional(_codec(inner[0]))
    other = _codec(inner[1])
    if inner[0] is str and len(inner) == 2 and isinstance(other, _Struct):
        return _TextOr(other)
    return _Json(kind)


_STATE = _Struct(AgentState)

AGENT_STATE: pa.StructType = _STATE.type
"""The struct type of a session."""


def to_struct(states: Iterable[AgentState]) -> pa.StructArray:
    """The states as an array of `AGENT_STATE`, in their order."""
    return pa.array([_STATE.pack(state, _text) for state in states], AGENT_STATE)


def from_struct(array: pa.StructArray) -> list[AgentState]:
    """The states behind an array of `to_struct`, also one of an earlier version, which has fewer fields.

    Raises `StateError` for any other array, naming the field that does not fit, and for states of a later version.
    """
    try:
        rows = array.cast(AGENT_STATE).to_pylist()
    except (pa.ArrowException, TypeError) as error:
        raise StateError(
            f"The array holds no sessions ({error}); expected the struct of state.arrow.AGENT_STATE."
        ) from None
    try:
        return [checked_version(_STATE.unpack(row)) for row in rows]
    except (ValueError, msgspec.ValidationError) as error:
        raise StateError(f"The array holds no sessions: a text is not the JSON it should be ({error}).") from None


def describe(state: AgentState) -> JsonObject:
    """The state as plain values under the names of its fields, as `to_struct` has them but with JSON values as they are."""
    row: JsonObject = _STATE.pack(state, lambda value: value)
    return row


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

"""Events: the inbound messages of sessions, and how a row of a source becomes one.

The JSON of an event (one object per row)::

    {"session_id": "s1",                      required, 1 to 256 characters
     "type": "message",                       message (default) | reset | cancel | approval
     "event_id": "e-17",                      the producer's id; a repeat within the session is dropped
     "messages": [{"role": "user", "content": "..."}],    required for message; roles user and assistant
     "tools": ["crm_query", {"name": "...", "description": "...", "parameters": {...}}],   none: all registered
     "max_tokens": 512, "ts": 1764500000000, "metadata": {...},
     "ttl_s": 60,                             how long the session is kept idle after this event; 0: for ever
     "session_ttl_s": 86400,                  the same for all later events of the session that name no ttl_s
     "turn_id": "...", "call_id": "...", "decision": "approve", "by": "...", "reason": "..."}   cancel, approval

`ts` is milliseconds since the epoch (a number) or an ISO 8601 text; without it the row's own time counts. Unknown fields are
kept in `metadata`.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import math
from typing import Any, Literal

import msgspec

from hermes_spark.messages import JsonObject, Message, ToolSpec, is_deeper

EventType = Literal["message", "reset", "cancel", "approval"]
ToolChoice = tuple[str | ToolSpec, ...] | None

ROUTING_VERSION = 1
MAX_LEVELS = 32
"""Nesting of an event's metadata that is taken: decoders recurse, and a record must be readable on any stack."""
MAX_TTL_S = 3_155_760_000
"""100 years: a deadline stays a time that every table can show."""


class Coordinates(msgspec.Struct, frozen=True, array_like=True):
    """Where a row came from: its identity. `partition` is a Kafka `topic-partition`, a file's path, or a task's name."""

    partition: str
    offset: int


class Row(msgspec.Struct, frozen=True):
    """One row of a source before anybody has looked into it."""

    coordinates: Coordinates
    timestamp_ms: int
    value: bytes
    fault: str = ""
    """Set by a source that could not read the row (a file too large, say): the reason it is rejected for."""


class Event(msgspec.Struct, frozen=True, array_like=True):
    """One inbound message for a session, validated."""

    coordinates: Coordinates
    session_id: str
    ts_ms: int
    type: EventType = "message"
    event_id: str = ""
    messages: tuple[Message, ...] = ()
    tools: ToolChoice = None
    max_tokens: int | None = None
    metadata: JsonObject = {}
    turn_id: str = ""
    call_id: str = ""
    decision: str = ""
    by: str = ""
    reason: str = ""
    ttl_ms: int | None = None
    """How long the session is kept without activity after this event; 0: for ever; None: as the session or setting says."""
    session_ttl_ms: int | None = None
    """The same for this and all later events of the session that name none."""


class InvalidEvent(ValueError):
    """A row is no event; the text is the reason that its dead letter shows. Not part of the error tree: it is data."""


def shard_of(session_id: str, shards: int) -> int:
    """The shard of a session under routing version 1: blake2b-64 of the UTF-8 id, modulo the shard count."""
    return int.from_bytes(hashlib.blake2b(session_id.encode(), digest_size=8).digest(), "big") % shards


def turn_id_of(query_id: str, session_id: str, coordinates: Coordinates) -> str:
    """The id of the turn an event causes: 32 hex digits, a hash over length-prefixed fields (joined texts collide)."""
    return _digest(query_id, session_id, coordinates.partition, str(coordinates.offset))


def call_id_of(turn_id: str, step: int, index: int) -> str:
    """The id of call `index` of step `step`; also the tool's `Idempotency-Key`. 32 hex digits."""
    return _digest(turn_id, str(step), str(index), "run")


def undo_id_of(call_id: str) -> str:
    """The id of the call that undoes call `call_id`; also its `Idempotency-Key`. 32 hex digits."""
    return _digest(call_id, "undo")


def _digest(*fields: str) -> str:
    h = hashlib.blake2b(digest_size=16)
    for field in fields:
        data = field.encode()
        h.update(len(data).to_bytes(4, "big"))
        h.update(data)
    return h.hexdigest()


class _SessionOnly(msgspec.Struct):
    session_id: Any = None


_session_decoder = msgspec.json.Decoder(_SessionOnly)


def routing_key(row: Row) -> str:
    """What decides a row's shard: its session id if it plainly has one, else its source partition. Never raises."""
    try:
        session_id = _session_decoder.decode(row.value).session_id
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        session_id = None
    if isinstance(session_id, str) and session_id:
        return session_id
    return row.coordinates.partition


class _WireMessage(msgspec.Struct):
    role: Literal["user", "assistant"]
    content: str


class _WireTool(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    description: str = ""
    parameters: dict[str, Any] | None = None


class _WireEvent(msgspec.Struct):
    session_id: str
    type: EventType = "message"
    event_id: str = ""
    messages: tuple[_WireMessage, ...] = ()
    tools: tuple[str | _WireTool, ...] | None = None
    max_tokens: int | None = None
    ts: int | float | str | None = None
    metadata: dict[str, Any] = {}
    turn_id: str = ""
    call_id: str = ""
    decision: Literal["", "approve", "deny"] = ""
    by: str = ""
    reason: str = ""
    ttl_s: int | float | None = None
    session_ttl_s: int | float | None = None


_KNOWN = frozenset(_WireEvent.__struct_fields__)


def parse_event(row: Row, *, max_bytes: int) -> Event:
    """The event of `row`. Raises `InvalidEvent` with a sentence that names the field and what was expected.

    `max_bytes` bounds the row (setting `intake.max_event_bytes`).
    """
    if row.fault:
        raise InvalidEvent(row.fault)
    if len(row.value) > max_bytes:
        raise InvalidEvent(
            f"the event has {len(row.value)} bytes; at most {max_bytes} are taken (intake.max_event_bytes)"
        )
    wire, extra = _decode(row.value)
    _check(wire)
    event = Event(
        coordinates=row.coordinates,
        session_id=wire.session_id,
        ts_ms=_milliseconds(wire.ts, row.timestamp_ms),
        type=wire.type,
        event_id=wire.event_id,
        messages=tuple(Message(m.role, m.content) for m in wire.messages),
        tools=None if wire.tools is None else tuple(_choice(tool) for tool in wire.tools),
        max_tokens=wire.max_tokens,
        metadata={**wire.metadata, **extra},
        turn_id=wire.turn_id,
        call_id=wire.call_id,
        decision=wire.decision,
        by=wire.by,
        reason=wire.reason,
        ttl_ms=_time_to_live("ttl_s", wire.ttl_s),
        session_ttl_ms=_time_to_live("session_ttl_s", wire.session_ttl_s),
    )
    _check_storable(event)
    return event


def _check_storable(event: Event) -> None:
    """JSON can say what a record cannot hold; found out here, it is a dead letter, later it would stop a journal."""
    schemas = [tool.parameters for tool in event.tools or () if isinstance(tool, ToolSpec)]
    if any(is_deeper(value, MAX_LEVELS) for value in (event.metadata, *schemas)):
        raise InvalidEvent(f"metadata or a tool's parameters are nested more than {MAX_LEVELS} levels deep")
    try:
        msgspec.msgpack.encode(event)
    except (OverflowError, UnicodeEncodeError, RecursionError) as exc:
        raise InvalidEvent(
            f"the event cannot be stored ({exc}); integers have at most 64 bits, texts are Unicode"
        ) from None


def _decode(value: bytes) -> tuple[_WireEvent, JsonObject]:
    try:
        raw = msgspec.json.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise InvalidEvent(f"not JSON: {exc}") from None
    if not isinstance(raw, dict):
        raise InvalidEvent(f"expected a JSON object, got {type(raw).__name__}")
    if not raw.get("session_id"):
        raise InvalidEvent("session_id is missing; every event names its session")
    try:
        return msgspec.convert(raw, _WireEvent), {k: v for k, v in raw.items() if k not in _KNOWN}
    except msgspec.ValidationError as exc:
        raise InvalidEvent(f"not an event: {exc}") from None


def _check(wire: _WireEvent) -> None:
    if len(wire.session_id) > 256:
        raise InvalidEvent("session_id has more than 256 characters")
    if wire.type == "message" and not any(m.role == "user" for m in wire.messages):
        raise InvalidEvent("messages holds no user message; a message event needs at least one")
    if wire.messages and wire.messages[-1].role != "user":
        raise InvalidEvent("messages ends with an assistant message; the last one must be the user's")
    if wire.max_tokens is not None and not 1 <= wire.max_tokens < 2**63:  # columns hold no more
        raise InvalidEvent(f"max_tokens is {wire.max_tokens}; expected 1 or more, in 64 bits with a sign")
    if wire.type == "approval" and not (wire.turn_id and wire.call_id and wire.decision):
        raise InvalidEvent("an approval needs turn_id, call_id and decision (approve or deny)")


def _choice(tool: str | _WireTool) -> str | ToolSpec:
    if isinstance(tool, str):
        return tool
    if tool.parameters is None and tool.description:
        raise InvalidEvent(f"tool {tool.name!r} has a description and no parameters; give both, or the name alone")
    if tool.parameters is None:
        return tool.name
    return ToolSpec(tool.name, tool.description, tool.parameters)


def _time_to_live(field: str, seconds: float | None) -> int | None:
    """Milliseconds; a fraction of one counts as one, because 0 means for ever."""
    if seconds is None:
        return None
    if not 0 <= seconds <= MAX_TTL_S:
        raise InvalidEvent(f"{field} is {seconds}; expected seconds from 0 (for ever) to {MAX_TTL_S} (100 years)")
    return math.ceil(seconds * 1000)


def _milliseconds(ts: float | str | None, default: int) -> int:
    if ts is None:
        return default
    if isinstance(ts, str):
        try:
            parsed = dt.datetime.fromisoformat(ts.replace("Z", "+00:00"))
        except ValueError:
            raise InvalidEvent(f"ts is {ts!r}; expected milliseconds since the epoch or ISO 8601") from None
        if parsed.tzinfo is None:
            parsed = parsed.replace(tzinfo=dt.timezone.utc)
        return int(parsed.timestamp() * 1000)
    if not 0 <= ts < 1e14:
        raise InvalidEvent(f"ts is {ts}; expected milliseconds since the epoch")
    return int(ts)

"""The published tables: their Arrow schemas, and how records become rows. Pure: the same records give the same rows.

- `outcomes`: one row per ended turn, its tool calls nested (`publish.audit` shows them one per row).
- `dead_letters`: one row per source row that is no event or cannot be served, with its first bytes.
- `controls`: one row per event that causes no turn: `reset`, `cancel` and `approval`, and repeats of any type.
- `approvals`: one row per call that waits for an approval, with what an `approval` event must name.
- `expired`: one row per session forgotten while the setting `sink.expired` was on, with its history.

Every event handed over is in exactly one of the first three: as an outcome, once its turn has ended; else in another.
`(query_id, shard, lsn)` names a row for ever. Texts that a record leaves empty are empty here too; only a dead letter without
a session and a time that never came are null. All times are `timestamp[ms]` in UTC. Columns are only ever added, at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import msgspec
import pyarrow as pa

from hermes_spark.agent.audit import hashes
from hermes_spark.messages import Message
from hermes_spark.state.records import (
    CallSummary,
    Completed,
    Expired,
    Outcome,
    PlannedCall,
    Record,
    Rejected,
    Taken,
    UndoSummary,
)

SCHEMA_VERSION = 2
"""Counts changes of the columns below."""

_TIME = pa.timestamp("ms", tz="UTC")

_CALL = pa.struct(
    [
        ("call_id", pa.string()),
        ("name", pa.string()),
        ("arguments", pa.string()),  # JSON
        ("status", pa.string()),  # ok, error, timeout, unknown, refused, denied, not_run
        ("content", pa.string()),
        ("step", pa.int32()),
        ("attempts", pa.int32()),
        ("sent_at", _TIME),  # null: never sent
        ("done_at", _TIME),
        (
            "previous_hash",
            pa.string(),
        ),  # of the session's call before, empty for the first; null before schema version 2
        ("hash", pa.string()),  # agent.audit
    ]
)

_UNDO = pa.struct(
    [
        ("call_id", pa.string()),  # of the call that it undoes
        ("undo_id", pa.string()),
        ("name", pa.string()),
        ("arguments", pa.string()),  # JSON
        (
            "status",
            pa.string(),
        ),  # ok: undone; not_run: not tried, for nobody knows whether the call happened; else as of calls
        ("content", pa.string()),
        ("sent_at", _TIME),  # null: never sent
        ("done_at", _TIME),
    ]
)

_PLACE = [("query_id", pa.string()), ("batch_id", pa.int64()), ("shard", pa.int32()), ("lsn", pa.int64())]
_SOURCE = [("source_partition", pa.string()), ("source_offset", pa.int64())]

OUTCOMES = pa.schema(
    [
        *_PLACE,
        ("session_id", pa.string()),
        ("turn_id", pa.string()),
        ("event_id", pa.string()),
        *_SOURCE,
        ("status", pa.string()),  # completed, failed, cancelled
        ("reason", pa.string()),
        ("reply", pa.string()),
        ("truncated", pa.bool_()),
        ("steps", pa.int32()),
        ("calls", pa.list_(_CALL)),
        ("prompt_tokens", pa.int64()),
        ("completion_tokens", pa.int64()),
        ("event_ts", _TIME),
        ("taken_at", _TIME),
        ("finished_at", _TIME),
        ("metadata", pa.string()),  # JSON
        ("schema_version", pa.int32()),
        ("undos", pa.list_(_UNDO)),  # in the order they were made; empty for completed turns
    ]
)
DEAD_LETTERS = pa.schema(
    [
        *_PLACE,
        ("session_id", pa.string()),  # null: the row has none
        *_SOURCE,
        ("reason", pa.string()),
        ("raw", pa.binary()),  # the first `intake.dead_letter_bytes`
        ("raw_bytes", pa.int64()),  # the row's full size
        ("rejected_at", _TIME),
        ("schema_version", pa.int32()),
    ]
)
CONTROLS = pa.schema(
    [
        *_PLACE,
        ("type", pa.string()),
        ("session_id", pa.string()),
        ("turn_id", pa.string()),  # the one that a cancel or approval names
        ("event_id", pa.string()),
        *_SOURCE,
        ("effect", pa.string()),  # taken; repeat: the producer sent this event_id before, and nothing happened
        # of approvals also: kept (for a call that does not wait yet); stale (too late, nothing happened)
        ("event_ts", _TIME),
        ("taken_at", _TIME),
        ("schema_version", pa.int32()),
        ("call_id", pa.string()),  # this and the next: of an approval
        ("decision", pa.string()),
        ("by", pa.string()),
        ("reason", pa.string()),
    ]
)
APPROVALS = pa.schema(
    [
        *_PLACE,
        ("session_id", pa.string()),
        ("turn_id", pa.string()),
        ("call_id", pa.string()),
        ("name", pa.string()),
        ("arguments", pa.string()),  # JSON
        ("step", pa.int32()),
        ("asked_at", _TIME),
        ("approve_by", _TIME),  # then the call is denied
        ("schema_version", pa.int32()),
    ]
)
EXPIRED = pa.schema(
    [
        *_PLACE,
        ("session_id", pa.string()),
        ("turns", pa.int64()),
        ("calls", pa.int64()),
        ("messages", pa.string()),  # JSON: [{"role", "content"}], an assistant's tool calls as "calls"
        ("memory", pa.string()),  # JSON
        ("ttl_ms", pa.int64()),
        ("created_at", _TIME),
        ("active_at", _TIME),  # its last activity
        ("expired_at", _TIME),
        ("schema_version", pa.int32()),
    ]
)

TABLES: dict[str, pa.Schema] = {
    "outcomes": OUTCOMES,
    "dead_letters": DEAD_LETTERS,
    "controls": CONTROLS,
    "expired": EXPIRED,
    "approvals": APPROVALS,
}
"""Every published table by name."""

PlacedRecord = tuple[int, int, Record]
"""(shard, LSN, record)."""


def build_tables(query_id: str, batch_id: int, records: Iterable[PlacedRecord]) -> dict[str, pa.Table]:
    """All of `TABLES`, possibly empty, for what `batch_id` publishes; rows are ordered by (shard, LSN).

    Records that nobody publishes (completions, intents, taken messages whose outcome follows, ...) are passed over.
    """
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES}
    for shard, lsn, record in sorted(records, key=lambda placed: placed[:2]):
        for table, row in _rows(record):
            row |= {"query_id": query_id, "batch_id": batch_id, "shard": shard, "lsn": lsn}
            row["schema_version"] = SCHEMA_VERSION
            rows[table].append(row)
    return {name: pa.Table.from_pylist(rows[name], schema=schema) for name, schema in TABLES.items()}


def _rows(record: Record) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(record, Outcome):
        yield "outcomes", _outcome(record)
    elif isinstance(record, Rejected):
        yield "dead_letters", _dead_letter(record)
    elif isinstance(record, Completed):
        yield from (("approvals", _approval(record, call)) for call in record.calls if call.approve_by_ms)
    elif isinstance(record, Taken) and (record.repeat or record.event.type != "message"):
        yield "controls", _control(record)
    elif isinstance(record, Expired) and record.final:
        yield "expired", _expired(record)


def _outcome(record: Outcome) -> dict[str, Any]:
    return {
        "session_id": record.session_id,
        "turn_id": record.turn_id,
        "event_id": record.event_id,
        "source_partition": record.coordinates.partition,
        "source_offset": record.coordinates.offset,
        "status": record.status,
        "reason": record.reason,
        "reply": record.reply,
        "truncated": record.truncated,
        "steps": record.steps,
        "calls": [_call(*each) for each in zip(record.calls, pairwise(hashes(record)), strict=True)],
        "prompt_tokens": record.usage.prompt_tokens,
        "completion_tokens": record.usage.completion_tokens,
        "event_ts": record.event_ts_ms,
        "taken_at": record.taken_ms,
        "finished_at": record.time_ms,
        "metadata": _json(record.metadata),
        "undos": [_undo(undo) for undo in record.undos],
    }


def _undo(undo: UndoSummary) -> dict[str, Any]:
    return {
        "call_id": undo.call_id,
        "undo_id": undo.id,
        "name": undo.tool,
        "arguments": _json(undo.arguments),
        "status": undo.status,
        "content": undo.content,
        "sent_at": undo.sent_ms or None,
        "done_at": undo.done_ms or None,
    }


def _call(call: CallSummary, link: tuple[str, str]) -> dict[str, Any]:
    return {
        "call_id": call.id,
        "name": call.name,
        "arguments": _json(call.arguments),
        "status": call.status,
        "content": call.content,
        "step": call.step,
        "attempts": call.attempts,
        "sent_at": call.sent_ms or None,
        "done_at": call.done_ms or None,
        "previous_hash": link[0],
        "hash": link[1],
    }


def _dead_letter(record: Rejected) -> dict[str, Any]:
    return {
        "session_id": record.session_id or None,
        "source_partition": record.coordinates.partition,
        "source_offset": record.coordinates.offset,
        "reason": record.reason,
        "raw": record.raw,
        "raw_bytes": record.raw_bytes,
        "rejected_at": record.time_ms,
    }


def _control(record: Taken) -> dict[str, Any]:
    event = record.event
    return {
        "type": event.type,
        "session_id": record.session_id,
        "turn_id": event.turn_id,
        "event_id": event.event_id,
        "source_partition": event.coordinates.partition,
        "source_offset": event.coordinates.offset,
        "effect": "repeat" if record.repeat else record.effect or "taken",
        "event_ts": event.ts_ms,
        "taken_at": record.time_ms,
        "call_id": event.call_id,
        "decision": event.decision,
        "by": event.by,
        "reason": event.reason,
    }


def _approval(record: Completed, call: PlannedCall) -> dict[str, Any]:
    return {
        "session_id": record.session_id,
        "turn_id": record.turn_id,
        "call_id": call.id,
        "name": call.name,
        "arguments": _json(call.arguments),
        "step": record.step,
        "asked_at": record.time_ms,
        "approve_by": call.approve_by_ms,
    }


def _expired(record: Expired) -> dict[str, Any]:
    return {
        "session_id": record.session_id,
        "turns": record.turns,
        "calls": record.calls,
        "messages": _json([_message(message) for message in record.messages]),
        "memory": _json(record.memory),
        "ttl_ms": record.ttl_ms,
        "created_at": record.created_ms,
        "active_at": record.active_ms,
        "expired_at": record.time_ms,
    }


def _message(message: Message) -> dict[str, Any]:
    shown: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.calls:
        shown["calls"] = [{"call_id": c.id, "name": c.name, "arguments": c.arguments} for c in message.calls]
    return shown


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()

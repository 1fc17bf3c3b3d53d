"""The published tables: how records become rows (columns: `table_schemas`). Pure: the same records give the same rows.

- `outcomes`: one row per ended turn, its tool calls nested (`publish.audit` shows them one per row).
- `dead_letters`: one row per source row that is no event or cannot be served, with its first bytes.
- `controls`: one row per event that causes no turn: `reset`, `cancel` and `approval`, and repeats of any type.
- `approvals`: one row per call that waits for an approval, with what an `approval` event must name.
- `expired`: one row per session forgotten while the setting `sink.expired` was on, with its history.

Every event handed over is in exactly one of the first three: as an outcome, once its turn has ended; else in another.
`(query_id, shard, lsn)` names a row for ever. Texts that a record leaves empty are empty here too; only a dead letter without
a session and a time that never came are null.
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
from hermes_spark.streaming.table_schemas import SCHEMA_VERSION, TABLES

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

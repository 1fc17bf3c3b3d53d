"""The Arrow schemas of the published tables; what their rows mean is told in `tables`.

All times are `timestamp[ms]` in UTC. Columns are only ever added, at the end.
"""

from __future__ import annotations

import pyarrow as pa

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
        # The hash of the session's call before, empty for the first (agent.audit); both are null before schema version 2.
        ("previous_hash", pa.string()),
        ("hash", pa.string()),
    ]
)

_UNDO = pa.struct(
    [
        ("call_id", pa.string()),  # of the call that it undoes
        ("undo_id", pa.string()),
        ("name", pa.string()),
        ("arguments", pa.string()),  # JSON
        # ok: undone; not_run: not tried, for nobody knows whether the call happened; else as of calls.
        ("status", pa.string()),
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

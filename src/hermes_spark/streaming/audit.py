"""Compares published outcomes with the checkpoint they come from: finds every row that was changed, removed or added.

Where the journal is still there, each row must be the one that its record gives, in all columns. The journal cannot have been
changed along with the sink: its bytes are chained, and every commit holds the heads of those chains, so a removed tail shows
as well. Rows from before the place where the journal begins are checked by the audit chain of their sessions (`agent.audit`):
every call must follow the one before, and the last one must be the one that the session's state names. Of a session that has
expired by then no state is left, so that a removed tail of its calls does not show there.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from hermes_spark.agent.audit import link
from hermes_spark.errors import SettingsError, StateError
from hermes_spark.state.records import Outcome, Position
from hermes_spark.state.storage import as_local
from hermes_spark.streaming.committed import Committed
from hermes_spark.streaming.publish import read_files, table_files
from hermes_spark.streaming.table_schemas import OUTCOMES, SCHEMA_VERSION
from hermes_spark.streaming.tables import build_tables

Row = dict[str, Any]
"""A row of the table `outcomes`."""

_ADDED = {2: {"previous_hash", "hash", "undos"}}
"""What each schema version of the table added, to rows or to their calls."""
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)


class Report(NamedTuple):
    """What `verify` has found."""

    outcomes: int
    """Rows compared, and the calls in them."""
    calls: int
    others: int
    """Rows of other checkpoints in the same sink, which were left out."""
    findings: list[str]
    """A sentence per row that is not as it should be; empty: all is well."""


class Bounds(NamedTuple):
    """Which rows of a shard must be in the sink, and which may."""

    required: int
    """The last LSN whose outcome has been published for certain."""
    committed: int
    """The last LSN whose outcome can have been."""


def outcome_rows(committed: Committed, shard: int, after: Position) -> dict[int, Row]:
    """The rows that the journal of a shard gives, from `after` (that of its `start`) to the commit, by LSN."""
    placed = ((shard, lsn, record) for lsn, record in committed.records(shard, after) if isinstance(record, Outcome))
    rows = build_tables(committed.meta.query_id, committed.commit.batch, placed)["outcomes"].to_pylist()
    return {row["lsn"]: row for row in rows}


def published_rows(files: list[Path], committed: Committed, shard: int) -> list[Row]:
    """The rows of a shard that were published, by LSN. Raises `StateError` when a file cannot be read."""
    rows: list[Row] = _read(
        files, (pc.field("query_id") == committed.meta.query_id) & (pc.field("shard") == shard)
    ).to_pylist()
    return rows


def session_rows(committed: Committed, session_id: str, sink: str | None) -> list[Row]:
    """The outcomes of a session, oldest first: from the journal, and those that are older than it from the sink if given.

    Raises `SettingsError` when there is none.
    """
    shard = committed.shard_of(session_id)
    start = committed.start(shard).position
    rows = [row for row in outcome_rows(committed, shard, start).values() if row["session_id"] == session_id]
    if sink is not None:
        older = published_rows(_files(sink), committed, shard)
        rows = [row for row in older if row["session_id"] == session_id and row["lsn"] <= start.lsn] + rows
    if not rows:
        raise SettingsError(f"No turn of a session {session_id!r} has ended up to batch {committed.commit.batch}.")
    return rows


def verify(checkpoint: str, sink: str) -> Report:
    """Compare the sink's outcomes with the checkpoint, whose job may be running.

    Raises `SettingsError` when there is no checkpoint or no sink, `StateError`s when a file of either is damaged.
    """
    before = Committed.at(checkpoint)
    certain = before.commit.positions if _is_published(before) else before.commit.published
    files = _files(sink)  # what is there now was published by commits that are there now
    now = Committed.at(checkpoint)
    findings: list[str] = []
    outcomes = calls = 0
    for shard in now.shards:
        bounds = Bounds(*(at.get(shard, Position()).lsn for at in (certain, now.commit.positions)))
        rows = published_rows(files, now, shard)
        findings += verify_shard(now, shard, rows, bounds)
        outcomes += len(rows)
        calls += sum(len(row["calls"] or ()) for row in rows)
    strays, others = _elsewhere(files, now)
    return Report(outcomes, calls, others, [*findings, *strays])


def verify_shard(committed: Committed, shard: int, rows: list[Row], bounds: Bounds) -> Iterator[str]:
    """A sentence for each row of a shard that is not as it should be. `rows` are all that were published of it."""
    start = committed.start(shard)
    expected = outcome_rows(committed, shard, start.position)
    seen: set[int] = set()
    for row in rows:
        lsn = row["lsn"]
        if lsn is None:
            yield f"{_name(row)} was added: it has no place in the journal"
            continue
        if lsn in seen:
            yield f"{_name(row)} stands there twice"
        elif lsn > start.position.lsn:
            yield from _difference(row, expected.get(lsn), bounds)
        seen.add(lsn)
    for lsn, row in expected.items():
        if lsn <= bounds.required and lsn not in seen:
            yield f"{_name(row)} was removed"
    heads = {session_id: state.audit_head for session_id, state in start.states.items()}
    yield from broken_links([row for row in rows if row["lsn"] is not None and row["lsn"] <= start.position.lsn], heads)


def broken_links(rows: Iterable[Row], heads: dict[str, str]) -> Iterator[str]:
    """A sentence for each call that does not follow the one before it in its session, or was changed.

    `rows` by LSN; `heads` is the newest hash of every session that is known to live behind them.
    """
    chains: dict[str, str] = {}
    for row in rows:
        session_id = row["session_id"]
        if row["schema_version"] == 1:  # no hashes; its calls are the chain so far for those that come after
            chains[session_id] = ""
            for call in row["calls"]:
                chains[session_id] = link(chains[session_id], session_id, row["turn_id"], _fields(call))
            continue
        for call in row["calls"]:
            if call["hash"] != link(call["previous_hash"], session_id, row["turn_id"], _fields(call)):
                yield f"{_name(row)} was changed: call {call['call_id']} does not have its hash"
            # Empty: nothing was kept of the session, and it began anew.
            if call["previous_hash"] not in ("", chains.get(session_id, "")):
                yield f"before {_name(row)} something was removed: call {call['call_id']} follows another one"
            chains[session_id] = call["hash"]
    for session_id, head in sorted(heads.items()):
        if chains.get(session_id, "") != head:
            yield f"the newest calls of session {session_id!r} were removed or changed: its chain ends with another hash"


def _difference(row: Row, expected: Row | None, bounds: Bounds) -> Iterator[str]:
    if expected is None:
        beyond = f" (the last commit ends at {bounds.committed})" if row["lsn"] > bounds.committed else ""
        yield f"{_name(row)} was added: the journal has no outcome there{beyond}"
        return
    lacking: set[str] = set()
    if row["schema_version"] in range(1, SCHEMA_VERSION):
        lacking = {"schema_version"}.union(
            *(names for version, names in _ADDED.items() if version > row["schema_version"])
        )
    compared = set(OUTCOMES.names) - lacking - {"batch_id"}
    shown, known = (
        {**each, "calls": [_without(call, lacking) for call in each["calls"] or ()]} for each in (row, expected)
    )
    differing = [name for name in OUTCOMES.names if name in compared and shown[name] != known[name]]
    if differing:
        yield f"{_name(expected)} was changed in {', '.join(differing)}"


def _fields(call: Row) -> tuple[str | int, ...]:
    """What `agent.audit.fields_of` says of the same call."""
    times = [milliseconds(call[name]) for name in ("sent_at", "done_at")]
    named = [call[name] for name in ("call_id", "name", "arguments", "status", "content", "step", "attempts")]
    return (*named, *times)


def milliseconds(moment: dt.datetime | None) -> int:
    """A time of a row as the records have it: since the epoch, 0 for one that never came."""
    return 0 if moment is None else int((moment - _EPOCH) / dt.timedelta(milliseconds=1))


def _name(row: Row) -> str:
    return f"the outcome at LSN {row['lsn']} of shard {row['shard']} (session {row['session_id']!r})"


def _without(call: Row, names: set[str]) -> Row:
    return {name: value for name, value in call.items() if name not in names}


def _is_published(committed: Committed) -> bool:
    """Whether the last batch has published for certain: Spark notes a batch's end after that, beside our state.

    Without Spark's note at hand (`state.path` lies elsewhere) it is taken for published.
    """
    spark = committed.root.parent / "commits"
    return committed.commit.publish and (not spark.is_dir() or (spark / str(committed.commit.batch)).is_file())


def _elsewhere(files: list[Path], committed: Committed) -> tuple[list[str], int]:
    """A sentence for each row that belongs to no shard of this checkpoint, and how many belong to other checkpoints."""
    query, shard = pc.field("query_id"), pc.field("shard")
    nowhere = shard.is_null() | (shard < 0) | (shard >= committed.meta.shards)
    rows = _read(files, query.is_null() | (query != committed.meta.query_id) | nowhere).to_pylist()
    ours = [row for row in rows if row["query_id"] in (None, committed.meta.query_id)]
    return [f"{_name(row)} was added: there is no such place in the journal" for row in ours], len(rows) - len(ours)


def _files(sink: str) -> list[Path]:
    path = as_local(sink)
    if path is None or not path.is_dir():
        raise SettingsError(f"{sink} is no directory of published tables; give the job's spark.hermes.sink.path.")
    return table_files(path, "outcomes")


def _read(files: list[Path], where: Any) -> pa.Table:
    try:
        return read_files(files, "outcomes", where)
    except (pa.ArrowException, OSError) as error:
        raise StateError(f"A file of the published outcomes cannot be read: {' '.join(str(error).split())}.") from error

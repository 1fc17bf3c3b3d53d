"""A checkpoint as of one of its commits, for those who look at it: the sessions at the last batch, or at batch N.

Reads committed files only, `meta.json`, `commits/` and the journals up to the commit's positions, and writes nothing: a job
that runs on the checkpoint meanwhile is not disturbed and cannot disturb what is read here, because a commit never changes and
nothing before its positions does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from hermes_spark.agent.turn import apply
from hermes_spark.errors import CheckpointMismatch, SettingsError
from hermes_spark.events import ROUTING_VERSION, shard_of
from hermes_spark.state.agent_state import AgentState
from hermes_spark.state.arrow import AGENT_STATE, to_struct
from hermes_spark.state.journal_reader import JournalReader
from hermes_spark.state.records import Position, Record, ShardRecord
from hermes_spark.state.storage import Storage, as_local
from hermes_spark.streaming.commit import FORMAT, Commit, CommitLog, Meta
from hermes_spark.streaming.snapshot_start import Start, start_of

SESSIONS = pa.schema([*AGENT_STATE, ("shard", pa.int32()), ("batch_id", pa.int64())])
"""The columns of a table of sessions: the fields of the state, and where and when it was read."""

ROWS = 256
"""Sessions of one Arrow batch: a history may have 48,000 characters and more, and Arrow's texts together 2 GB."""


@dataclass(frozen=True)
class Committed:
    """One commit of a checkpoint. A value: it can be sent to other processes that see the same directory."""

    root: Path
    """The state's directory, `<checkpoint>/hermes`."""
    meta: Meta
    commit: Commit

    @classmethod
    def at(cls, checkpoint: str, batch: int | None = None) -> Committed:
        """The checkpoint at its last commit, or at batch `batch`.

        `checkpoint` is a local directory or `file:` URL, of Spark's checkpoint or of the state itself (`state.path`). Raises
        `SettingsError` when there is no state or no such commit, `CheckpointMismatch` for one of another format.
        """
        root = _state_directory(checkpoint)
        commits = CommitLog(Storage.at(str(root)))
        meta = commits.identity()
        if meta is None:
            raise _no_state(checkpoint)
        if (meta.format, meta.routing) != (FORMAT, ROUTING_VERSION):
            raise CheckpointMismatch(
                f"{root} has format {meta.format} and routing version {meta.routing}, and this program reads {FORMAT} and "
                f"{ROUTING_VERSION}; use the version that wrote it."
            )
        commit = commits.last() if batch is None else commits.of(batch)
        if commit is None:
            raise _no_commit(root, commits.batches(), batch)
        return cls(root, meta, commit)

    @property
    def shards(self) -> range:
        """The numbers of the shards."""
        return range(self.meta.shards)

    def sessions(self, shard: int) -> list[AgentState]:
        """Every live session of a shard at the commit, by id. Raises `JournalCorrupt` when the journal is damaged."""
        start = self.start(shard)
        states = dict(start.states)
        for _, record in self.records(shard, start.position):
            if not isinstance(record, ShardRecord):
                state = apply(states.pop(record.session_id, None), record)
                if state is not None:
                    states[record.session_id] = state
        return [states[session_id] for session_id in sorted(states)]

    def tables(self, shard: int) -> Iterator[pa.RecordBatch]:
        """The sessions of a shard as batches of `SESSIONS`, none when it has none."""
        states = self.sessions(shard)
        for first in range(0, len(states), ROWS):
            some = states[first : first + ROWS]
            columns = to_struct(some).flatten()
            place = [pa.array([shard] * len(some), pa.int32()), pa.array([self.commit.batch] * len(some), pa.int64())]
            yield pa.RecordBatch.from_arrays([*columns, *place], schema=SESSIONS)

    def session(self, session_id: str) -> AgentState:
        """One session at the commit. Raises `SettingsError` when it is not live there."""
        shard = self.shard_of(session_id)
        start = self.start(shard)
        state = start.states.get(session_id)
        for _, record in self.records(shard, start.position):
            if not isinstance(record, ShardRecord) and record.session_id == session_id:
                state = apply(state, record)
        if state is None:
            raise SettingsError(
                f"There is no session {session_id!r} at batch {self.commit.batch}; `hermes-spark state ls` lists them."
            )
        return state

    def shard_of(self, session_id: str) -> int:
        """The shard that a session belongs to."""
        return shard_of(session_id, self.meta.shards)

    def records(self, shard: int, after: Position) -> Iterator[tuple[int, Record]]:
        """The (LSN, record) pairs of a shard after a position (that of its `start`), up to the commit."""
        return JournalReader(self.root, shard).read(after, self.commit.positions.get(shard, Position()))

    def start(self, shard: int) -> Start:
        """Where a shard is read from; see `start_of`."""
        return start_of(self.root, shard, self.meta.shards, self.commit.positions.get(shard, Position()))


def _state_directory(checkpoint: str) -> Path:
    if not checkpoint:
        raise _no_state(checkpoint)
    path = as_local(checkpoint)
    if path is None:
        raise SettingsError(
            f"{checkpoint} cannot be read; the state is kept on a local disk: give a directory of this machine."
        )
    for root in (path / "hermes", path):
        if (root / "meta.json").is_file():
            return root
    raise _no_state(checkpoint)


def _no_state(checkpoint: str) -> SettingsError:
    return SettingsError(
        f"{checkpoint or 'The empty path'} is no checkpoint of a job: it holds no hermes/meta.json; give the directory of the "
        "job's spark.hermes.checkpoint, or of its spark.hermes.state.path if that is set."
    )


def _no_commit(root: Path, kept: list[int], batch: int | None) -> SettingsError:
    if batch is None or not kept:
        return SettingsError(f"{root} holds no commit yet; try again when the job has ended its first batch.")
    return SettingsError(f"{root} holds no commit of batch {batch}; those of batches {kept[0]} to {kept[-1]} are kept.")

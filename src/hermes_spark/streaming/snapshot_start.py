"""Where a reader of a checkpoint begins in a shard's journal: at its beginning, or at a snapshot when that was pruned."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import NamedTuple

from hermes_spark.errors import CheckpointMismatch, JournalCorrupt, SnapshotDamaged
from hermes_spark.state.agent_state import AgentState, decode_state
from hermes_spark.state.journal_files import REMEDY, pruned_lsn, shard_directory
from hermes_spark.state.journal_reader import JournalReader
from hermes_spark.state.records import Position
from hermes_spark.state.rocksdb import RocksMemory, RocksStore
from hermes_spark.state.snapshots import ShardSnapshots
from hermes_spark.state.storage import Storage

CACHE_BYTES = 8 << 20
"""For one look at a copy of a shard's store."""


class Start(NamedTuple):
    """Where the reading of a shard's journal begins."""

    position: Position
    states: dict[str, AgentState]
    """All sessions at `position`, by id."""


def start_of(root: Path, shard: int, shards: int, end: Position) -> Start:
    """The start for reading a shard up to `end`, as early as there is one, so that much of the journal can be compared.

    `root` is the state's directory and `shards` the checkpoint's shard count. The snapshot is copied to a temporary directory
    for the look. Raises `JournalCorrupt` when the journal was pruned and no snapshot at or before `end` can be used: all
    are damaged, or `end` belongs to a batch too long ago.
    """
    pruned = pruned_lsn(shard_directory(root, shard))
    if not pruned:
        return Start(Position(), {})
    snapshots, reader = ShardSnapshots(Storage.at(str(root)), shard), JournalReader(root, shard)
    for key in reversed(snapshots.newest_first()):
        try:
            manifest = snapshots.load(key)
            reader.check(manifest.position, end)
            with tempfile.TemporaryDirectory(prefix="hermes-look-") as scratch:
                directory = Path(scratch) / "store"
                contents = snapshots.restore(manifest, directory)
                states = _stored(directory, shards)
        except (SnapshotDamaged, CheckpointMismatch):
            continue
        for session_id in contents.gone:
            states.pop(session_id, None)
        states |= {state.session_id: state for state in map(decode_state, contents.states)}
        return Start(manifest.position, states)
    raise JournalCorrupt(
        f"Shard {shard} cannot be read up to record {end.lsn}: records up to {pruned} were removed, and no snapshot before it "
        f"can be used; choose a later batch, or {REMEDY}."
    )


def _stored(directory: Path, shards: int) -> dict[str, AgentState]:
    store = RocksStore(directory, shared=RocksMemory(CACHE_BYTES, CACHE_BYTES), shards=shards)
    try:
        return {session_id: decode_state(data) for session_id, data in store.items()}
    finally:
        store.close()

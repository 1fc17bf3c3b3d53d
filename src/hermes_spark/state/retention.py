"""What a shard's journal may lose: whole files below everything that anybody still needs.

The floor of a shard is the least of the position of its second-newest snapshot, verified file by file, the position that the
caller names (the commit before the last one, and where the unpublished part begins), and the positions of named readers. A
file is removed when the file after it holds the floor, so that the floor can always be found on what is left.

Before anything is removed, that is recorded: an empty file `<lsn>.pruned` in the shard's directory says that records up to
this LSN were removed on purpose. Its name is all it says, so no damage can change it. A missing file that no such name covers
stays what it is, corruption.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Mapping
from pathlib import Path

import msgspec

from hermes_spark import faults
from hermes_spark.errors import CheckpointMismatch, SnapshotDamaged, StateError
from hermes_spark.state.journal_files import (
    PRUNED,
    chain_of_files,
    files_of,
    first_lsn_of,
    pruned_lsn,
    shard_directory,
    term_directories,
)
from hermes_spark.state.journal_reader import JournalReader
from hermes_spark.state.objects import Objects
from hermes_spark.state.records import Position
from hermes_spark.state.snapshots import ShardSnapshots
from hermes_spark.state.storage import storage_errors, sync_directory, write_synced
from hermes_spark.telemetry import SNAPSHOTS

log = logging.getLogger(__name__)

KEPT_SNAPSHOTS = 2
"""Whole ones; those before the second-newest go with the journal that they would need."""

ReaderPositions = dict[int, Position]
"""By shard; a shard that is missing is not read."""


def name_reader(objects: Objects, name: str, positions: ReaderPositions) -> None:
    """Keep everything after `positions` until the reader `name` moves on (a further call) or is forgotten."""
    objects.put(_reader_key(name), msgspec.json.encode(positions))


def forget_reader(objects: Objects, name: str) -> None:
    """Keep nothing more for the reader `name`."""
    objects.delete(_reader_key(name))


class Retention:
    """Prunes one shard. Used by one thread at a time; a leftover of another process does no harm, only less."""

    def __init__(self, root: Path, shard: int, objects: Objects) -> None:
        self._directory = shard_directory(root, shard)
        self._shard = shard
        self._objects = objects
        self._snapshots = ShardSnapshots(objects, shard)
        self._reader = JournalReader(root, shard)
        self._seen: list[str] = []
        self._usable: list[tuple[str, Position]] = []

    def prune(self, needed: Position) -> int:
        """Remove what lies below the floor; `needed`: what the commits need. The LSN up to which records are gone.

        Raises `StateError` when a disk or a reader's object fails, `JournalCorrupt` when the journal is found damaged.
        """
        keys = self._snapshots.newest_first()
        if keys != self._seen:
            self._seen, self._usable = keys, self._usable_ones(keys)
        usable = self._usable
        if len(usable) < KEPT_SNAPSHOTS:
            return pruned_lsn(self._directory)
        oldest_kept, position = usable[-1]
        floor = min([position.lsn, needed.lsn, *self._readers()])
        with storage_errors(self._directory):
            pruned = self._remove_below(floor)
        for key in keys:
            if key < oldest_kept:
                self._snapshots.forget(key)
        return pruned

    def _usable_ones(self, keys: list[str]) -> list[tuple[str, Position]]:
        """The newest ones that are whole and on the chain, newest first, as many as are kept."""
        found: list[tuple[str, Position]] = []
        for key in keys:
            try:
                manifest = self._snapshots.load(key)
                self._snapshots.verify(manifest)
                self._reader.check(manifest.position, None)
            except (SnapshotDamaged, CheckpointMismatch) as exc:
                SNAPSHOTS.labels(result="unusable").inc()
                log.warning("snapshot %s is not usable, so the journal it would replace stays: %s", key, exc)
                continue
            found.append((key, manifest.position))
            if len(found) == KEPT_SNAPSHOTS:
                break
        return found

    def _readers(self) -> list[int]:
        lsns = []
        for key in self._objects.list("readers"):
            data = self._objects.get(key)
            if data is None:
                continue
            try:
                positions = msgspec.json.decode(data, type=ReaderPositions)
            except msgspec.MsgspecError as exc:
                raise StateError(f"{key} cannot be read ({exc}); nothing is pruned until it is deleted") from None
            if self._shard in positions:
                lsns.append(positions[self._shard].lsn)
        return lsns

    def _remove_below(self, floor: int) -> int:
        chain = [path for _, path in chain_of_files(self._directory)]
        holding = [path for path in chain if first_lsn_of(path) <= floor]
        pruned = pruned_lsn(self._directory)
        if holding and first_lsn_of(holding[-1]) - 1 > pruned:
            pruned = first_lsn_of(holding[-1]) - 1
            marks = sorted(self._directory.glob(f"*{PRUNED}"))
            write_synced(self._directory / f"{pruned:016d}{PRUNED}", b"")
            sync_directory(self._directory)
            faults.point("retention.after_mark")
            for mark in marks[:-1]:  # the last one stays for whoever lists the directory just now
                mark.unlink(missing_ok=True)
        self._remove_up_to(pruned)
        return pruned

    def _remove_up_to(self, pruned: int) -> None:
        """Oldest first, so that what is left is whole at every moment. Also what an earlier process left."""
        for _, home in term_directories(self._directory):
            files = files_of(home)
            gone = [path for path in files if first_lsn_of(path) <= pruned]
            for path in gone:
                path.unlink(missing_ok=True)
                faults.point("retention.after_remove")
            if gone and gone == files:
                _remove_empty(home)


def floors(*needed: Mapping[int, Position]) -> dict[int, Position]:
    """By shard the lowest of what each of `needed` names; a shard that one of them does not name needs everything."""
    shards = set.intersection(*map(set, needed))
    return {shard: min((of[shard] for of in needed), key=lambda at: at.lsn) for shard in shards}


def _remove_empty(home: Path) -> None:
    try:
        home.rmdir()
    except OSError as error:
        # Its owner, sealed for long, may have begun a further file meanwhile; it finds the seal in the one before.
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
            raise


def _reader_key(name: str) -> str:
    return f"readers/{name}.json"

"""Opening a shard for a new term: seal, newest snapshot that can be used, then the journal after it.

A snapshot that is damaged, or does not lie on the journal's chain, is counted and said, and the one before it serves with more
of the journal; with none, the whole journal does.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

from hermes_spark.errors import CheckpointMismatch, JournalCorrupt, SnapshotDamaged, StateError, StorageFull
from hermes_spark.host.intake import Intake
from hermes_spark.host.sessions import Sessions
from hermes_spark.host.shard import Shard, ShardRules
from hermes_spark.host.snapshotting import SnapshotQueue, Snapshotter
from hermes_spark.state.journal import ShardJournal
from hermes_spark.state.journal_files import REMEDY, term_name
from hermes_spark.state.journal_store import Journals, RecordReader
from hermes_spark.state.objects import Objects
from hermes_spark.state.records import Position, TermId
from hermes_spark.state.snapshots import Contents, ShardSnapshots
from hermes_spark.state.store import StateStore
from hermes_spark.state.takeover import fenced
from hermes_spark.telemetry import SNAPSHOTS

log = logging.getLogger(__name__)

OpenStore = Callable[[Path], StateStore]
"""The store in a directory that is not there, or holds what `StateStore.checkpoint` once wrote."""


class ShardOpener:
    """`host.OpenShard`. Made on the host's loop, called off it."""

    def __init__(
        self, journals: Journals, local: Path, rules: ShardRules, open_store: OpenStore, objects: Objects
    ) -> None:
        """`objects`: where snapshots are kept; `local`: where this host keeps its stores."""
        self._journals = journals
        self._local = local
        self._rules = rules
        self._open_store = open_store
        self._objects = objects
        self._queue = SnapshotQueue(rules.settings.snapshot, rules.clock_ms)

    def __call__(self, number: int, term: TermId, committed: Position, ends: dict[str, int]) -> Shard:
        """The shard, sealed before and folded. Raises `HermesError`s."""
        journal = self._journals.open(number, term, now_ms=self._rules.clock_ms(), known_end=committed.lsn).journal
        try:
            return self._fold(number, term, journal, ends)
        except StateError as exc:
            journal.close()
            if newer := self._journals.newer(number, term):
                # What looks like damage is what a newer owner has made of a journal that is ours no more.
                raise fenced(term, f"{newer} is newer") from exc
            raise

    def _fold(self, number: int, term: TermId, journal: ShardJournal, ends: dict[str, int]) -> Shard:
        settings = self._rules.settings
        directory = self._local / str(number) / term_name(term)
        _remove_older(directory)
        snapshots, reader = ShardSnapshots(self._objects, number), self._journals.reader(number)
        store, position, contents = self._newest_usable(number, snapshots, reader, journal.position(), directory)
        sessions = Sessions(store, settings.state.cache_bytes // settings.state.shards)
        shard = Shard(self._rules, journal, sessions, Intake(ends if settings.source.has_offsets else None))
        if contents is not None:
            shard.restore(contents)
        # With this term's own first record: a snapshot of this owner covers it, and its time.
        shard.fold(reader.read(position, journal.position()))
        scratch = directory.with_name(f"{directory.name}.snapshot")
        shard.committed = Snapshotter(self._queue, shard, snapshots, scratch, position.lsn).committed
        return shard

    def _newest_usable(
        self, number: int, snapshots: ShardSnapshots, reader: RecordReader, end: Position, directory: Path
    ) -> tuple[StateStore, Position, Contents | None]:
        for key in snapshots.newest_first():
            try:
                manifest = snapshots.load(key)
                reader.check(manifest.position, end)
                contents = snapshots.restore(manifest, directory)
                store = self._restored(directory)
            except (SnapshotDamaged, CheckpointMismatch) as exc:
                SNAPSHOTS.labels(result="unusable").inc()
                log.warning("snapshot %s is not usable, an older one or the whole journal serves: %s", key, exc)
                shutil.rmtree(directory, ignore_errors=True)
            else:
                SNAPSHOTS.labels(result="restored").inc()
                return store, manifest.position, contents
        if pruned := self._journals.pruned(number):
            raise JournalCorrupt(
                f"No snapshot that goes with the journal of shard {number} can be used, and its records up to {pruned} were "
                f"removed because two could; {REMEDY}."
            )
        return self._open_store(directory), Position(), None

    def _restored(self, directory: Path) -> StateStore:
        try:
            return self._open_store(directory)
        except StorageFull:
            raise
        except StateError as exc:
            raise SnapshotDamaged(f"its store cannot be opened: {exc}") from exc


def _remove_older(directory: Path) -> None:
    """Remove what earlier terms left. Not that of a newer one: it may have opened while this owner stood still."""
    for path in directory.parent.glob("*"):
        if path.name < directory.name:
            shutil.rmtree(path, ignore_errors=True)

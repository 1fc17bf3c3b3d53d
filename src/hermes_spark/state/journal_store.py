"""Where the journals of all shards are kept: files on a local disk, or objects on an object store.

Both hold the same records at the same positions. `journals_at` chooses by the location; only `app` and tests call it.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from hermes_spark.state.journal import FILE_BYTES, JournalReader, Opened, ShardJournal
from hermes_spark.state.journal_files import pruned_lsn, shard_directory, term_directories
from hermes_spark.state.object_format import ShardObjects
from hermes_spark.state.object_journal import PATIENCE_S, Putting, open_shard
from hermes_spark.state.object_reader import ObjectReader
from hermes_spark.state.records import Position, Record, TermId
from hermes_spark.state.storage import Storage, is_remote, local_path

PUT_THREADS = 32
"""Groups of different shards that are put at once."""


class RecordReader(Protocol):
    """Reads one shard's journal again and again with advancing positions."""

    def check(self, position: Position, end: Position) -> None:
        """Raise `CheckpointMismatch` unless `position` lies on the chain that ends with `end`; `JournalCorrupt` for damage."""
        ...

    def read(self, after: Position, upto: Position | None) -> Iterator[tuple[int, Record]]:
        """All (lsn, record) pairs after `after`, up to and including `upto` (None: to the end), lazily.

        Raises `CheckpointMismatch` for a position off this journal's chain, `JournalCorrupt`, `StateError`.
        """
        ...


class Journals(Protocol):
    """The journals of all shards at one location."""

    def open(self, shard: int, term: TermId, *, now_ms: int, known_end: int = 0) -> Opened:
        """Take a shard over for `term`, as `ShardJournal.open` does."""
        ...

    def reader(self, shard: int) -> RecordReader:
        """A reader of a shard, at its beginning."""
        ...

    def pruned(self, shard: int) -> int:
        """The LSN up to which records were removed on purpose; 0: none."""
        ...

    def newer(self, shard: int, term: TermId) -> str:
        """The name of a term that was opened after `term`; empty when there is none."""
        ...


class FileJournals:
    """Journals in files below a directory of this machine."""

    def __init__(self, root: Path, file_bytes: int = FILE_BYTES) -> None:
        """`file_bytes`: a longer file is followed by a new one."""
        self._root = root
        self._file_bytes = file_bytes

    def open(self, shard: int, term: TermId, *, now_ms: int, known_end: int = 0) -> Opened:
        """See `ShardJournal.open`."""
        return ShardJournal.open(
            self._root, shard, term, now_ms=now_ms, known_end=known_end, file_bytes=self._file_bytes
        )

    def reader(self, shard: int) -> JournalReader:
        """See `JournalReader`."""
        return JournalReader(self._root, shard)

    def pruned(self, shard: int) -> int:
        """See `Journals.pruned`."""
        return pruned_lsn(shard_directory(self._root, shard))

    def newer(self, shard: int, term: TermId) -> str:
        """See `Journals.newer`."""
        newest = term_directories(shard_directory(self._root, shard))[-1:]
        return str(newest[0][1]) if newest and newest[0][0] > term else ""


class ObjectJournals:
    """Journals as objects of a storage. `patience_s` is how long a put is tried again before a journal gives up."""

    def __init__(self, storage: Storage, *, patience_s: float = PATIENCE_S, threads: Executor | None = None) -> None:
        self._storage = storage
        threads = threads or ThreadPoolExecutor(PUT_THREADS, thread_name_prefix="journal-put")
        self._putting = Putting(threads, patience_s)

    def open(self, shard: int, term: TermId, *, now_ms: int, known_end: int = 0) -> Opened:
        """See `object_journal.open_shard`."""
        objects = ShardObjects(self._storage, shard)
        return open_shard(objects, term, self._putting, now_ms=now_ms, known_end=known_end)

    def reader(self, shard: int) -> ObjectReader:
        """See `ObjectReader`."""
        return ObjectReader(ShardObjects(self._storage, shard))

    def pruned(self, shard: int) -> int:
        """0: nothing prunes objects."""
        return 0

    def newer(self, shard: int, term: TermId) -> str:
        """Empty: nobody removes what an older owner reads."""
        return ""


def journals_at(location: str, file_bytes: int = FILE_BYTES) -> Journals:
    """The journals at a local path or `file:` URL (files), or at an `s3://`, `gs://` or `az://` URL (objects).

    Raises `SettingsError` for any other location.
    """
    if is_remote(location):
        return ObjectJournals(Storage.at(location))
    return FileJournals(local_path(location), file_bytes)

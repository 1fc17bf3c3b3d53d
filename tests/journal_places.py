"""The places a journal can be kept at, for tests that hold for each: files, objects in memory, objects on a real S3 server."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import obstore.store

from hermes_spark.state.journal import Opened, ShardJournal
from hermes_spark.state.journal_store import FileJournals, Journals, ObjectJournals, RecordReader
from hermes_spark.state.records import Position, Record, TermId
from hermes_spark.state.storage import Storage
from journaling import SHARD


@dataclass
class Place:
    """One location, and its stored parts (files, or objects) by name: one name for each, in the order they were made."""

    journals: Journals
    parts: Callable[[], list[str]]
    get: Callable[[str], bytes]
    put: Callable[[str, bytes], object]
    delete: Callable[[str], object]
    leave_torn: Callable[[], object]
    """What an owner leaves that dies while it writes a group."""

    def open(self, term: TermId, known_end: int = 0) -> Opened:
        return self.journals.open(SHARD, term, now_ms=7, known_end=known_end)

    def open_term(self, term: TermId, known_end: int = 0) -> ShardJournal:
        return self.open(term, known_end).journal

    def past_of(self, term: TermId, known_end: int = 0) -> list[tuple[int, Record]]:
        """Take the shard over and read everything before."""
        journal, past = self.open(term, known_end)
        found = list(past)
        journal.close()
        return found

    def reader(self) -> RecordReader:
        return self.journals.reader(SHARD)

    def read(self, after: Position, upto: Position | None) -> list[tuple[int, Record]]:
        return list(self.reader().read(after, upto))


def in_files(root: Path) -> Place:
    def parts() -> list[str]:
        return sorted(str(path) for path in (root / "journal").rglob("*.log"))

    def leave_torn() -> None:
        with Path(parts()[-1]).open("ab") as file:
            file.write(Path(parts()[-1]).read_bytes()[-20:])

    return Place(
        FileJournals(root),
        parts,
        lambda name: Path(name).read_bytes(),
        lambda name, data: Path(name).write_bytes(data),
        lambda name: shutil.rmtree(Path(name).parent),
        leave_torn,
    )


def in_objects(storage: Storage, patience_s: float = 10.0) -> Place:
    def get(key: str) -> bytes:
        data = storage.get(key)
        assert data is not None
        return data

    return Place(
        ObjectJournals(storage, patience_s=patience_s),
        lambda: storage.list("journal"),
        get,
        storage.put,
        storage.delete,
        lambda: None,  # an object is there whole or not at all
    )


class WatchedStorage(Storage):
    """Objects in memory; a test may act before and after any request of the journal, or lose its answer."""

    def __init__(self) -> None:
        super().__init__(obstore.store.MemoryStore(), "memory://bucket")
        self.before: Callable[[str, str], object] = lambda request, key: None
        self.after: Callable[[str, str], object] = lambda request, key: None
        """Called with the request (`put`, `get`, `list`) and its key; what they raise the journal gets to see."""

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self.before("put", key)
        stored = super().put_if_absent(key, data)
        self.after("put", key)
        return stored

    def get(self, key: str) -> bytes | None:
        self.before("get", key)
        data = super().get(key)
        self.after("get", key)
        return data

    def list(self, prefix: str, *, after: str = "") -> list[str]:
        self.before("list", prefix)
        keys = super().list(prefix, after=after)
        self.after("list", prefix)
        return keys

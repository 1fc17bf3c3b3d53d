"""What the journal's tests share: facts that know their LSN, owners, and a disk that is full."""

from __future__ import annotations

import resource
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hermes_spark.state import records
from hermes_spark.state.journal import FILE_BYTES, ShardJournal
from hermes_spark.state.records import Overdue, Position, TermId

SHARD = 3
T1, T2, T3 = TermId(1, 1), TermId(1, 2), TermId(2, 1)


def fact(n: int) -> Overdue:
    return Overdue("session", f"turn-{n}", n)


def open_term(root: Path, term: TermId, known_end: int = 0, file_bytes: int = FILE_BYTES) -> ShardJournal:
    return ShardJournal.open(root, SHARD, term, now_ms=7, known_end=known_end, file_bytes=file_bytes).journal


def append_groups(journal: ShardJournal, sizes: list[int]) -> list[Position]:
    """Flush groups of the given sizes; the position after each."""
    positions = []
    for size in sizes:
        for _ in range(size):
            journal.append(fact(journal.appended_lsn + 1))
        journal.flush()
        positions.append(journal.position())
    return positions


def past_of(root: Path, term: TermId, known_end: int = 0) -> list[tuple[int, records.Record]]:
    """Take the shard over and read everything before."""
    journal, past = ShardJournal.open(root, SHARD, term, now_ms=7, known_end=known_end)
    found = list(past)
    journal.close()
    return found


def lsns_of_facts(pairs: list[tuple[int, records.Record]]) -> list[int]:
    """The LSNs of the facts; also checks that each fact is the one that was given this LSN, and that none is missing."""
    assert [lsn for lsn, _ in pairs] == list(range(1, len(pairs) + 1))
    facts = [(lsn, record) for lsn, record in pairs if isinstance(record, Overdue)]
    assert all(record == fact(lsn) for lsn, record in facts)
    return [lsn for lsn, _ in facts]


def file_of_term(root: Path, term: TermId) -> Path:
    (path,) = (root / "journal" / "0003" / f"{term.epoch:08d}-{term.counter:08d}").glob("*.log")
    return path


def files_of_term(root: Path, term: TermId) -> list[Path]:
    return sorted((root / "journal" / "0003" / f"{term.epoch:08d}-{term.counter:08d}").glob("*.log"))


@contextmanager
def directory() -> Iterator[Path]:
    """A fresh directory per hypothesis example, in memory where that is possible: hundreds of syncs would take long."""
    path = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    try:
        yield path
    finally:
        shutil.rmtree(path)


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file of this process may grow beyond `size` bytes: writes end half-way, then fail with EFBIG."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

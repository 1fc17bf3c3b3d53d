"""Reading a shard's journal between two positions, across terms."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hermes_spark.errors import CheckpointMismatch, JournalCorrupt
from hermes_spark.state.journal_files import (
    REMEDY,
    Mark,
    StoredGroup,
    TermFile,
    chain_of_files,
    files_of,
    first_lsn_of,
    pruned_lsn,
    shard_directory,
    term_name,
)
from hermes_spark.state.records import Position, Record, TermId
from hermes_spark.state.storage import storage_errors


class JournalReader:
    """Reads one shard again and again with advancing positions, without reading anything twice.

    It may run while the owner appends, in this or another process. Used by one thread at a time.
    """

    def __init__(self, root: Path, shard: int) -> None:
        self._directory = shard_directory(root, shard)
        self._shard = shard
        self._path: Path | None = None
        self._mark = Mark(0, Position())

    def read(self, after: Position, upto: Position | None) -> Iterator[tuple[int, Record]]:
        """All (lsn, record) pairs after `after`, up to and including `upto`, in order; None: all that is there.

        Lazy: an error may come after some records, which are then not to be used. Raises `CheckpointMismatch` when one of the
        positions does not lie on this journal's chain, `JournalCorrupt` when a file between them is damaged or missing.
        """
        with storage_errors(self._directory):
            yield from self._read(after, upto)

    def check(self, position: Position, end: Position | None) -> None:
        """Raise `CheckpointMismatch` unless `position` lies on the chain, which ends with `end`; `JournalCorrupt` for damage.

        The next `read` from there does not read again what comes before it in its file.
        """
        with storage_errors(self._directory):
            path, last = self._stretches(position, end)[0]
            if last is not None and last.lsn < position.lsn:
                raise self._mismatch(position, f"its term was sealed after record {last.lsn}")
            with TermFile(path, self._shard) as file:
                mark = self._locate(file, position)
            self._path, self._mark = path, mark

    def _read(self, after: Position, upto: Position | None) -> Iterator[tuple[int, Record]]:
        start: Position | None = after
        for path, end in self._stretches(after, upto):
            with TermFile(path, self._shard) as file:
                mark = file.start if start is None else self._locate(file, start)
                for group in self._groups(file, mark, end):
                    yield from file.records(mark.position, group)
                    mark = group.after
                self._path, self._mark = path, mark
            start = None

    def _stretches(self, after: Position, upto: Position | None) -> list[tuple[Path, Position | None]]:
        """The files to read, in order, each with the position it is read up to."""
        if upto is not None and upto.lsn < after.lsn:
            raise self._mismatch(upto, f"it lies before record {after.lsn}, which comes first")
        if upto == Position():
            return []
        if upto is not None and self._path is not None and self._lies_in_newest(self._path, after, upto):
            return [(self._path, upto)]
        chain = chain_of_files(self._directory)
        if after == Position() and not chain and upto is None:
            return []
        pruned = pruned_lsn(self._directory)
        if after.lsn < pruned:
            raise self._mismatch(after, f"retention has removed everything up to record {pruned}")
        first = 0 if after == Position() else self._index(chain, after)
        last = len(chain) - 1 if upto is None else self._index(chain, upto)
        ends = [self._end_before(chain[at][1], chain[at - 1][0] if at else None) for at in range(first, last + 1)]
        return [(path, end) for (_, path), end in zip(chain[first : last + 1], [*ends[1:], upto], strict=True)]

    def _lies_in_newest(self, path: Path, after: Position, upto: Position) -> bool:
        """Whether both positions must lie in the remembered file: it is the newest of their term."""
        if not upto.term == after.term == self._mark.position.term or after.lsn < first_lsn_of(path):
            return False
        return files_of(path.parent)[-1:] == [path]

    def _index(self, chain: list[tuple[TermId, Path]], position: Position) -> int:
        """Which file holds the position's record; for the position before a term's first record, its first file."""
        of_term = [at for at, (term, _) in enumerate(chain) if term == position.term]
        if not of_term:
            raise self._mismatch(position, f"the journal has no term {term_name(position.term)}")
        holding = [at for at in of_term if first_lsn_of(chain[at][1]) <= position.lsn]
        return holding[-1] if holding else of_term[0]

    def _end_before(self, path: Path, before: TermId | None) -> Position:
        """The end of the file before, as the one at `path` names it; `before` is that file's term."""
        with TermFile(path, self._shard) as file:
            previous = file.header.previous
        if before is None and previous.lsn and previous.lsn == pruned_lsn(self._directory):
            return previous
        if previous.term != (before or TermId(0, 0)):
            raise JournalCorrupt(f"{path} follows term {term_name(previous.term)}, whose file is missing; {REMEDY}.")
        return previous

    def _locate(self, file: TermFile, position: Position) -> Mark:
        """The mark of `position` in the file; from the remembered one on, which is known to lie on the chain."""
        if position == Position():
            return file.start
        mark = self._mark if file.path == self._path and self._mark.position.lsn <= position.lsn else file.start
        for group in self._groups(file, mark, position):
            mark = group.after
        return mark

    def _groups(self, file: TermFile, mark: Mark, end: Position | None) -> Iterator[StoredGroup]:
        """The groups after `mark` up to `end`; raises unless they lead exactly there."""
        groups = file.walk(mark)
        while end is None or mark.position.lsn < end.lsn:
            group = next(groups, None)
            if group is None:
                break
            mark = group.after
            yield group
        if end is None or mark.position == end:
            return
        if mark.position.lsn < end.lsn:
            raise file.corrupt(mark.offset, f"its records end with {mark.position.lsn}, but {end.lsn} was once durable")
        raise self._mismatch(end, f"{file.path} has other records up to there")

    def _mismatch(self, position: Position, why: str) -> CheckpointMismatch:
        return CheckpointMismatch(
            f"Record {position.lsn} of term {term_name(position.term)} is no position of the journal in "
            f"{self._directory}: {why}; use the checkpoint and the state that belong together."
        )


def read(root: Path, shard: int, after: Position, upto: Position | None) -> Iterator[tuple[int, Record]]:
    """`JournalReader.read`, once, with nothing remembered."""
    return JournalReader(root, shard).read(after, upto)

"""The journal of a shard, as its owner writes it: the truth everything else is rebuilt from.

Appended files on a local disk of one machine; the bytes are described in `frames`, the directories in `journal_files`.

**Opening** (`ShardJournal.open`) takes the shard from whoever had it (`takeover`) and makes `TermStarted` durable.

**Group commit** in three steps, so that a group may be written in another thread while the loop goes on appending::

    groups = [g for j in journals if (g := j.take_group())]      on the loop
    flushed = await run_in_thread(flush_all, groups)              all writes, then all syncs
    for f in flushed: f.group.journal.confirm(f)                  on the loop; raises what went wrong

One group of a shard is under way at a time. After a failure the journal is of no more use: nothing after it counts.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hermes_spark import faults
from hermes_spark.errors import Fenced, StateError
from hermes_spark.state import frames
from hermes_spark.state.journal_files import append_whole, shard_directory
from hermes_spark.state.journal_reader import JournalReader, read
from hermes_spark.state.records import Position, Record, TermId, TermStarted, encode
from hermes_spark.state.storage import storage_error, storage_errors
from hermes_spark.state.takeover import create_file, fenced, take_over

FILE_BYTES = 8_388_608
"""8 MB: after how much a file is followed by the next one of its term, if nobody says otherwise."""

__all__ = ["Flushed", "Group", "JournalReader", "Opened", "ShardJournal", "flush_all", "read"]


@dataclass(frozen=True)
class Group:
    """Records that are made durable together. Made by `take_group`, for `flush_all`."""

    journal: ShardJournal
    writer: TermWriter
    first_lsn: int
    records: tuple[bytes, ...]


@dataclass(frozen=True)
class Flushed:
    """What became of a group, for `ShardJournal.confirm`."""

    group: Group
    position: Position
    """The end of the group; durable if `failure` is None."""
    failure: StateError | None


class Opened(NamedTuple):
    """A shard that was taken over: its journal, and the records that it begins with."""

    journal: ShardJournal
    past: Iterator[tuple[int, Record]]
    """Every earlier (lsn, record) pair, read lazily. Raises like `JournalReader.read`; take nothing before it has ended."""


class ShardJournal:
    """The journal of one shard during one term. All methods but the flushing itself belong to the owner's loop."""

    def __init__(self, writer: TermWriter, previous: Position) -> None:
        self.previous = previous
        """The end of everything before this term. To fold on from a store: `read(root, shard, store.position(), previous)`."""
        self._writer = writer
        self._position = writer.position
        self._appended_lsn = writer.position.lsn
        self._buffer: list[bytes] = []
        self._in_flight: Group | None = None
        self._failure: StateError | None = None

    @classmethod
    def open(
        cls, root: Path, shard: int, term: TermId, *, now_ms: int, known_end: int = 0, file_bytes: int = FILE_BYTES
    ) -> Opened:
        """Take the shard over for `term`, as `takeover` tells; `TermStarted` is durable on return.

        `known_end` is the highest LSN a commit names for this shard: a journal that ends below it has lost records. A file
        of `file_bytes` or more is followed by a new one before the next group. Raises `Fenced` when this term or a newer one
        was opened before, `JournalCorrupt`, `StorageFull`, or `StateError`.
        """
        directory = shard_directory(root, shard)
        with storage_errors(directory):
            path, header = take_over(directory, shard, term, known_end)
            writer = TermWriter(path, header, file_bytes)
        previous = header.previous
        journal = cls(writer, previous)
        journal.append(TermStarted(term, previous, now_ms))
        journal.flush()
        return Opened(journal, read(root, shard, Position(), previous))

    @property
    def appended_lsn(self) -> int:
        """LSN of the last appended record, durable or not."""
        return self._appended_lsn

    @property
    def durable_lsn(self) -> int:
        """LSN of the last record that was confirmed durable."""
        return self._position.lsn

    @property
    def dirty(self) -> bool:
        """True while something appended is not confirmed durable."""
        return self._appended_lsn > self._position.lsn

    def position(self) -> Position:
        """The durable end."""
        return self._position

    def append(self, record: Record) -> int:
        """Encode and buffer one record; its LSN. Raises what ended the journal, if something did."""
        self._check()
        self._buffer.append(encode(record))
        self._appended_lsn += 1
        return self._appended_lsn

    def take_group(self) -> Group | None:
        """Everything buffered, to be passed to `flush_all` and then to `confirm`; None when nothing is.

        Raises what ended the journal, or `StateError` while the group before is not confirmed.
        """
        self._check()
        if self._in_flight is not None:
            raise StateError(f"A group of {self._writer.path} is being written; confirm it before taking the next.")
        if not self._buffer:
            return None
        records, self._buffer = tuple(self._buffer), []
        self._in_flight = Group(self, self._writer, self._appended_lsn - len(records) + 1, records)
        return self._in_flight

    def confirm(self, flushed: Flushed) -> None:
        """Move the durable end over a flushed group; raises its failure, which ends this journal."""
        if flushed.group is not self._in_flight:
            raise StateError(f"The confirmed group is not the one of {self._writer.path} that is being written.")
        self._in_flight = None
        if flushed.failure is not None:
            self._failure = flushed.failure
            raise flushed.failure
        self._position = flushed.position

    def flush(self) -> None:
        """All three steps at once, blocking, for an owner without a loop."""
        group = self.take_group()
        if group is not None:
            self.confirm(flush_all([group])[0])

    def close(self) -> None:
        """Let the file go, without flushing or sealing. Not while a group is being written. Safe to call twice."""
        self._failure = self._failure or StateError(f"{self._writer.path} is closed; open the shard for a new term.")
        self._writer.close()

    def _check(self) -> None:
        if self._failure is not None:
            raise type(self._failure)(*self._failure.args)


def flush_all(groups: Sequence[Group]) -> list[Flushed]:
    """Write all groups, then sync all their files: one round for many shards. For any thread; blocks for the disk.

    Gives one answer per group, in order. A failure concerns its own shard only: `Fenced` when somebody else has appended to
    the file, `StorageFull`, or `StateError`.
    """
    if not groups:
        return []
    faults.point("journal.before_write")
    failures = [_failure_of(group, group.writer.write) for group in groups]
    faults.point("journal.after_write")
    failures = [failed or _failure_of(group, group.writer.sync) for group, failed in zip(groups, failures, strict=True)]
    faults.point("journal.after_sync")
    return [Flushed(group, group.writer.position, failed) for group, failed in zip(groups, failures, strict=True)]


class TermWriter:
    """The newest file of one term, open for appending. Used by the thread that flushes, one group at a time."""

    def __init__(self, path: Path, header: frames.Header, file_bytes: int) -> None:
        self.path = path
        self.position = header.start
        """The end of what was written, synced or not."""
        self._header = header
        self._file_bytes = file_bytes
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND)
        self._size = frames.HEADER_BYTES

    def write(self, group: Group) -> None:
        """Append a group, to a new file if the last is long. Raises `OSError`, and leaves a torn frame then, or `Fenced`."""
        if self._size >= max(self._file_bytes, frames.HEADER_BYTES + 1):
            self._rotate()
        head, payload = frames.encode_group(self._header.marker, group.first_lsn, group.records)
        append_whole(self._fd, head + payload)
        self._size += len(head) + len(payload)
        last_lsn = group.first_lsn + len(group.records) - 1
        self.position = Position(last_lsn, self.position.term, frames.next_chain(self.position.chain, payload))

    def _rotate(self) -> None:
        """Begin the next file. The one before is synced and whole: its last group was confirmed.

        The new file comes first, then a mark at the end of the old one, and the look at its size. An owner that was sealed
        before it had the new file finds out here; one that is sealed later is found there (`takeover`).
        """
        header = frames.Header(
            self._header.shard, self._header.term, self.position, secrets.token_bytes(frames.MARKER_BYTES)
        )
        path = create_file(self.path.parent.parent, header)
        faults.point("rotation.after_create")
        mark = frames.encode_next(self._header.marker, self.position.lsn + 1)
        append_whole(self._fd, mark)
        self._size += len(mark)
        self._sync()
        faults.point("rotation.after_mark")
        self.close()
        self.path, self._header, self._size = path, header, frames.HEADER_BYTES
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND)

    def sync(self, _: Group) -> None:
        """Make what was written durable, and see that nobody else has written. Raises `Fenced` or `OSError`."""
        self._sync()

    def _sync(self) -> None:
        os.fdatasync(self._fd)
        if os.fstat(self._fd).st_size != self._size:
            raise fenced(self._header.term, f"another owner has appended to {self.path}")

    def close(self) -> None:
        """Close the file. Safe to call twice."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _failure_of(group: Group, step: Callable[[Group], None]) -> StateError | None:
    try:
        step(group)
    except OSError as error:
        return storage_error(error, group.writer.path)
    except Fenced as error:
        return error
    return None

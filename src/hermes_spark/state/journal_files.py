"""The files of a shard's journal: where they lie, and one of them open for reading.

A shard's directory is `<root>/journal/<shard>/`; each term has a directory of its own in it, `<epoch>-<counter>`, with files
named after their first LSN: a new one is begun when the last has become long. A term directory without a file is a claim: its
owner has not begun yet, and a later owner removes it. All files in order are the chain, each naming the end of the one before.
"""

from __future__ import annotations

import errno
import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from hermes_spark.errors import JournalCorrupt
from hermes_spark.state import frames
from hermes_spark.state.records import Position, Record, TermId, decode

_TERM = re.compile(r"([0-9]{8,})-([0-9]{8,})")
_SEARCH_BYTES = 1 << 20
PRUNED = ".pruned"
"""Suffix of the names that say up to where retention has removed records."""
REMEDY = "restore it from a backup, or start on a new checkpoint"


def shard_directory(root: Path, shard: int) -> Path:
    """Where the journal of a shard lies."""
    return root / "journal" / f"{shard:04d}"


def term_name(term: TermId) -> str:
    """The directory of a term; names sort like terms."""
    return f"{term.epoch:08d}-{term.counter:08d}"


def file_name(first_lsn: int) -> str:
    """The file whose first record has this LSN; names sort like LSNs."""
    return f"{first_lsn:016d}.log"


def term_directories(directory: Path) -> list[tuple[TermId, Path]]:
    """All terms of a shard's directory, claims included, oldest first; none when the directory does not exist."""
    if not directory.is_dir():
        return []
    matches = ((_TERM.fullmatch(path.name), path) for path in directory.iterdir())
    return sorted((TermId(int(m[1]), int(m[2])), path) for m, path in matches if m)


def files_of(directory: Path) -> list[Path]:
    """The files of a term's directory, oldest first; none for a claim, or a directory that was removed meanwhile."""
    try:
        return sorted(path for path in directory.iterdir() if path.suffix == ".log")
    except FileNotFoundError:
        return []


def first_lsn_of(path: Path) -> int:
    """The LSN that a file's name gives its first record. Raises `JournalCorrupt` for another name."""
    if not path.stem.isdecimal():
        raise JournalCorrupt(f"{path} is no name of a journal's file; {REMEDY}.")
    return int(path.stem)


def pruned_lsn(directory: Path) -> int:
    """Up to which LSN retention has removed the records of a shard's directory; 0: nothing."""
    stems = (path.stem for path in directory.glob(f"*{PRUNED}"))
    return max((int(stem) for stem in stems if stem.isdecimal()), default=0)


def chain_of_files(directory: Path) -> list[tuple[TermId, Path]]:
    """All files of a shard's directory with their terms, oldest first; without those that are about to be removed.

    Raises `JournalCorrupt` when the first one is not the one that retention has left.
    """
    files = [(term, path) for term, home in term_directories(directory) for path in files_of(home)]
    pruned = pruned_lsn(directory)  # after the files, as it is recorded before any of them goes
    chain = [(term, path) for term, path in files if first_lsn_of(path) > pruned]
    if pruned and (not chain or first_lsn_of(chain[0][1]) != pruned + 1):
        raise JournalCorrupt(f"The file in {directory} that begins with record {pruned + 1} is missing; {REMEDY}.")
    return chain


def append_whole(fd: int, data: bytes) -> None:
    """Write all of `data` to a file opened for appending. Raises `OSError`, with a part of it written."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


class Mark(NamedTuple):
    """A place in one file: everything before `offset` is read and amounts to `position`."""

    offset: int
    position: Position


class StoredGroup(NamedTuple):
    """A group as it was found whole."""

    after: Mark
    """The mark behind it."""
    records: int
    payload: bytes


class TermFile:
    """One file open for reading, up to the size it has now. Raises `JournalCorrupt` when its header is not what it must be."""

    def __init__(self, path: Path, shard: int) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDONLY)
        try:
            self._size = os.fstat(self._fd).st_size
            self.header = self._checked_header(shard)
        except BaseException:
            os.close(self._fd)
            raise

    def __enter__(self) -> TermFile:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    @property
    def start(self) -> Mark:
        """Before the first record."""
        return Mark(frames.HEADER_BYTES, self.header.start)

    def walk(self, mark: Mark) -> Iterator[StoredGroup]:
        """The groups after `mark`, up to the seal, the end, or the mark that the term goes on in another file.

        A bad frame with no whole one but a seal after it is what a crash leaves: it ends the walk. Any other raises
        `JournalCorrupt`, and so does another file that is missing.
        """
        while mark.offset < self._size:
            whole = self._frame_at(mark.offset)
            if whole is None:
                self._refuse_group_after(mark.offset)
                return
            head, payload = whole
            if head.kind == frames.NEXT:
                self._refuse_missing_next(mark)
            if head.kind != frames.GROUP:
                return
            lsn, term, chain = mark.position.lsn, mark.position.term, mark.position.chain
            if head.first_lsn != lsn + 1:
                raise self.corrupt(mark.offset, f"record {head.first_lsn} follows record {lsn}")
            position = Position(lsn + head.records, term, frames.next_chain(chain, payload))
            mark = Mark(mark.offset + frames.FRAME_HEAD_BYTES + len(payload), position)
            yield StoredGroup(mark, head.records, payload)

    def records(self, before: Position, group: StoredGroup) -> Iterator[tuple[int, Record]]:
        """The decoded (lsn, record) pairs of the group that comes right after `before`."""
        lsn = before.lsn
        try:
            for data in frames.split_payload(group.payload):
                lsn += 1
                yield lsn, decode(data)
        except (struct.error, msgspec.MsgspecError) as error:
            raise self.corrupt(group.after.offset, f"record {lsn} in the group before cannot be read") from error
        if lsn != group.after.position.lsn:
            raise self.corrupt(
                group.after.offset, f"the group before does not hold the {group.records} records it counts"
            )

    def corrupt(self, offset: int, what: str) -> JournalCorrupt:
        """The error for damage at `offset`."""
        return JournalCorrupt(f"{self.path} is damaged at byte {offset}: {what}; {REMEDY}.")

    def _frame_at(self, offset: int) -> tuple[frames.FrameHead, bytes] | None:
        head = frames.decode_frame_head(self._read(offset, frames.FRAME_HEAD_BYTES), self.header.marker)
        if head is None or offset + frames.FRAME_HEAD_BYTES + head.payload_bytes > self._size:
            return None
        payload = self._read(offset + frames.FRAME_HEAD_BYTES, head.payload_bytes)
        return (head, payload) if head.admits(payload) else None

    def _refuse_group_after(self, offset: int) -> None:
        """Raise `JournalCorrupt` if the first whole frame after a bad one is no seal: a crash leaves no such thing.

        Unless the bad one is a seal that was cut short: the owner it was meant for may have appended behind it once more,
        found the file longer than it should be, and told nobody.
        """
        at = offset + 1
        while at < self._size:
            window = self._read(at, _SEARCH_BYTES)
            found = window.find(self.header.marker)
            if found < 0:
                at += max(1, len(window) - frames.MARKER_BYTES + 1)
                continue
            at += found
            whole = self._frame_at(at)
            if whole is not None:
                if whole[0].kind != frames.SEAL and not frames.is_cut_seal(
                    self._read(offset, at - offset), self.header.marker
                ):
                    raise self.corrupt(offset, f"no whole group there, but one at byte {at}")
                return
            at += 1

    def _refuse_missing_next(self, mark: Mark) -> None:
        # It was there, durably, before the mark was written.
        following = self.path.with_name(file_name(mark.position.lsn + 1))
        if not following.exists():
            raise self.corrupt(mark.offset, f"its term goes on in {following.name}, which is missing")

    def _read(self, offset: int, length: int) -> bytes:
        """`length` bytes, or what there is of them up to the size at opening."""
        parts, end = [], min(offset + length, self._size)
        while offset < end:
            part = os.pread(self._fd, end - offset, offset)
            if not part:
                raise OSError(errno.EIO, "the file became shorter while it was read")
            parts.append(part)
            offset += len(part)
        return b"".join(parts)

    def _checked_header(self, shard: int) -> frames.Header:
        header = frames.decode_header(self._read(0, frames.HEADER_BYTES))
        if header is None:
            raise self.corrupt(0, f"no header of format {frames.FORMAT}")
        names = self.path.parent.name, self.path.name
        if header.shard != shard or (term_name(header.term), file_name(header.previous.lsn + 1)) != names:
            raise self.corrupt(0, "its header belongs to another shard, term or LSN")
        return header

"""Taking a shard over from whoever owned it: by sealing in storage, without clocks.

In this order: claim the term's directory; look at all the others (a newer one: fenced); make older claims void by removing
their directories; append a seal to the newest older file and sync it; only then read that file to its end; write the own file,
complete with its header, and move it into the claimed directory.

An owner may begin a further file of its term at any time (`journal.TermWriter`). It creates that file, and only then looks
whether the one before is sealed; who seals does it the other way round: seal, then look for a newer file and seal that one. So
either the owner finds the seal before it writes anything into the further file, or the further file is found and sealed.

Of two owners that open at once, at least one sees the other's claim, as each claims before it looks. The newer one then either
removes the older one's directory, so that the move into it fails, or finds its file there and seals it. What the older one
appends behind a seal never counts, and it finds out by the file's size when it syncs.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from hermes_spark.errors import Fenced, JournalCorrupt
from hermes_spark.state import frames
from hermes_spark.state.journal_files import (
    REMEDY,
    TermFile,
    append_whole,
    file_name,
    files_of,
    term_directories,
    term_name,
)
from hermes_spark.state.records import Position, TermId
from hermes_spark.state.storage import make_directory, sync_directory, write_synced


def take_over(directory: Path, shard: int, term: TermId, known_end: int) -> tuple[Path, frames.Header]:
    """Seal what is older than `term` in a shard's directory and create the term's file; its path and header.

    Raises `Fenced` when this term or a newer one was opened before, `JournalCorrupt` when the journal is damaged or ends below
    the LSN `known_end`, `OSError`.
    """
    previous = _seal_and_find_end(_claim(directory, term), shard, term, known_end)
    header = frames.Header(shard, term, previous, secrets.token_bytes(frames.MARKER_BYTES))
    return create_file(directory, header), header


def fenced(term: TermId, why: str) -> Fenced:
    """The error for an owner of `term` that was overtaken."""
    return Fenced(f"Term {term_name(term)} owns this shard no more: {why}; drop everything held for the shard.")


def _claim(directory: Path, term: TermId) -> list[Path]:
    """Claim the term's directory; the directories of older terms, oldest first. Raises `Fenced` when it is not the newest."""
    make_directory(directory)
    try:
        (directory / term_name(term)).mkdir()
    except FileExistsError:
        raise fenced(term, f"{directory / term_name(term)} was opened before") from None
    others = term_directories(directory)
    newest = others[-1][1]
    if newest.name != term_name(term):
        raise fenced(term, f"{newest} is newer")
    return [path for _, path in others[:-1]]


def _seal_and_find_end(older: Sequence[Path], shard: int, by: TermId, known_end: int) -> Position:
    """Make every older claim void and seal the newest older file; the position that the journal ends with."""
    for directory in reversed(older):
        try:
            directory.rmdir()
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            return _end_of(_sealed_file(directory, shard, by), shard, known_end)
    if known_end:
        raise JournalCorrupt(
            f"The journal of shard {shard} is missing, but record {known_end} was committed; {REMEDY}."
        )
    return Position()


def _sealed_file(directory: Path, shard: int, by: TermId) -> Path:
    """Seal the newest file of a term, whichever is. Those of still older terms were sealed before this one was created."""
    sealed: Path | None = None
    while True:
        files = files_of(directory)
        if not files:
            raise JournalCorrupt(f"{directory} holds something, but not the file of a term; {REMEDY}.")
        if files[-1] == sealed:
            return sealed
        sealed = files[-1]
        _seal(sealed, shard, by)


def _seal(path: Path, shard: int, by: TermId) -> None:
    with TermFile(path, shard) as file:
        seal = frames.encode_seal(file.header.marker, by)
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        append_whole(fd, seal)
        os.fdatasync(fd)
    finally:
        os.close(fd)


def _end_of(path: Path, shard: int, known_end: int) -> Position:
    with TermFile(path, shard) as file:
        mark = file.start
        for group in file.walk(mark):
            mark = group.after
        if mark.position.lsn < known_end:
            what = f"its records end with {mark.position.lsn}, but {known_end} was committed"
            raise file.corrupt(mark.offset, what)
        return mark.position


def create_file(directory: Path, header: frames.Header) -> Path:
    """A further file of a claimed or begun term, whole and durable. Raises `Fenced` when the term is void and gone."""
    name = term_name(header.term)
    staged = directory / f".{name}.new"
    path = directory / name / file_name(header.previous.lsn + 1)
    write_synced(staged, frames.encode_header(header))
    try:
        staged.rename(path)
    except FileNotFoundError:
        staged.unlink()
        raise fenced(header.term, f"{path.parent} was removed by a newer owner") from None
    sync_directory(path.parent)
    sync_directory(directory)
    return path

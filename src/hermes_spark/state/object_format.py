"""The objects of a shard's journal on an object store: their names, their bytes, and reading one of them.

Objects lie at `journal/<shard>/<number>`, numbered from 1 without gaps over all terms. Each is put once, with put-if-absent,
and never changes. Its bytes are those of a journal file with one frame (see `frames`)::

    header   shard, term, marker, and as `previous` the position that everything before this object amounts to
    frame    a group of records, or a seal

A *seal* opens a term: it is the first object of the header's term and ends all older ones, because their owners need its name
for their next group. As every object names the position before it, the last one alone tells where the journal ends, and an
object that was changed, removed or exchanged does not fit between its neighbours.

A store keeps an object whole or not at all, so there are no torn tails: a bad object is always corruption. Whoever removes old
objects one day must leave the seals: a put that was delayed for long must still find its name taken.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from hermes_spark.errors import JournalCorrupt
from hermes_spark.state import frames
from hermes_spark.state.journal_files import REMEDY, term_name
from hermes_spark.state.records import Position, Record, TermId, decode
from hermes_spark.state.storage import Storage

_NUMBER = re.compile(r"[0-9]{16}")


class JournalObject(NamedTuple):
    """One object, found whole."""

    name: str
    """Location and key, for messages."""
    number: int
    before: Position
    """What everything before it amounts to."""
    after: Position
    sealing: bool
    """It opens the term `after.term`."""
    payload: bytes
    """Of a group; empty for a seal."""

    def records(self) -> Iterator[tuple[int, Record]]:
        """The decoded (lsn, record) pairs. Raises `JournalCorrupt`."""
        lsn = self.before.lsn
        try:
            for data in frames.split_payload(self.payload):
                lsn += 1
                yield lsn, decode(data)
        except (struct.error, msgspec.MsgspecError) as error:
            raise corrupt(self.name, f"its record {lsn} cannot be read") from error
        if lsn != self.after.lsn:
            raise corrupt(self.name, f"it does not hold the {self.after.lsn - self.before.lsn} records it counts")


class ShardObjects:
    """The objects of one shard's journal. Safe to use from several threads."""

    def __init__(self, storage: Storage, shard: int) -> None:
        self.storage = storage
        self.shard = shard
        self._folder = f"journal/{shard:04d}"
        self.name = f"{storage.location.rstrip('/')}/{self._folder}"
        """For messages."""

    def key(self, number: int) -> str:
        """The key of an object in the storage; keys sort like numbers."""
        return f"{self._folder}/{number:016d}"

    def numbers(self, after: int = 0) -> range:
        """The numbers of all objects behind number `after`. Raises `JournalCorrupt` when one is missing between them."""
        keys = self.storage.list(self._folder, after=self.key(after))
        names = (key.rpartition("/")[2] for key in keys)
        found = [int(name) for name in names if _NUMBER.fullmatch(name)]
        for expected, number in enumerate(found, after + 1):
            if number != expected:
                raise corrupt(self._name_of(expected), f"it is missing, but {self.key(number)} is there")
        return range(after + 1, after + 1 + len(found))

    def get(self, number: int) -> JournalObject:
        """The object with a number that is known to be taken. Raises `JournalCorrupt` when it is missing or damaged."""
        data = self.storage.get(self.key(number))
        if data is None:
            raise corrupt(self._name_of(number), "it is missing")
        return self._decoded(number, data)

    def _decoded(self, number: int, data: bytes) -> JournalObject:
        name, frame_at = self._name_of(number), frames.HEADER_BYTES
        payload = data[frame_at + frames.FRAME_HEAD_BYTES :]
        header = frames.decode_header(data)
        head = None if header is None else frames.decode_frame_head(data[frame_at:], header.marker)
        if header is None or head is None or not head.admits(payload):
            raise corrupt(name, f"its {len(data)} bytes are no whole object of format {frames.FORMAT}")
        if header.shard != self.shard:
            raise corrupt(name, f"it belongs to shard {header.shard}")
        before, sealing = header.previous, head.kind == frames.SEAL
        if sealing != (before.term < header.term) or not (sealing or head.first_lsn == before.lsn + 1):
            raise corrupt(name, "its header and its frame contradict each other")
        if sealing:
            return JournalObject(name, number, before, header.start, sealing, b"")
        after = Position(before.lsn + head.records, header.term, frames.next_chain(before.chain, payload))
        return JournalObject(name, number, before, after, sealing, payload)

    def _name_of(self, number: int) -> str:
        return f"{self.name}/{number:016d}"


def encode_seal(shard: int, term: TermId, end: Position, marker: bytes) -> bytes:
    """The object that opens `term` behind `end`."""
    return frames.encode_header(frames.Header(shard, term, end, marker)) + frames.encode_seal(marker, term)


def encode_group(shard: int, end: Position, marker: bytes, records: Sequence[bytes]) -> tuple[bytes, Position]:
    """The object with a group of encoded records behind `end`, in the term of `end`; and the position after it."""
    head, payload = frames.encode_group(marker, end.lsn + 1, records)
    after = Position(end.lsn + len(records), end.term, frames.next_chain(end.chain, payload))
    return frames.encode_header(frames.Header(shard, end.term, end, marker)) + head + payload, after


def corrupt(name: str, what: str) -> JournalCorrupt:
    """The error for a damaged or missing object."""
    return JournalCorrupt(f"{name} is damaged at byte 0: {what}; {REMEDY}.")


def position_text(position: Position) -> str:
    """A position, for messages."""
    return f"record {position.lsn} of term {term_name(position.term)}"

"""The journal of a shard on an object store: its writer, and taking a shard over from whoever owned it.

Every group is one object with put-if-absent under the next number (`object_format`). A put whose answer was lost is asked for
again: it has succeeded exactly if its name holds its own bytes, which nobody else can have written, as they carry the owner's
random marker. Other bytes there mean that the shard was taken over.

Taking over is putting a seal under the next number. If that is taken, somebody has appended meanwhile: read what, and try the
next. So the seal always follows directly on what was read, and the owner before it can append nothing more.
"""

from __future__ import annotations

import secrets
from concurrent.futures import Executor, Future
from typing import NamedTuple

import stamina

from hermes_spark.errors import JournalCorrupt, StateError
from hermes_spark.state import frames
from hermes_spark.state.journal import Group, Opened, ShardJournal
from hermes_spark.state.journal_files import REMEDY, term_name
from hermes_spark.state.object_format import ShardObjects, corrupt, encode_group, encode_seal, position_text
from hermes_spark.state.object_reader import ObjectReader
from hermes_spark.state.records import Position, TermId, TermStarted
from hermes_spark.state.takeover import fenced

PATIENCE_S = 40.0
"""How long a put is tried again before the journal gives up; less than a barrier waits."""
TRIES = 500
"""Names tried by a takeover while the owner goes on appending. It needs one moment without an append."""


class Putting(NamedTuple):
    """How objects are put."""

    threads: Executor
    """Puts of several shards run side by side in these."""
    patience_s: float = PATIENCE_S
    """How long one put is tried again."""


class ObjectWriter:
    """Puts the groups of one term. Used by the thread that flushes, one group at a time."""

    def __init__(self, objects: ShardObjects, putting: Putting, seal: _Seal) -> None:
        self.path = objects.name
        """For messages."""
        self.position = seal.position
        """The end of what is known to be stored."""
        self._objects = objects
        self._putting = putting
        self._marker = seal.marker
        self._number = seal.number
        self._under_way: tuple[Future[bool], Position] | None = None

    def write(self, group: Group) -> None:
        """Begin to put a group."""
        data, after = encode_group(self._objects.shard, self.position, self._marker, group.records)
        threads, patience_s = self._putting
        self._under_way = threads.submit(put_own, self._objects, self._number + 1, data, patience_s), after

    def sync(self, _: Group) -> None:
        """Wait until the group is stored. Raises `Fenced` when another owner has its name, `StateError` when it is unknown."""
        assert self._under_way is not None
        stored, after = self._under_way
        if not stored.result():
            raise fenced(
                self.position.term, f"{self.path} holds an object of another owner at number {self._number + 1}"
            )
        self._number += 1
        self.position = after

    def close(self) -> None:
        """Nothing is held open."""


class _Seal(NamedTuple):
    number: int
    position: Position
    """The beginning of the term."""
    marker: bytes


def open_shard(objects: ShardObjects, term: TermId, putting: Putting, *, now_ms: int, known_end: int = 0) -> Opened:
    """Take the shard over for `term`; `TermStarted` is durable on return. The counterpart of `ShardJournal.open`.

    `known_end` is the highest LSN a commit names for this shard: a journal that ends below it has lost records. Raises
    `Fenced` when this term or a newer one was opened before, `JournalCorrupt`, or `StateError`.
    """
    previous, seal = _seal(objects, term, putting.patience_s, known_end)
    journal = ShardJournal(ObjectWriter(objects, putting, seal), previous)
    journal.append(TermStarted(term, previous, now_ms))
    journal.flush()
    return Opened(journal, ObjectReader(objects).read(Position(), previous))


def put_own(objects: ShardObjects, number: int, data: bytes, patience_s: float) -> bool:
    """Put `data` under a number: True when it is stored there, False when another object is.

    Asks again while the storage does not say which. `StateError` after `patience_s`: then it may or may not be stored.
    """
    key = objects.key(number)
    for attempt in stamina.retry_context(
        on=StateError, attempts=None, timeout=patience_s, wait_max=2.0, wait_jitter=0.2
    ):
        with attempt:
            if objects.storage.put_if_absent(key, data):
                return True
            stored = objects.storage.get(key)
            if stored is None:
                raise StateError(f"{objects.name} refuses number {number} as taken, but holds nothing there.")
            return stored == data
    raise AssertionError("stamina returns or raises")  # for the type checker


def _seal(objects: ShardObjects, term: TermId, patience_s: float, known_end: int) -> tuple[Position, _Seal]:
    """Put the seal of `term` behind all that is there; the end before it, and the seal."""
    marker = secrets.token_bytes(frames.MARKER_BYTES)
    number = len(objects.numbers())
    end = objects.get(number).after if number else Position()
    if end.lsn < known_end:
        raise JournalCorrupt(
            f"The journal in {objects.name} ends with record {end.lsn}, but {known_end} was committed; {REMEDY}."
        )
    for _ in range(TRIES):
        if end.term >= term:
            raise fenced(term, f"{objects.name} was taken over by term {term_name(end.term)}")
        number += 1
        if put_own(objects, number, encode_seal(objects.shard, term, end, marker), patience_s):
            return end, _Seal(number, Position(end.lsn, term, end.chain), marker)
        end = _following(objects, number, end)
    raise StateError(
        f"{objects.name} could not be sealed in {TRIES} tries, because its owner of term {term_name(end.term)} goes on "
        "appending; end that host, then start the job again."
    )


def _following(objects: ShardObjects, number: int, end: Position) -> Position:
    stored = objects.get(number)
    if stored.before != end:
        raise corrupt(stored.name, f"it follows {position_text(stored.before)}, not {position_text(end)}")
    return stored.after

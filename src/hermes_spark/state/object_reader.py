"""Reading a shard's journal on an object store between two positions, across terms. The counterpart of `JournalReader`."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing

from hermes_spark.errors import CheckpointMismatch
from hermes_spark.state.object_format import JournalObject, ShardObjects, corrupt, position_text
from hermes_spark.state.records import Position, Record

READ_AHEAD = 16
"""Objects that are fetched at once."""


class ObjectReader:
    """Reads one shard again and again with advancing positions, without reading anything twice.

    It may run while the owner appends, in this or another process. Used by one thread at a time.
    """

    def __init__(self, objects: ShardObjects) -> None:
        self._objects = objects
        self._number = 0
        self._position = Position()
        """What the objects up to `_number` amount to."""

    def check(self, position: Position, end: Position) -> None:
        """Raise `CheckpointMismatch` unless `position` lies on the chain that ends with `end`, the end of an owner's own term.

        The next `read` from there does not look for it again.
        """
        if position.lsn > end.lsn:
            raise self._mismatch(position, f"it lies behind record {end.lsn}, the end")
        number = self._number_of(position)
        self._number, self._position = number, position

    def read(self, after: Position, upto: Position | None) -> Iterator[tuple[int, Record]]:
        """All (lsn, record) pairs after `after`, up to and including `upto`, in order; None: all that is there.

        Lazy: an error may come after some records, which are then not to be used. Raises `CheckpointMismatch` when one of the
        positions does not lie on this journal's chain, `JournalCorrupt` when an object between them is damaged or missing.
        """
        if upto is not None and upto.lsn < after.lsn:
            raise self._mismatch(upto, f"it lies before record {after.lsn}, which comes first")
        number, position = self._number_of(after), after
        if position != upto:
            with closing(self._fetched(self._objects.numbers(number))) as fetched:
                for stored in fetched:
                    self._check(stored, position, upto)
                    yield from stored.records()
                    number, position = stored.number, stored.after
                    if position == upto:
                        break
        if upto is not None and position != upto:
            raise self._short(number, position, upto)
        self._number, self._position = number, position

    def _fetched(self, numbers: range) -> Generator[JournalObject, None, None]:
        """The objects in order, some of them ahead of time: a round trip takes long, and many cost no more than one."""
        ahead: deque[Future[JournalObject]] = deque()
        with ThreadPoolExecutor(READ_AHEAD, thread_name_prefix="journal-read") as threads:
            for number in numbers:
                ahead.append(threads.submit(self._objects.get, number))
                if len(ahead) == READ_AHEAD:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()

    def _check(self, stored: JournalObject, position: Position, upto: Position | None) -> None:
        if stored.before != position:
            raise corrupt(stored.name, f"it follows {position_text(stored.before)}, not {position_text(position)}")
        if upto is not None and stored.after.lsn > upto.lsn:
            raise self._mismatch(upto, f"{stored.name} leads to {position_text(stored.after)}")

    def _number_of(self, position: Position) -> int:
        """The number of the object that ends with `position`; 0 for the empty journal."""
        if position == self._position:
            return self._number
        if position == Position():
            return 0
        numbers = self._objects.numbers()
        at = bisect_left(numbers, position.lsn, key=lambda number: self._objects.get(number).after.lsn)
        for number in numbers[at:]:
            after = self._objects.get(number).after
            if after == position:
                return number
            if after.lsn > position.lsn:
                break
        raise self._mismatch(position, f"none of its {len(numbers)} objects ends there")

    def _short(self, number: int, position: Position, upto: Position) -> Exception:
        if position.lsn == upto.lsn:
            return self._mismatch(upto, f"it ends with {position_text(position)}")
        missing = f"{self._objects.name}/{number + 1:016d}"
        return corrupt(missing, f"it is missing: the records end with {position.lsn}, but {upto.lsn} was once durable")

    def _mismatch(self, position: Position, why: str) -> CheckpointMismatch:
        return CheckpointMismatch(
            f"{position_text(position).capitalize()} is no position of the journal in {self._objects.name}: {why}; use the "
            "checkpoint and the state that belong together."
        )

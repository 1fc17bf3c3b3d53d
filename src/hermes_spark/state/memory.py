"""A store of AgentStates in a dict: for tests, and for jobs whose state need not outlive the process."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from hermes_spark.errors import StateError
from hermes_spark.state.records import Position
from hermes_spark.state.storage import storage_errors

_FILE = "states.msgpack"


class MemoryStore:
    """`state.store.StateStore` in memory."""

    def __init__(self) -> None:
        self._states: dict[str, bytes] = {}
        self._deadlines: dict[str, int] = {}
        self._position = Position()
        self._closed = False

    def get(self, session_id: str) -> bytes | None:
        """The stored bytes, or None."""
        self._check()
        return self._states.get(session_id)

    def write(
        self, changes: Mapping[str, bytes | None], position: Position, deadlines: Mapping[str, int] | None = None
    ) -> None:
        """Put or delete all of `changes`, with their deadlines, and set the position."""
        self._check()
        for session_id, data in changes.items():
            self._deadlines.pop(session_id, None)
            if deadlines is not None and session_id in deadlines:
                self._deadlines[session_id] = deadlines[session_id]
            if data is None:
                self._states.pop(session_id, None)
            else:
                self._states[session_id] = data
        self._position = position

    def due(self, now_ms: int, limit: int) -> list[tuple[int, str]]:
        """The first `limit` (deadline, session id) pairs due at `now_ms`; looks at all sessions."""
        self._check()
        due = ((deadline, session_id) for session_id, deadline in self._deadlines.items() if deadline <= now_ms)
        return heapq.nsmallest(limit, due, key=lambda pair: (pair[0], pair[1].encode()))

    def position(self) -> Position:
        """The position of the last `write`."""
        self._check()
        return self._position

    def items(self) -> Iterator[tuple[str, bytes]]:
        """All pairs in the order of the ids' UTF-8 bytes, as of the call."""
        self._check()
        return iter(sorted(self._states.items(), key=lambda item: item[0].encode()))

    def checkpoint(self, directory: Path) -> None:
        """Write everything into one file of a new directory, for `load`."""
        self._check()
        with storage_errors(directory):
            directory.mkdir(parents=True)
            (directory / _FILE).write_bytes(msgspec.msgpack.encode((self._states, self._deadlines, self._position)))

    @classmethod
    def load(cls, directory: Path) -> MemoryStore:
        """The store that `checkpoint` wrote into a directory; a new one when there is none."""
        store = cls()
        if directory.exists():
            data = (directory / _FILE).read_bytes()
            kinds = tuple[dict[str, bytes], dict[str, int], Position]
            store._states, store._deadlines, store._position = msgspec.msgpack.decode(data, type=kinds)
        return store

    def close(self) -> None:
        """Forget everything. Safe to call twice."""
        self._states.clear()
        self._deadlines.clear()
        self._closed = True

    def _check(self) -> None:
        if self._closed:
            raise StateError("The store in memory is closed; open a new one.")

"""A store of AgentStates in a dict: for tests, and for jobs whose state need not outlive the process."""

from __future__ import annotations

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
        self._position = Position()
        self._closed = False

    def get(self, session_id: str) -> bytes | None:
        """The stored bytes, or None."""
        self._check()
        return self._states.get(session_id)

    def write(self, changes: Mapping[str, bytes | None], position: Position) -> None:
        """Put or delete all of `changes` and set the position."""
        self._check()
        for session_id, data in changes.items():
            if data is None:
                self._states.pop(session_id, None)
            else:
                self._states[session_id] = data
        self._position = position

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
            (directory / _FILE).write_bytes(msgspec.msgpack.encode((self._states, self._position)))

    @classmethod
    def load(cls, directory: Path) -> MemoryStore:
        """The store that `checkpoint` wrote into a directory; a new one when there is none."""
        store = cls()
        if directory.exists():
            data = (directory / _FILE).read_bytes()
            store._states, store._position = msgspec.msgpack.decode(data, type=tuple[dict[str, bytes], Position])
        return store

    def close(self) -> None:
        """Forget everything. Safe to call twice."""
        self._states.clear()
        self._closed = True

    def _check(self) -> None:
        if self._closed:
            raise StateError("The store in memory is closed; open a new one.")

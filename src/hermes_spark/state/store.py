"""The store of AgentStates behind one protocol: RocksDB in production (`rocksdb`), a dict in tests (`memory`).

The store is a cache of the journal and may be lost at any time; it holds bytes and knows nothing of agents.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

from hermes_spark.state.records import Position


class StateStore(Protocol):
    """States of one shard by session id. Used by one thread at a time; opened by the shard's owner only."""

    def get(self, session_id: str) -> bytes | None:
        """The stored bytes, or None. Sees every earlier `write` of this process."""
        ...

    def write(self, changes: Mapping[str, bytes | None], position: Position) -> None:
        """Put (bytes) or delete (None) all of `changes` and set the position, in one atomic batch.

        Raises `StorageFull` when there is no space. After a crash either all of a batch is there or none of it.
        """
        ...

    def position(self) -> Position:
        """The position of the last `write`; `Position()` when new."""
        ...

    def items(self) -> Iterator[tuple[str, bytes]]:
        """All (session id, bytes) pairs in key order, as of the call."""
        ...

    def checkpoint(self, directory: Path) -> None:
        """Write files that a store can be opened from into `directory`, which must not exist: all writes so far are in them.

        The only method for another thread than the store's own: `get` may be used meanwhile, `write` may not.
        """
        ...

    def close(self) -> None:
        """Release files and locks. Safe to call twice."""
        ...

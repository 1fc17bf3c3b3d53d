"""The AgentStates of one shard: live ones in memory, idle ones in a byte-bounded cache over the store."""

from __future__ import annotations

from pathlib import Path

from cachetools import LRUCache

from hermes_spark.state.agent_state import AgentState, decode_state, encode_state
from hermes_spark.state.records import Position
from hermes_spark.state.store import StateStore


class Sessions:
    """Holds every session of a shard at the end of what was appended.

    A session with an open turn or a waiting event is live and stays in memory. When it goes idle its bytes wait in
    memory until the journal is durable up to them (`write_back`); only then do they go to the store, which never runs ahead.
    """

    def __init__(self, store: StateStore, cache_bytes: int) -> None:
        self._store = store
        self.live: dict[str, AgentState] = {}
        self._unwritten: dict[str, tuple[int, bytes]] = {}
        self._held = False
        self._idle: LRUCache[str, AgentState] = LRUCache(max(1, cache_bytes), getsizeof=_size)

    def get(self, session_id: str) -> AgentState | None:
        """The session's state, or None when there is none."""
        state = self.live.get(session_id) or self._idle.get(session_id)
        if state is not None:
            return state
        waiting = self._unwritten.get(session_id)
        data = self._store.get(session_id) if waiting is None else waiting[1]
        return None if data is None else decode_state(data)

    def put(self, state: AgentState, lsn: int) -> None:
        """Keep a new state of a session, made by the record at `lsn`."""
        session_id = state.session_id
        if not state.idle:
            self._idle.pop(session_id, None)
            self.live[session_id] = state
            return
        self.live.pop(session_id, None)
        self._unwritten.pop(session_id, None)
        self._unwritten[session_id] = (lsn, encode_state(state))
        if _size(state) <= self._idle.maxsize:
            self._idle[session_id] = state

    @property
    def unwritten(self) -> int:
        """Idle sessions whose bytes are not in the store yet."""
        return len(self._unwritten)

    def write_back(self, durable: Position) -> None:
        """Write the idle sessions whose last record is durable to the store."""
        if self._held:
            return
        changes: dict[str, bytes | None] = {}
        for session_id, (lsn, data) in self._unwritten.items():
            if lsn > durable.lsn:
                break
            changes[session_id] = data
        if changes:
            self._store.write(changes, durable)
            for session_id in changes:
                del self._unwritten[session_id]

    def image(self) -> tuple[list[bytes], list[AgentState]]:
        """What the store does not hold, or only an older state of: idle sessions encoded, then live ones, which go before."""
        return [data for _, data in self._unwritten.values()], list(self.live.values())

    def hold(self) -> None:
        """Write nothing to the store until `release`: it is being copied."""
        self._held = True

    def checkpoint(self, directory: Path) -> None:
        """`StateStore.checkpoint`; for any thread, while held."""
        self._store.checkpoint(directory)

    def release(self) -> None:
        """Let `write_back` write again."""
        self._held = False

    def close(self) -> None:
        """Close the store."""
        self._store.close()


def _size(state: AgentState) -> int:
    """Rough bytes of a state: its texts and a fixed part; measured, not exact."""
    return 512 + sum(len(m.content) + len(m.reasoning) + 64 for m in state.messages)

"""How much a shard's sessions press on its host: bytes of events whose turn has not ended, of sessions that can run.

Sessions that wait for an approval press on nobody: otherwise the approval that frees the host would queue behind them.
"""

from __future__ import annotations


class Pressure:
    """The books of one shard."""

    def __init__(self) -> None:
        self.turns: dict[str, tuple[str, int]] = {}
        """Session and bytes by turn."""
        self._sessions: dict[str, int] = {}
        self._waiting: set[str] = set()
        self.held_bytes = 0

    @property
    def waiting(self) -> int:
        """Sessions whose open turn waits for an approval."""
        return len(self._waiting)

    def hold(self, session_id: str, turn_id: str, size: int) -> None:
        """An event of `size` bytes was taken; it causes the turn."""
        self.turns[turn_id] = session_id, size
        self._add(session_id, size)

    def release(self, session_id: str, turn_id: str) -> None:
        """The turn has ended."""
        _, size = self.turns.pop(turn_id, ("", 0))
        self._add(session_id, -size)

    def note(self, session_id: str, *, waiting: bool) -> None:
        """Whether the session waits for an approval now."""
        if waiting == (session_id in self._waiting):
            return
        held = self._sessions.get(session_id, 0)
        if waiting:
            self._waiting.add(session_id)
            self.held_bytes -= held
        else:
            self._waiting.discard(session_id)
            self.held_bytes += held

    def _add(self, session_id: str, size: int) -> None:
        held = self._sessions.pop(session_id, 0) + size
        if held:
            self._sessions[session_id] = held
        if session_id not in self._waiting:
            self.held_bytes += size

"""How far a completion has come: its deadline, its newest attempt, and what was refused before it."""

from __future__ import annotations

import asyncio

from hermes_spark.errors import ModelError


class Attempts:
    """Where a completion stands that may take `limit_s` seconds in all. Made and used on one event loop."""

    def __init__(self, limit_s: float) -> None:
        self._now = asyncio.get_running_loop().time
        self._first = self._newest = self._now()
        self._deadline = self._first + limit_s
        self.refusal: ModelError | None = None
        """The newest refusal that is being waited out, if any."""

    def begin(self) -> None:
        """Another attempt is made."""
        self._newest = self._now()

    def left_s(self) -> float:
        """Seconds left, never so few that gRPC takes them for none."""
        return max(self._deadline - self._now(), 0.001)

    def obstacle(self) -> ModelError | None:
        """The refusal that is to blame when time runs out: refusals took more of it than the newest attempt."""
        refused_s, newest_s = self._newest - self._first, self._now() - self._newest
        return self.refusal if refused_s > newest_s else None

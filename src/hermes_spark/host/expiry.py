"""Expiry: sessions that were idle for their whole time to live are forgotten, a bounded slice at a time.

A timer on the host's loop looks at the shards' indexes of deadlines; a full slice is followed by the next one a moment later,
and each waits until the one before is durable, so that expiring very many sessions neither holds up turns nor piles up.
Whether a session expires is decided in the same step that appends the record, on the state as appended.

A session whose next message came in time must not expire because the message waited somewhere: for a driver that was down, a
sink that stopped the batches, a host that was full. The driver asks for a batch's barrier once everything of it is taken, and
chooses the next batch's rows after that. So at a batch's first barrier, whatever had reached the source by the first barrier
of the batch before is taken, and sessions are judged by the time of that earlier barrier. Asking once more, or asking besides
the batches whether a host is there, says nothing about the source. An idle stream has batches too (`source.tick_ms`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from hermes_spark.agent import act
from hermes_spark.errors import HermesError, StateError
from hermes_spark.host.shard import Shard
from hermes_spark.settings import Settings
from hermes_spark.telemetry import EXPIRED

IDLE_S = 1.0
"""Between two looks while nothing is left to expire."""
PAUSE_S = 0.1
"""After a full slice."""
YIELD_SESSIONS = 20
"""Sessions decided before the loop may turn to other work: about 2 ms."""


class Expiry:
    """Forgets the idle sessions of all shards of one host. Used on its loop only."""

    def __init__(
        self, shards: Callable[[], Iterable[Shard]], failed: Callable[[Shard, HermesError], None], settings: Settings
    ) -> None:
        self._shards = shards
        self._failed = failed
        self._slice = settings.state.expire_slice
        self._final = settings.sink.expired
        self._newest_ms = self._before_ms = 0
        self._batch = -1
        self._first = 0

    def barrier(self, batch: int) -> None:
        """The driver asks for the barrier of a batch, not always for the first time: see the module."""
        if batch == self._batch:
            return
        self._batch = batch
        self._before_ms = self._newest_ms
        self._newest_ms = max((shard.now_ms() for shard in self._shards()), default=self._newest_ms)

    async def run(self) -> None:
        """Expire what is due, slice by slice, until cancelled."""
        while True:
            expired = await self.expire_slice()
            await asyncio.sleep(PAUSE_S if expired >= self._slice else IDLE_S)

    async def expire_slice(self) -> int:
        """Forget at most a slice of the sessions that are due, durably; how many. Each time another shard is the first."""
        shards = list(self._shards())
        expired = 0
        self._first += 1
        for place in range(len(shards)):
            shard = shards[(self._first + place) % len(shards)]
            try:
                expired += await self._expire(shard, self._slice - expired)
                await shard.durable()
            except StateError as exc:
                if shard.failure is None:
                    self._failed(shard, exc)
        return expired

    async def _expire(self, shard: Shard, limit: int) -> int:
        expired = 0
        if shard.failure is not None:
            return expired
        due = shard.sessions.due(min(self._before_ms, shard.now_ms()), limit)
        for number, session_id in enumerate(due):
            if number % YIELD_SESSIONS == YIELD_SESSIONS - 1:
                await asyncio.sleep(0)
            if expired == limit or shard.failure is not None:
                break
            expired += expire(shard, session_id, self._before_ms, final=self._final)
        return expired


def expire(shard: Shard, session_id: str, upto_ms: int, *, final: bool) -> bool:
    """Forget one session if it is idle and its deadline is at most `upto_ms`; whether it was.

    `final`: with its history in the record, for the sink.
    """
    state = shard.sessions.get(session_id)
    if state is None or state.deadline_ms is None or state.deadline_ms > upto_ms:
        return False
    shard.append(act.expired(state, shard.now_ms(), final=final))
    EXPIRED.inc()
    return True

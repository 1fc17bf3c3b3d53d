"""Early outcomes: a host sends an outcome to the sink as soon as it is durable, and notes in the journal that it arrived.

Nothing is promised here: an outcome that is not sent, or whose note is lost with this host, is sent by a batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from hermes_spark.errors import HermesError
from hermes_spark.host.shard import Shard
from hermes_spark.state.records import Outcome
from hermes_spark.telemetry import EARLY_OUTCOMES

NOTE_S = 0.05
"""How long confirmations are gathered for one record."""


class EarlySink(Protocol):
    """Where outcomes go (`kafka.early`)."""

    def send(self, shard: int, lsn: int, outcome: Outcome, confirmed: Callable[[], None]) -> None:
        """Send without waiting; `confirmed` is called from another thread once the sink has it, and never if it has not."""
        ...

    def close(self) -> None:
        """Send nothing more; what is under way may still arrive. Waits for a thread, within a bound."""
        ...


class EarlyOutcomes:
    """The sending of one host. Used on its loop only."""

    def __init__(self, sink: EarlySink) -> None:
        self._sink = sink
        self._loop = asyncio.get_running_loop()
        self._sending: set[asyncio.Task[None]] = set()
        self._confirmed: dict[Shard, list[int]] = {}

    def ended(self, shard: Shard, number: int, outcome: Outcome) -> None:
        """Send the outcome that was appended last to the shard `number`."""
        task = self._loop.create_task(self._send(shard, number, shard.journal.appended_lsn, outcome))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    def note(self) -> None:
        """Append what was confirmed and is not noted yet."""
        confirmed, self._confirmed = self._confirmed, {}
        for shard, lsns in confirmed.items():
            if shard.failure is None:
                shard.published_early(tuple(sorted(lsns)))

    async def close(self) -> None:
        """Send nothing more."""
        for task in self._sending:
            task.cancel()
        await self._loop.run_in_executor(None, self._sink.close)

    async def _send(self, shard: Shard, number: int, lsn: int, outcome: Outcome) -> None:
        try:
            await shard.durable()
        except HermesError:
            return  # the outcome never became durable

        def confirmed() -> None:
            self._loop.call_soon_threadsafe(self._note_soon, shard, lsn)

        self._sink.send(number, lsn, outcome, confirmed)

    def _note_soon(self, shard: Shard, lsn: int) -> None:
        EARLY_OUTCOMES.inc()
        if not self._confirmed:
            self._loop.call_later(NOTE_S, self.note)
        self._confirmed.setdefault(shard, []).append(lsn)

"""Makes what shards append durable: one round of writes and fdatasyncs covers all shards of the host."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from hermes_spark.errors import HermesError, StateError
from hermes_spark.host.shard import Shard
from hermes_spark.state.journal import flush_all


class Flusher:
    """Runs rounds for as long as there is something to write. At most one round, so one group per shard, is under way."""

    def __init__(self, shards: Callable[[], Iterable[Shard]], failed: Callable[[Shard, HermesError], None]) -> None:
        self._shards = shards
        self._failed = failed
        self._wake = asyncio.Event()
        self._one_round = asyncio.Lock()
        self._stopping = False
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="journal")

    def wake(self) -> None:
        """Something was appended."""
        self._wake.set()

    async def run(self) -> None:
        """Flush whenever woken, until stopped; ends after its round, never within one."""
        while not self._stopping:
            await self._wake.wait()
            # One pass of the loop first: effects started by the same record append their intents into the same round.
            await asyncio.sleep(0)
            self._wake.clear()
            await self.round()

    def stop(self) -> None:
        """Let `run` end."""
        self._stopping = True
        self._wake.set()

    async def round(self) -> None:
        """Write and sync all groups that wait now, and tell the shards."""
        async with self._one_round:
            live = {shard.journal: shard for shard in self._shards() if shard.failure is None}
            groups = [group for shard in live.values() if (group := shard.take_group()) is not None]
            if not groups:
                return
            loop = asyncio.get_running_loop()
            for flushed in await loop.run_in_executor(self._disk, flush_all, groups):
                shard = live[flushed.group.journal]
                try:
                    flushed.group.journal.confirm(flushed)
                except StateError as exc:
                    self._failed(shard, exc)
                else:
                    shard.flushed()

    def close(self) -> None:
        """End the disk thread after its round."""
        self._disk.shutdown(wait=True)

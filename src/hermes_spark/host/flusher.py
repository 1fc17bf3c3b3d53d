"""Makes what shards append durable: one round of writes and fdatasyncs covers all shards of the host."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from hermes_spark.errors import HermesError
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
            live = [shard for shard in self._shards() if shard.failure is None]
            dirty = [(shard, group) for shard in live if (group := shard.journal.take_group()) is not None]
            if not dirty:
                return
            loop = asyncio.get_running_loop()
            errors = await loop.run_in_executor(self._disk, flush_all, [group for _, group in dirty])
            for (shard, group), error in zip(dirty, errors, strict=True):
                if error is None:
                    shard.journal.confirm(group)
                    shard.flushed()
                else:
                    self._failed(shard, error)

    def close(self) -> None:
        """End the disk thread after its round."""
        self._disk.shutdown(wait=True)

"""When a shard gets a snapshot, and how: captured on the loop, copied and stored beside it.

Due after so many commits, if the shard has changed, or when the journal behind the last snapshot has become long. One at a
time per host, so that snapshots take a thin, even share of its disk. One that fails costs nothing but a longer journal.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hermes_spark.errors import HermesError
from hermes_spark.host.shard import Capture, Shard
from hermes_spark.settings import SnapshotSettings
from hermes_spark.state.snapshots import ShardSnapshots
from hermes_spark.telemetry import SNAPSHOTS

log = logging.getLogger(__name__)


class SnapshotQueue:
    """What all shards of a host share: the one thread that copies, and whose turn it is. Made on the loop."""

    def __init__(self, settings: SnapshotSettings, clock_ms: Callable[[], int]) -> None:
        self.settings = settings
        self.clock_ms = clock_ms
        self.turn = asyncio.Lock()
        self.disk = ThreadPoolExecutor(1, thread_name_prefix="snapshots")


class Snapshotter:
    """Takes the snapshots of one shard. Used on the host's loop."""

    def __init__(
        self, queue: SnapshotQueue, shard: Shard, snapshots: ShardSnapshots, scratch: Path, last_lsn: int
    ) -> None:
        """`scratch`: a directory for nobody else, not there yet; `last_lsn`: where the newest snapshot lies, 0 for none."""
        self._queue = queue
        self._shard = shard
        self._snapshots = snapshots
        self._scratch = scratch
        self._last_lsn = last_lsn
        self._commits = 0
        self.task: asyncio.Task[None] | None = None
        """The snapshot that is being taken, or was taken last."""

    def committed(self) -> None:
        """A commit was made of the shard: take a snapshot if it is due."""
        self._commits += 1
        if self._due() and (self.task is None or self.task.done()):
            self.task = asyncio.get_running_loop().create_task(self._take())

    def _due(self) -> bool:
        settings, records = self._queue.settings, self._shard.journal.durable_lsn - self._last_lsn
        long = 0 < settings.every_records <= records
        return long or (0 < settings.every_commits <= self._commits and records > 0)

    async def _take(self) -> None:
        loop = asyncio.get_running_loop()
        async with self._queue.turn:
            # Also when it fails: the next one is tried when it would be due anyway.
            self._last_lsn, self._commits = self._shard.journal.durable_lsn, 0
            try:
                capture = await self._shard.capture()
                try:
                    await loop.run_in_executor(self._queue.disk, self._copy)
                finally:
                    self._shard.sessions.release()
                await loop.run_in_executor(self._queue.disk, self._write, capture)
            except HermesError as exc:
                SNAPSHOTS.labels(result="failed").inc()
                log.warning("a snapshot failed, and the journal behind the one before stays: %s", exc)
            else:
                self._last_lsn = capture.position.lsn
                SNAPSHOTS.labels(result="written").inc()

    def _copy(self) -> None:
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._shard.sessions.checkpoint(self._scratch)

    def _write(self, capture: Capture) -> None:
        try:
            self._snapshots.write(self._scratch, capture.contents(), capture.position, self._queue.clock_ms())
        finally:
            shutil.rmtree(self._scratch, ignore_errors=True)

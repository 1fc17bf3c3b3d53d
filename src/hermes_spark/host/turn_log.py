"""A line per turn that ended, once its outcome is durable: what the benchmark counts latencies from."""

from __future__ import annotations

import asyncio
import os

from hermes_spark.errors import StateError
from hermes_spark.host.shard import Shard
from hermes_spark.state.records import Outcome
from hermes_spark.telemetry import JsonLines


class TurnLog:
    """The log of one host. Used on its loop only."""

    def __init__(self, directory: str, index: int) -> None:
        self._lines = JsonLines(directory, f"turns-{index}-{os.getpid()}.jsonl")
        self._waiting: set[asyncio.Task[None]] = set()

    def ended(self, shard: Shard, outcome: Outcome) -> None:
        """Log the outcome that was appended last to `shard`."""
        task = asyncio.get_running_loop().create_task(self._write(shard, outcome))
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)

    async def _write(self, shard: Shard, outcome: Outcome) -> None:
        try:
            await shard.durable()
        except StateError:
            return  # an outcome that never became durable
        self._lines.write(turn_id=outcome.turn_id, status=outcome.status, ts=outcome.event_ts_ms)

"""Small objects of driver and Spark (epochs, commits, offsets), and the sinks: atomic each, slow, and outliving everybody."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from simulation.loop import SimLoop


class Objects:
    """`state.storage.Storage` in memory."""

    def __init__(self, loop: SimLoop, rng: random.Random) -> None:
        self._loop, self._rng = loop, rng
        self.data: dict[str, bytes] = {}

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self._pause()
        absent = key not in self.data
        self.data.setdefault(key, data)
        self._loop.log("put:", key, "" if absent else "(was there)", "by", self._loop.current().name)
        self._pause()
        return absent

    def put(self, key: str, data: bytes) -> None:
        self._pause()
        self.data[key] = data
        self._pause()

    def get(self, key: str) -> bytes | None:
        self._pause()
        return self.data.get(key)

    def list(self, prefix: str) -> list[str]:
        self._pause()
        folder = prefix.rstrip("/")
        return sorted(key for key in self.data if not folder or key.startswith(f"{folder}/"))

    def delete(self, key: str) -> None:
        self._pause()
        self.data.pop(key, None)

    def _pause(self) -> None:
        thread = self._loop.thread
        if thread is not None and self._rng.random() < 0.3:
            thread.sleep(self._rng.uniform(0.0005, 0.02))


class SinkDown(OSError):
    """What a sink raises that is down: no error of ours, as in life."""


class SimSink:
    """Keeps what is published, by batch and table, and compares what is published again."""

    def __init__(self, loop: SimLoop, rng: random.Random) -> None:
        self._loop, self._rng = loop, rng
        self.tables: dict[tuple[int, str], list[dict[str, Any]]] = {}
        self.differences: list[str] = []
        self.replays = 0
        self.down = 0
        """So many publishes to come fail."""
        self.refused = 0
        self.asked: Callable[[list[dict[str, Any]]], None] = lambda rows: None
        """Told of calls that wait for an approval, once each."""

    def publish(self, batch_id: int, tables: Mapping[str, pa.Table]) -> None:
        for name, table in tables.items():
            thread = self._loop.thread
            if thread is not None and table.num_rows:
                thread.sleep(self._rng.uniform(0.001, 0.03))
            if self.down:
                self.down -= 1
                self.refused += 1
                raise SinkDown("the sink is down")
            rows = table.to_pylist()
            if rows:
                self._loop.log("published:", name, len(rows), "in batch", batch_id, "by", self._loop.current().name)
            before = self.tables.setdefault((batch_id, name), rows)
            if before is rows and name == "approvals":
                self.asked(rows)
            elif before is not rows:
                self.replays += 1
                if before != rows:
                    self.differences.append(f"batch {batch_id} was published again with other {name}: {before} {rows}")

    def rows(self, name: str) -> list[dict[str, Any]]:
        """All rows of a table in the order of publishing."""
        found = sorted((batch, rows) for (batch, table), rows in self.tables.items() if table == name)
        return [row for _, rows in found for row in rows]

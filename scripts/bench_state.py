"""`scripts/bench --state N`: what N live sessions of 4 KB cost one host, beside 1,000 of them.

Turns and batches are timed with both, at the same rate; then the host starts on an empty machine, from snapshots and the rest
of the journals; then everything expires at once, while turns go on. Turns are of two completions and one tool call that cost
nothing, so their latency is all the host's own: journal, wire, state.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import shutil
import tempfile
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import uvloop
from prometheus_client import REGISTRY

from bench_host import BenchHost, MadeUpModel, MadeUpTools, Texts
from hermes_spark.app.host import settle_down
from hermes_spark.settings import Settings, StateSettings

SMALL = 1_000
FILL_CHARACTERS = 1_850
"""Of the one message and the one reply that a session begins with: 4 KB of state with everything around them."""
TURN_CHARACTERS = 60
FILL_ROWS = 512
BATCH_S = 0.2
FILLED = "filled"
PARTS = ("turns", "restore", "expire")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this mode."""
    group = parser.add_argument_group("many sessions (no Spark: one host in this process)")
    group.add_argument("--state", type=int, default=0, metavar="N", help="measure a host with N live sessions of 4 KB")
    group.add_argument(
        "--state-dir", default="", help="keep the sessions here for a further run (default: a temporary directory)"
    )
    group.add_argument(
        "--state-parts",
        default=",".join(PARTS),
        help="what to do with them: some of turns,restore,expire (default all)",
    )
    group.add_argument("--expire-slice", type=int, default=StateSettings().expire_slice, help="as state.expire_slice")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure what was asked for; the line to print."""
    parent = Path(arguments.state_dir or tempfile.mkdtemp(prefix="hermes-bench-"))
    parent.mkdir(parents=True, exist_ok=True)
    try:
        uvloop.install()
        settle_down()
        return asyncio.run(_State(parent, arguments).measure())
    finally:
        if not arguments.state_dir:
            shutil.rmtree(parent)


class _State:
    def __init__(self, directory: Path, arguments: argparse.Namespace) -> None:
        self.directory = directory
        self.sessions: int = arguments.state
        self.rate: int = arguments.rate[0]
        self.seconds: int = arguments.seconds
        self.parts = arguments.state_parts.split(",")
        self.settings = Settings(state=StateSettings(expire_slice=arguments.expire_slice))
        self.texts = Texts()
        self.model = MadeUpModel(self.texts, calls=0, characters=FILL_CHARACTERS)
        self.large = directory / f"large-{self.sessions}"
        self.memory = _Memory()

    async def measure(self) -> dict[str, Any]:
        line: dict[str, Any] = {"mode": "state", "sessions": self.sessions, "rate": self.rate}
        filled = (self.large / FILLED).exists()
        with self.memory:
            if "turns" in self.parts:
                line |= await self._turns(line)
            elif not filled:
                async with self._host(self.large) as (host, _):
                    line["fill"] = await self._fill(host, self.large, self.sessions)
            if "restore" in self.parts or "expire" in self.parts:
                line |= await self._restored()
        return line | {"memory_mb": self.memory.report(self.settings)}

    async def _turns(self, line: dict[str, Any]) -> dict[str, Any]:
        """Turns and batches, with few sessions and with many."""
        small = self.directory / "small"
        shutil.rmtree(small, ignore_errors=True)
        found: dict[str, Any] = {}
        async with self._host(small) as (host, _):
            await self._fill(host, small, SMALL)
            found["small"] = await self._load(host, SMALL)
        self.memory.begin()
        async with self._host(self.large) as (host, _):
            if not (self.large / FILLED).exists():
                found["fill"] = await self._fill(host, self.large, self.sessions)
            found["large"] = await self._load(host, self.sessions)
        for what in ("batch_ms", "turn_ms"):
            found[f"{what}_ratio"] = {
                q: round(ms / found["small"][what][q], 2) for q, ms in found["large"][what].items()
            }
        return found

    async def _restored(self) -> dict[str, Any]:
        """The same state on a machine that has neither RocksDB's files nor anything in its page cache."""
        shutil.rmtree(self.large / "local")
        _evict(self.large)
        async with self._host(self.large) as (host, opened_s):
            found: dict[str, Any] = {"restore_s": round(opened_s, 1), "disk_gb": _gigabytes(self.directory)}
            if "expire" in self.parts:
                found["expiry"] = await self._expire(host)
                (self.large / FILLED).unlink()
        return found

    @contextlib.asynccontextmanager
    async def _host(self, directory: Path) -> AsyncIterator[tuple[BenchHost, float]]:
        tools = MadeUpTools(self.texts, TURN_CHARACTERS)
        host = BenchHost(directory / "state", directory / "local", self.settings, self.model, tools)
        opened_s = await host.start()
        yield host, opened_s
        await host.stop()

    async def _fill(self, host: BenchHost, directory: Path, sessions: int) -> dict[str, Any]:
        self.model.calls, self.model.characters = 0, FILL_CHARACTERS
        began = time.perf_counter()
        for first in range(0, sessions, FILL_ROWS):
            numbers = range(first, min(first + FILL_ROWS, sessions))
            await host.batch([_event(f"s{number}", self.texts.text(FILL_CHARACTERS)) for number in numbers])
        await host.settled()
        await host.batch([])
        (directory / FILLED).touch()
        seconds = time.perf_counter() - began
        return {"seconds": round(seconds, 1), "sessions_per_s": round(sessions / seconds)}

    async def _load(self, host: BenchHost, sessions: int) -> dict[str, Any]:
        """Offer `rate` turns a second, of sessions at random, in a batch every `BATCH_S`."""
        chance = random.Random(sessions)
        host.turn_ms.clear()
        batches = [
            await self._paced(host, number, [f"s{chance.randrange(sessions)}" for _ in range(self._rows)])
            for number in range(round(self.seconds / BATCH_S))
        ]
        await host.settled()
        return {"batch_ms": _quantiles(batches), "turn_ms": _quantiles(host.turn_ms), "turns": len(host.turn_ms)}

    async def _expire(self, host: BenchHost) -> dict[str, Any]:
        """Let the time to live of all sessions pass at once, and go on with turns of new sessions until all are gone."""
        before = _expired()
        await host.batch([])
        host.clock.ahead_ms += round(self.settings.state.ttl_s * 1000) + 1
        host.turn_ms.clear()
        batches: list[float] = []
        slices: list[int] = []
        began = last = time.perf_counter()
        while (gone := _expired() - before) < self.sessions:
            if time.perf_counter() - last > 30:
                raise RuntimeError(f"{gone:.0f} of {self.sessions} sessions have expired, and no more")
            number = len(batches)
            batches.append(await self._paced(host, number, [f"n{number}-{row}" for row in range(self._rows)]))
            slices.append(round(_expired() - before - gone))
            last = time.perf_counter() if slices[-1] else last
        seconds = time.perf_counter() - began
        await host.settled()
        median = float(np.median(batches))
        return {
            "seconds": round(seconds, 1),
            "sessions_per_s": round(self.sessions / seconds),
            "batches": len(batches),
            "most_between_two_batches": max(slices),
            "batch_ms": _quantiles(batches),
            "batch_ms_max": round(max(batches), 1),
            "over_twice_the_median": sum(ms > 2 * median for ms in batches),
            "turn_ms": _quantiles(host.turn_ms),
        }

    @property
    def _rows(self) -> int:
        return round(self.rate * BATCH_S)

    async def _paced(self, host: BenchHost, number: int, sessions: list[str]) -> float:
        """One batch, in milliseconds, and what is left of `BATCH_S`."""
        self.model.calls, self.model.characters = 1, TURN_CHARACTERS
        began = time.perf_counter()
        values = [_event(session, self.texts.text(TURN_CHARACTERS)) for session in sessions]
        seconds = await host.batch(values, timed=True)
        await asyncio.sleep(max(0.0, BATCH_S - (time.perf_counter() - began)))
        return seconds * 1000


class _Memory:
    """This process's resident memory, sampled; from `begin` on the peak counts."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.before = self.peak = 0.0

    def __enter__(self) -> _Memory:
        self.begin()
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()

    def begin(self) -> None:
        """Forget what was."""
        self.before = self.peak = self._process.memory_info().rss / 2**20

    def report(self, settings: Settings) -> dict[str, float]:
        """Megabytes before and at the peak, and what the settings allow on top of what was before."""
        state = settings.state
        allowed = state.cache_bytes + state.block_cache_bytes + state.write_buffer_bytes
        return {
            "before": round(self.before),
            "peak": round(self.peak),
            "grown": round(self.peak - self.before),
            "allowed": round(allowed / 2**20),
        }

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            self.peak = max(self.peak, self._process.memory_info().rss / 2**20)


def _event(session: str, text: str) -> tuple[str, bytes]:
    return session, msgspec.json.encode({"session_id": session, "messages": [{"role": "user", "content": text}]})


def _expired() -> float:
    return REGISTRY.get_sample_value("hermes_expired_sessions_total") or 0.0


def _evict(directory: Path) -> None:
    """Let the page cache forget the files below a directory."""
    for path in directory.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)


def _gigabytes(directory: Path) -> float:
    return round(sum(path.stat().st_size for path in directory.rglob("*") if path.is_file()) / 1e9, 2)


def _quantiles(values: list[float]) -> dict[str, float]:
    return {f"p{q}": round(float(np.percentile(values, q)), 1) for q in (50, 90, 99)}

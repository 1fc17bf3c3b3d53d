"""What the benchmark's modes share: the profile of engine and tools, the floor that follows from it, and figures of a run."""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from stack import StackError

FIRST_TOKEN_MS = 112
TOKENS_PER_SECOND = 2180
TOOL_DELAY_MS = 30
HOSTS_S = 120.0


def floor_ms(row: dict[str, Any]) -> float:
    """What engine and tools alone take for the turn of an outcome."""
    steps_with_calls = len({call["step"] for call in row["calls"]})
    tokens_ms = row["completion_tokens"] / TOKENS_PER_SECOND * 1000
    return float(row["steps"] * FIRST_TOKEN_MS + tokens_ms + steps_with_calls * TOOL_DELAY_MS)


def quantiles(values: Iterable[float]) -> dict[str, float]:
    """Median and tails; empty for no values."""
    data = np.fromiter(values, dtype=float)
    if not data.size:
        return {}
    return {f"p{q}": round(float(np.percentile(data, q)), 1) for q in (50, 90, 99)}


def open_at(spans: Iterable[tuple[float, float]], at_ms: float) -> int:
    """How many (from, to) have begun by then and not ended: a number that grows is a backlog."""
    return sum(begin < at_ms <= end for begin, end in spans)


def batches(log: Path) -> dict[str, float]:
    """Median milliseconds of each part of a batch that handed something over: Spark's parts and ours."""
    parts: dict[str, list[float]] = defaultdict(list)
    full = {line["batch"] for line in json_lines(log, "batches-*.jsonl") if line["taken"] or line["skipped"]}
    for pattern in ("batches-*.jsonl", "progress-*.jsonl"):
        for line in json_lines(log, pattern):
            if line["batch"] in full:
                for name, ms in line["ms"].items():
                    parts[name].append(ms)
    return {name: round(float(np.median(values)), 1) for name, values in parts.items()}


def json_lines(directory: Path, pattern: str) -> list[dict[str, Any]]:
    """All lines of the files, by the files' names."""
    return [json.loads(line) for file in sorted(directory.glob(pattern)) for line in file.read_text().splitlines()]


def host_pids(log: Path, start: int, least: int, alive: Callable[[], bool]) -> list[int]:
    """Pids of the agent hosts, when `least` of them are up according to a job's log from byte `start` on."""
    deadline = time.monotonic() + HOSTS_S
    while alive() and time.monotonic() < deadline:
        found = re.findall(r"is up: pid (\d+)", log.read_bytes()[start:].decode(errors="replace"))
        if len(found) >= least:
            return [int(pid) for pid in found]
        time.sleep(0.2)
    raise StackError(f"not all agent hosts came up; see {log}")

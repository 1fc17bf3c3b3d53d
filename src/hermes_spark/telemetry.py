"""Logs and metrics. Logs hold ids, counts and times; never a customer's text, arguments or secrets."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Any

from prometheus_client import Counter, Gauge

TURNS = Counter("hermes_turns", "Turns that ended, by status", ["status"])
CALLS = Counter("hermes_tool_calls", "Tool calls that returned, by tool and status", ["tool", "status"])
OPEN_TURNS = Gauge("hermes_open_turns", "Sessions with an open turn or a waiting event on this host")
EXPIRED = Counter("hermes_expired_sessions", "Sessions forgotten after their time to live")
EVENTS = Counter("hermes_events", "Rows offered to this host, by what became of them", ["result"])
AHEAD_EVENTS = Counter("hermes_ahead_events", "Rows that this host read ahead of the batches and their owners took")
EARLY_OUTCOMES = Counter(
    "hermes_early_outcomes", "Outcomes that this host sent before their batch, and the sink confirmed"
)
SNAPSHOTS = Counter("hermes_snapshots", "Snapshots of shards, by what became of them", ["result"])
"""`written`, `failed`, `restored`; `unusable`: damaged or not of this journal, so that an older one had to serve."""

LAG = Gauge("hermes_source_lag", "Records of the Kafka source behind the last commit, of all partitions")


def configure_logging(level: str) -> None:
    """Send this package's logs to stderr, one line each, at `level`."""
    logger = logging.getLogger("hermes_spark")
    logger.setLevel(level)
    # Every refusal under load is one retry and would be one line.
    logging.getLogger("stamina").setLevel("ERROR")
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
        logger.propagate = False


class JsonLines:
    """Appends small JSON objects to a file, each stamped with `at_ms`; for the benchmark and for log collection."""

    def __init__(self, directory: str, name: str) -> None:
        path = Path(directory)
        path.mkdir(parents=True, exist_ok=True)
        self._file = (path / name).open("a", buffering=1, encoding="utf-8")

    def write(self, **fields: Any) -> None:
        """Append one object."""
        self._file.write(json.dumps({"at_ms": time.time_ns() / 1e6, **fields}) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

"""Processes that scripts leave running: what is known of one, whether it still lives, and its end within a bound.

Standard library only, because the scripts that start servers run before any environment is made.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

STOP_TIMEOUT_S = 15.0
KILL_TIMEOUT_S = 5.0


def read_facts(path: Path) -> dict[str, Any] | None:
    """What was written of a running process (`pid` and `started` among it); None if none runs.

    A file left by a dead one is removed.
    """
    if not path.exists():
        return None
    facts: dict[str, Any] = json.loads(path.read_text())
    if facts["started"] is None or started(facts["pid"]) != facts["started"]:
        path.unlink()
        return None
    return facts


def started(pid: int) -> str | None:
    """When a process started, in the kernel's ticks, so that a reused pid is not taken for it; None: gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else fields[19]


def end(pid: int) -> None:
    """SIGTERM to a process; SIGKILL to whatever of its process group is left when it has gone or its time is up."""
    try:
        os.kill(pid, signal.SIGTERM)
        _await_end(pid, STOP_TIMEOUT_S)
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    _await_end(pid, KILL_TIMEOUT_S)


def _await_end(pid: int, patience: float) -> None:
    deadline = time.monotonic() + patience
    while started(pid) is not None and time.monotonic() < deadline:
        time.sleep(0.05)

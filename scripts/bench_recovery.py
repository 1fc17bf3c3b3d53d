"""`scripts/bench --recovery`: how long no turn ends after SIGKILL of the agent host, and of everything.

On real parts, with messages coming all the time. Counted until the first outcome that is durable again: from the kill of a
host, which the driver replaces; and from the new start, JVM and all, after everything was killed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hermes_spark.tools.demo.messages import one_tool_event
from jobs import Job, kill_process
from stack import Stack, StackError

SESSIONS = 100
PATIENCE_S = 90.0
WARM_S = 5.0
"""Of turns before each kill."""


def run(arguments: argparse.Namespace, stack: Stack, triton: str, tool_delay_ms: int) -> dict[str, Any]:
    """Kill as often as was asked for; the line to print."""
    tools = stack.tools("--delay-ms", str(tool_delay_ms))
    turn_log = stack.directory / "log"
    job = Job(stack, triton, tools, **{"telemetry.turn_log": turn_log, "sink.publish_interval_ms": 1000})
    host_s, everything_s = [], []
    with _messages(job, arguments.rate[0]):
        job.start()
        for _ in range(arguments.recovery):
            _await_turn(job, turn_log, time.time())
            time.sleep(WARM_S)
            killed_at = time.time()
            kill_process(job.host_pids()[-1])
            host_s.append(_await_turn(job, turn_log, killed_at))
            time.sleep(WARM_S)
            job.kill()
            started_at = time.time()
            job.start()
            everything_s.append(_await_turn(job, turn_log, started_at))
    assert job.part is not None
    job.part.signal(signal.SIGKILL)
    return {"mode": "recovery", "rate": arguments.rate[0], "after_host_s": host_s, "after_everything_s": everything_s}


def _await_turn(job: Job, turn_log: Path, since_s: float) -> float:
    """Seconds from `since_s` to the first turn that ended later."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if job.part is not None and not job.part.alive:
            raise StackError(f"the job ended\n{job.part.tail()}")
        later = [at_s for at_s in _ends(turn_log) if at_s > since_s]
        if later:
            return round(min(later) - since_s, 2)
        time.sleep(0.05)
    raise StackError(f"no turn ended within {PATIENCE_S:g} s")


def _ends(turn_log: Path) -> Iterator[float]:
    for file in turn_log.glob("turns-*.jsonl"):
        for line in file.read_text().splitlines():
            if line.endswith("}"):
                yield json.loads(line)["at_ms"] / 1000


@contextmanager
def _messages(job: Job, rate: int) -> Iterator[None]:
    """Drop a file with a second's messages every second, until the end of the block."""
    stop, numbers = threading.Event(), itertools.count()

    def drop() -> None:
        while not stop.wait(1.0):
            job.drop(one_tool_event(number, SESSIONS) for number in itertools.islice(numbers, rate))

    thread = threading.Thread(target=drop, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()

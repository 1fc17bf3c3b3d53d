"""Drives the streaming job as a process: drops event files, starts, kills and restarts the job, reads its sinks."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import psutil
import yaml

from hermes_spark.streaming.publish import read_table
from stack import ROOT, Part, Stack, StackError, ToolService

PATIENCE_S = 150.0


class Job:
    """One checkpoint, and the job that runs on it."""

    def __init__(self, stack: Stack, triton: str, tools: ToolService, **settings: object) -> None:
        self.stack = stack
        self.directory = stack.directory
        self.events = self.directory / "events"
        self.events.mkdir(exist_ok=True)
        self._files = itertools.count()
        self._settings: dict[str, object] = {
            "checkpoint": self.directory / "checkpoint",
            "source.kind": "files",
            "source.path": self.events,
            "model.url": triton,
            "tools.base_url": tools.url,
            "tools.file": tools_never_sent_again(self.directory),
            "sink.path": self.directory / "out",
            "sink.publish_interval_ms": 200,
            "state.local_path": self.directory / "rocksdb",
            "spark.ui.enabled": False,
            **settings,
        }
        self.part: Part | None = None
        self.master = "local[3]"
        self.options: list[str] = []
        """Of dgx-spark-submit."""

    def start(self, environment: dict[str, str] | None = None, **settings: object) -> Part:
        self.part = self.stack.job({**self._settings, **settings}, self.master, self.options, **(environment or {}))
        return self.part

    def finish(self) -> None:
        """Start it (again) and let it end by itself when it is idle."""
        part = self.start(**{"stop.idle_s": 3})
        status = part.wait(PATIENCE_S)
        assert status == 0, part.tail(60)

    def kill(self) -> None:
        """SIGKILL to everything of the job, as a machine that loses power would."""
        assert self.part is not None
        for pid in self.processes():
            kill_process(pid)
        self.part.signal(signal.SIGKILL)
        self.part.wait(10)

    def processes(self) -> list[int]:
        """The job's processes, children first to last."""
        assert self.part is not None
        return [child.pid for child in psutil.Process(self.part.process.pid).children(recursive=True)]

    def driver_pid(self) -> int:
        """The Python driver: the process whose program is the job itself."""
        assert self.part is not None
        return find_process(
            self.part, "the Python driver", lambda line: line[1:2] != [] and line[1].endswith("stream_agent.py")
        )

    def jvm_pid(self) -> int:
        """The driver's JVM, which is spark-submit."""
        assert self.part is not None
        return jvm_pid(self.part)

    def host_pids(self) -> list[int]:
        """Pids of all hosts that ever registered, in that order."""
        assert self.part is not None
        return [int(pid) for pid in re.findall(r"is up: pid (\d+)", self.part.log.read_text())]

    def drop(self, events: Iterable[dict[str, Any] | bytes]) -> int:
        """Write events as one file; returns how many."""
        lines = [event if isinstance(event, bytes) else msgspec.json.encode(event) for event in events]
        name = f"{next(self._files):05d}.jsonl"
        (self.events / f"_{name}").write_bytes(b"\n".join(lines) + b"\n")
        (self.events / f"_{name}").rename(self.events / name)
        return len(lines)

    def rows(self, table: str = "outcomes") -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = read_table(self.directory / "out", table).to_pylist()
        return rows

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition while the job runs."""
        assert self.part is not None
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert self.part.alive, f"the job ended while waiting for {what}\n{self.part.tail(60)}"
            assert time.monotonic() < deadline, f"waited in vain for {what}\n{self.part.tail(60)}"
            time.sleep(0.1)


def question(session: str, text: str = "查一下客户张三的订单状态", **fields: Any) -> dict[str, Any]:
    return {"session_id": session, "messages": [{"role": "user", "content": text}], **fields}


def tools_never_sent_again(directory: Path) -> Path:
    """The shipped tools, all with the policy `unknown`: the service's counters then show every call that is sent twice."""
    file = directory / "tools.yaml"
    document = yaml.safe_load((ROOT / "conf" / "tools.yaml").read_text(encoding="utf-8"))
    for tool in document["tools"]:
        tool["policy"] = "unknown"
    file.write_text(yaml.safe_dump(document, allow_unicode=True), encoding="utf-8")
    return file


def jvm_pid(job: Part) -> int:
    """The pid of a job's driver JVM, which is spark-submit."""
    return find_process(job, "the driver's JVM", lambda line: "org.apache.spark.deploy.SparkSubmit" in line)


def find_process(job: Part, what: str, is_it: Callable[[list[str]], bool]) -> int:
    """The pid of the job's process whose command line is told by `is_it`. Raises `StackError` when there is none."""
    for child in psutil.Process(job.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if is_it(child.cmdline()):
                return child.pid
    raise StackError(f"{what} is not running\n{job.tail()}")


def executed_more_than_once(tools: ToolService) -> dict[str, int]:
    return {call: count for call, count in tools.counters()["executions"].items() if count > 1}


def kill_process(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def one_each(rows: list[dict[str, Any]]) -> bool:
    """Whether no turn has two outcomes."""
    turns = [row["turn_id"] for row in rows]
    return len(turns) == len(set(turns))

"""A Spark standalone cluster on this machine: master and workers as processes of their own, from the Spark of `SPARK_HOME`.

For the tests, the crash matrix and the benchmark. Every executor is a process below its worker. All ends with the `Stack`.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyspark

from stack import Part, Stack, StackError, free_ports

LOCALHOST = "127.0.0.1"
START_S = 60.0
POLL_S = 0.1
DAEMON_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@dataclass
class Worker:
    """A worker, and the executors below it."""

    part: Part

    def executors(self) -> list[psutil.Process]:
        """Its executors, oldest first."""
        with contextlib.suppress(psutil.NoSuchProcess):
            below = psutil.Process(self.part.process.pid).children(recursive=True)
            return [process for process in below if "CoarseGrainedExecutorBackend" in _command_line(process)]
        return []


class SparkCluster:
    """A master and the workers that were started; `url` is what `--master` takes."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._spark = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
        port, self._ui_port = free_ports(2)
        self.url = f"spark://{LOCALHOST}:{port}"
        where = ["--host", LOCALHOST, "--port", str(port), "--webui-port", str(self._ui_port)]
        self._master = self._spawn("spark-master", "org.apache.spark.deploy.master.Master", *where)
        self.workers: list[Worker] = []

    def add_workers(self, count: int, cores: int = 4, memory: str = "1g") -> list[Worker]:
        """Start workers and return once the master knows them. `cores` are slots; this machine may have fewer."""
        known = self._alive_workers()
        added = []
        for number in range(len(self.workers) + 1, len(self.workers) + 1 + count):
            directory = self._stack.directory / f"spark-work-{number}"
            what = ["--host", LOCALHOST, "--cores", str(cores), "--memory", memory, "--work-dir", str(directory)]
            what += ["--webui-port", "0", self.url]
            added.append(Worker(self._spawn(f"spark-worker-{number}", "org.apache.spark.deploy.worker.Worker", *what)))
        self.workers += added
        self._until(added[-1].part, lambda: self._alive_workers() >= known + count)
        return added

    def _alive_workers(self) -> int:
        self._until(self._master, lambda: self._state() is not None)
        return sum(worker["state"] == "ALIVE" for worker in (self._state() or {})["workers"])

    def _state(self) -> dict[str, Any] | None:
        url = f"http://{LOCALHOST}:{self._ui_port}/json/"
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
            state: dict[str, Any] = json.load(answer)
            return state
        return None

    def _spawn(self, name: str, daemon: str, *arguments: str) -> Part:
        command = [str(self._spark / "bin" / "spark-class"), daemon, *arguments]
        return self._stack.spawn(
            name,
            command,
            SPARK_HOME=str(self._spark),
            SPARK_LOCAL_IP=LOCALHOST,
            SPARK_DAEMON_MEMORY="256m",
            SPARK_DAEMON_JAVA_OPTS=DAEMON_JAVA,
        )

    def _until(self, part: Part, condition: Any) -> None:
        deadline = time.monotonic() + START_S
        while not condition():
            if not part.alive or time.monotonic() > deadline:
                raise StackError(f"{part.name} did not come up; its log is {part.log}\n{part.tail()}")
            time.sleep(POLL_S)


def _command_line(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""

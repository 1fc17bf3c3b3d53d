"""The part of Spark that a driver needs: micro-batches with their two logs, frames, tasks, and host tasks."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from hermes_spark.errors import HermesError
from hermes_spark.host.wire import HostExit
from hermes_spark.streaming.rows import INTAKE_SCHEMA
from simulation.loop import SimLoop
from simulation.objects import Objects
from simulation.processes import Process
from simulation.workload import Workload

ATTEMPTS = 4
"""Attempts of a task before its job fails."""
SLOW_S = 60.0
"""How long a very slow disk stays so: enough to open shards meanwhile. For ever, and a write of four seconds takes eighty."""


class SparkFailed(Exception):
    """A query that ended with an error of Spark's own."""


class MicroBatches:
    """Runs batches as Spark does: offsets first, then the batch, then the commit; whoever is second in a log fails."""

    def __init__(self, checkpoint: Objects, workload: Workload, spark: SimSpark) -> None:
        self._log, self._workload, self._spark = checkpoint, workload, spark

    def run(self, orchestrator: Callable[[Any, int], None], sleep: Callable[[float], None]) -> None:
        offsets = [int(key.split("/")[1]) for key in self._log.list("offsets")]
        batch = max(offsets, default=0)
        while True:
            if self._log.get(f"commits/{batch}") is not None:
                batch += 1
                continue
            if self._log.get(f"offsets/{batch}") is None:
                self._plan(batch)
            orchestrator(self._frame(batch), batch)
            if not self._log.put_if_absent(f"commits/{batch}", b"v1\n{}"):
                raise SparkFailed(f"somebody else has committed batch {batch}")
            batch += 1
            sleep(0.3)

    def _plan(self, batch: int) -> None:
        lines = ["v1", "{}", self._workload.end(), json.dumps({"tick": batch})]
        if not self._log.put_if_absent(f"offsets/{batch}", "\n".join(lines).encode()):
            raise SparkFailed(f"somebody else has planned batch {batch}")

    def _frame(self, batch: int) -> Frame:
        return Frame(self._spark, self._workload.rows(self._events(batch - 1), self._events(batch) or ""))

    def _events(self, batch: int) -> str | None:
        data = self._log.get(f"offsets/{batch}")
        return None if data is None else data.decode().splitlines()[2]


class Frame:
    """A DataFrame of intake rows, and what comes of `coalesce` and `mapInArrow`."""

    def __init__(self, spark: SimSpark, rows: list[tuple[str, int, int, bytes]]) -> None:
        self._spark, self._rows = spark, rows
        self._task: Callable[..., Iterator[pa.RecordBatch]] | None = None
        self._tasks = 1
        self.sparkSession = SimpleNamespace(sparkContext=SimpleNamespace(setJobDescription=lambda text: None))

    def coalesce(self, tasks: int) -> Frame:
        self._tasks = tasks
        return self

    def mapInArrow(self, task: Callable[..., Iterator[pa.RecordBatch]], schema: str) -> Frame:
        self._task = task
        return self

    def collect(self) -> list[Any]:
        if self._task is None:
            return self._rows
        return self._spark.job(self._task, self._splits())

    def _splits(self) -> list[list[tuple[str, int, int, bytes]]]:
        """Whole partitions, spread over the tasks anew each time."""
        rng = self._spark.rng
        splits: list[list[tuple[str, int, int, bytes]]] = [[] for _ in range(self._tasks)]
        partitions = sorted({row[0] for row in self._rows})
        if not self._spark.keeps_order:
            rng.shuffle(partitions)
        for partition in partitions:
            rng.choice(splits).extend(row for row in self._rows if row[0] == partition)
        return [split for split in splits if split]


class SimSpark:
    """Executors: runs tasks and hosts in processes of their own."""

    def __init__(self, loop: SimLoop, rng: random.Random, *, keeps_order: bool) -> None:
        self.loop, self.rng, self.keeps_order = loop, rng, keeps_order
        self._number = 0
        self.doomed_tasks = 0
        """So many tasks to come are lost while they run; half of them live on unseen."""
        self.lost_tasks = 0
        self.skew_ms = 3000
        """How far the clock of a process may be off."""
        self.slow_hosts = 0
        """So many hosts to come have a very slow disk, for a while."""

    def process(self, kind: str) -> Process:
        self._number += 1
        process = self.loop.process(f"{kind}-{self._number}")
        process.skew_ms = self.rng.randint(-self.skew_ms, self.skew_ms)
        process.slowness = self.rng.choice((0.2, 1.0, 1.0, 5.0))
        if kind == "host" and self.slow_hosts:
            self.slow_hosts -= 1
            usual, process.slowness = process.slowness, 20.0
            self.loop.call_later(SLOW_S, setattr, process, "slowness", usual, context=self.loop.root.context())
        return process

    def job(self, task: Callable[..., Iterator[pa.RecordBatch]], splits: list[Any]) -> list[Any]:
        """One task per split; what all of them yielded."""
        thread = self.loop.thread
        assert thread is not None
        results = [self.loop.create_future() for _ in splits]
        for split, result in zip(splits, results, strict=True):
            self._attempt(task, split, result, 1)
        rows = []
        for result in results:
            thread.wait(result)
            rows += result.result()
        return rows

    def _attempt(self, task: Any, split: Any, result: Any, number: int) -> None:
        process = self.process("task")

        def again(error: BaseException) -> None:
            if not result.done() and number < ATTEMPTS:
                self._attempt(task, split, result, number + 1)
            elif not result.done():
                result.set_exception(error)

        def body() -> None:
            columns = [
                pa.array(column, field.type)
                for column, field in zip(zip(*split, strict=True), INTAKE_SCHEMA, strict=True)
            ]
            try:
                batches = list(task(iter([pa.record_batch(columns, schema=INTAKE_SCHEMA)])))
            except HermesError as exc:
                again(exc)
            else:
                if not result.done():
                    result.set_result([SimpleNamespace(**row) for batch in batches for row in batch.to_pylist()])
            self.loop.kill(process)

        process.thread(body)
        if self.doomed_tasks:
            self.doomed_tasks -= 1
            self.lost_tasks += 1
            self._lose(process, lambda: again(SparkFailed("the task was lost")))

    def _lose(self, process: Process, again: Callable[[], None]) -> None:
        lives_on = self.rng.random() < 0.5

        def lose() -> None:
            if lives_on:
                process.paused = True
                self.loop.call_later(self.rng.uniform(0.5, 20), self.resume, process, context=self.loop.root.context())
            else:
                self.loop.kill(process)
            again()

        self.loop.call_later(self.rng.uniform(0.001, 0.05), lose, context=self.loop.root.context())

    def resume(self, process: Process) -> None:
        process.paused = False


class HostTask:
    """One launched host, as its launcher sees it."""

    def __init__(self, driver: Process, index: int, ended: Callable[[HostExit], None]) -> None:
        self.driver, self.index, self._ended = driver, index, ended
        self.process: Process | None = None
        self.reported = False

    def report(self, exit_: HostExit) -> None:
        """Tell the driver, once, that the host is gone; true or not."""
        if not self.reported and self.driver.alive:
            self.reported = True
            self.driver.thread(self._ended, exit_)


class SimLauncher:
    """`streaming.launcher.HostLauncher`: hosts as processes."""

    def __init__(
        self, driver: Process, start: Callable[[HostTask, bytes], None], stop: Callable[[HostTask], None]
    ) -> None:
        self._driver, self._start, self._stop = driver, start, stop
        self.hosts: list[HostTask] = []

    def launch(self, index: int, payload: bytes, ended: Callable[[HostExit], None]) -> None:
        host = HostTask(self._driver, index, ended)
        self.hosts.append(host)
        self._start(host, payload)

    def end(self, index: int) -> None:
        for host in self.hosts:
            if host.index == index:
                self._stop(host)

    def kill(self) -> None:
        for host in self.hosts:
            self._stop(host)

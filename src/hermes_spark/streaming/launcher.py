"""Starts agent hosts as Spark tasks: one job of one task per host, each submitted by a thread of its own.

One job per host, because a job dies as a whole: with one job of N tasks the death of one host would kill the healthy ones.
Each belongs to a job group of its own, so that stopping the query does not cancel them.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol

from py4j.protocol import Py4JError
from pyspark import InheritableThread, SparkContext
from pyspark.errors import PySparkException
from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests

from hermes_spark.errors import HostError
from hermes_spark.host.wire import HostExit, pack, unpack

KILL_S = 5.0
"""Spark kills a task that is cancelled 1.2 s + `spark.python.task.killTimeout` later."""


class HostLauncher(Protocol):
    """How hosts come to life. Spark tasks today; the fleet knows no more than this."""

    def launch(self, index: int, payload: bytes, ended: Callable[[HostExit], None]) -> None:
        """Start host `index`; returns at once. `ended` is called once, on another thread, when it is gone."""
        ...

    def end(self, index: int) -> None:
        """End host `index` without asking it; it may stand still."""
        ...

    def kill(self) -> None:
        """End all hosts that still run, without asking them."""
        ...


class SparkHostLauncher:
    """Hosts as Spark tasks of a running context."""

    def __init__(self, context: SparkContext, run_id: str, entry: str, cpus: int = 0) -> None:
        """`entry` names the function that is a host, as `module:function`.

        It is named, not passed: functions are pickled by value with a copy of their module's globals. `cpus`: cores that each
        host's task asks for; 0 where Spark knows no such request (`local[N]`).
        """
        self._context = context
        self._entry = entry
        self._cpus = cpus
        self._group = f"hermes-hosts-{run_id}"
        self._threads: dict[int, InheritableThread] = {}
        """By host, the one that submitted it last."""

    def launch(self, index: int, payload: bytes, ended: Callable[[HostExit], None]) -> None:
        """Submit the job of one host. See `HostLauncher`."""
        thread = InheritableThread(target=self._run, args=(index, payload, ended), daemon=True, name=f"host-{index}")
        self._threads[index] = thread
        thread.start()

    def end(self, index: int) -> None:
        """Cancel its job group: Spark kills what has not ended 1.2 s + `spark.python.task.killTimeout` later."""
        self._context.cancelJobGroup(f"{self._group}-{index}")

    def kill(self) -> None:
        """`end` for all of them, those that wait for an executor too; returns when they have ended, within `KILL_S`."""
        threads = dict(self._threads)
        for index in threads:
            self.end(index)
        deadline = time.monotonic() + KILL_S
        for thread in threads.values():
            thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self, index: int, payload: bytes, ended: Callable[[HostExit], None]) -> None:
        context = self._context
        context.setJobGroup(f"{self._group}-{index}", f"hermes agent host {index} (runs until the job ends)")
        context.setLocalProperty("callSite.short", f"agent host {index}")
        context.setLocalProperty("callSite.long", f"hermes-spark agent host {index}: owns shards and runs their turns")
        exit_ = HostExit("HostError", "the host's task ended without a result")
        try:
            rdd = context.parallelize([payload], 1).setName(f"agent host {index}")
            if self._cpus:
                rdd = rdd.withResources(ResourceProfileBuilder().require(TaskResourceRequests().cpus(self._cpus)).build)
            exit_ = unpack(rdd.mapPartitions(partial(_host_task, self._entry)).collect()[0], HostExit)
        except (Py4JError, PySparkException, HostError, OSError, EOFError, LookupError) as exc:
            exit_ = HostExit("HostError", _cause(str(exc)))
        finally:
            ended(exit_)


def _host_task(entry: str, payloads: Iterator[bytes]) -> Iterator[bytes]:
    module, _, name = entry.partition(":")
    run: Callable[[bytes], HostExit] = getattr(importlib.import_module(module), name)
    for payload in payloads:
        yield pack(run(payload))


def _cause(text: str) -> str:
    """The telling line of a Py4J error: what Spark says about the task, without either stack."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if "Python worker exited" in line or "Error: " in line or "Lost task" in line]
    return (telling or lines or ["the host's task failed"])[0][:500]

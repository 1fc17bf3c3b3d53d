"""The executors of a cluster: waiting for them, and how their cores are divided between agent hosts and batches.

On a cluster each host asks for more than half of an executor's cores, so that no two of them land on one executor. Nobody
else wants what it does not use of them: hosts and hand-off tasks are all that this application runs.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Sequence

import msgspec
from pyspark import SparkContext

from hermes_spark.errors import StartError
from hermes_spark.settings import HostSettings
from hermes_spark.streaming.preflight import Slots, divide_slots

log = logging.getLogger(__name__)

POLL_S = 0.2
SETTLED_S = 3.0
"""Where nothing says how many executors will come, they are all there when none has come for so long."""


class Executor(msgspec.Struct, frozen=True):
    """An executor that has registered."""

    name: str
    cores: int


def divide(context: SparkContext, wanted_hosts: int, settings: HostSettings) -> Slots:
    """How hosts and batches share this Spark; on a cluster its executors are waited for, `start_timeout_s` at most.

    Raises `StartError` that says what is missing when not even one host and a batch have room.
    """
    if is_local(context.master):
        return divide_slots(context.defaultParallelism, wanted_hosts)
    conf = context.getConf()
    task_cpus = int(conf.get("spark.task.cpus", "1"))
    expected = _expected(conf.get("spark.cores.max", ""), conf.get("spark.executor.instances", ""))

    def enough(there: Sequence[Executor], quiet_s: float) -> bool:
        if wanted_hosts:
            slots = share(there, wanted_hosts, task_cpus)
            return slots is not None and slots.at_first == wanted_hosts
        return expected(there) if expected else bool(there) and quiet_s > SETTLED_S

    wait = Wait(settings.start_timeout_s, settings.executors_wait_s)
    there = await_executors(lambda: registered(context), enough, wait)
    slots = share(there, wanted_hosts, task_cpus)
    if slots is None:
        raise StartError(_missing(there, wanted_hosts, settings.start_timeout_s))
    if slots.at_first < slots.hosts:
        log.warning(
            "%d executors are there, with room for %d of %d hosts; the others start when more executors join",
            len(there), slots.at_first, slots.hosts,
        )  # fmt: skip
    return slots


def is_local(master: str) -> bool:
    """Whether all tasks run in the driver's own process; `local-cluster[...]` is none of these."""
    return re.fullmatch(r"local(\[.*\])?", master) is not None


def registered(context: SparkContext) -> list[Executor]:
    """The executors that are alive now, without the driver."""
    listed = context._jsc.sc().statusStore().executorList(True)  # noqa: FBT003, SLF001 - pyspark has no other way to ask
    summaries = [listed.apply(number) for number in range(listed.size())]
    return [Executor(str(each.id()), int(each.totalCores())) for each in summaries if each.id() != "driver"]


class Wait(msgspec.Struct, frozen=True):
    """Bounds of waiting for executors."""

    most_s: float
    another_s: float
    """How long, while some are there, another one is waited for."""


def await_executors(
    look: Callable[[], list[Executor]],
    enough: Callable[[Sequence[Executor], float], bool],
    wait: Wait,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], object] = time.sleep,
) -> list[Executor]:
    """Those that are there once they are `enough`, given for how long (s) none has come or gone, or when the wait is over."""
    began = changed = clock()
    there = look()
    while not enough(there, clock() - changed):
        if clock() - began > wait.most_s or (there and clock() - changed > wait.another_s):
            break
        pause(POLL_S)
        before, there = there, look()
        changed = changed if there == before else clock()
    return there


def share(executors: Sequence[Executor], wanted_hosts: int, task_cpus: int) -> Slots | None:
    """One host on each executor that has the cores for it, as far as a slot is left for batches; None: no room at all.

    `wanted_hosts` 0 means as many as there is room for.
    """
    if not executors:
        return None
    cpus = max(executor.cores for executor in executors) // 2 + 1
    roomy = [executor for executor in executors if executor.cores >= cpus]
    most = min(wanted_hosts, len(roomy)) if wanted_hosts else len(roomy)
    for hosts in range(most, 0, -1):
        under_hosts = {executor.name for executor in roomy[:hosts]}
        left = [executor.cores - cpus * (executor.name in under_hosts) for executor in executors]
        tasks = sum(cores // task_cpus for cores in left)
        if tasks:
            return Slots(wanted_hosts or hosts, tasks, at_first=hosts, cpus=cpus)
        if wanted_hosts:
            return None
    return None


def _expected(most_cores: str, instances: str) -> Callable[[Sequence[Executor]], bool] | None:
    if most_cores:
        return lambda there: sum(executor.cores for executor in there) >= int(most_cores)
    if instances:
        return lambda there: len(there) >= int(instances)
    return None


def _missing(executors: Sequence[Executor], wanted_hosts: int, wait_s: float) -> str:
    if not executors:
        return (
            f"no executor has registered within {wait_s:g} s: no worker of the cluster has the free cores and the memory that "
            "spark.executor.cores and spark.executor.memory ask for; look at the cluster's page, or raise "
            "spark.hermes.host.start_timeout_s"
        )
    cores = ", ".join(str(executor.cores) for executor in executors)
    cpus = max(executor.cores for executor in executors) // 2 + 1
    return (
        f"{wanted_hosts or 1} agent hosts leave no slot for micro-batches: each takes {cpus} cores of an executor for good, "
        f"more than half of it, and the executors have {cores}; give executors 3 cores or more (spark.executor.cores), or "
        "allow one executor more than there are hosts"
    )

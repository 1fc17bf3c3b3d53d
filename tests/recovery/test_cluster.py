"""The job on a real standalone cluster: what of it is killed, and what joins it, changes nothing in what comes out."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

import psutil
import pytest

from chaos_parts.counts import Counts, count
from jobs import Job, kill_process, question
from spark_cluster import SparkCluster
from stack import Stack, ToolService, running_stack

pytestmark = [pytest.mark.spark, pytest.mark.triton, pytest.mark.timeout(420)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """A master and one worker; tests add others and end them."""
    with running_stack(tmp_path_factory.mktemp("cluster")) as stack:
        cluster = SparkCluster(stack)
        cluster.add_workers(1)
        yield cluster


class ClusterJob(Job):
    """A job of two hosts on the cluster, and what it was given."""

    def __init__(
        self, cluster: SparkCluster, stack: Stack, triton: str, tools: ToolService, **settings: object
    ) -> None:
        small = {"hosts": 2, "spark.executor.memory": "600m", "host.restart_timeout_s": 5, **settings}
        super().__init__(stack, triton, tools, **small)
        self.master = cluster.url
        self.given: set[tuple[str, int]] = set()

    def ask(self, number: int = 24) -> None:
        """Drop questions of twelve sessions, each of which calls a tool."""
        self.drop(question(f"s{n % 12}", f"What is the status of order A-100{n % 6}?") for n in range(number))
        name = max(path.name for path in self.events.iterdir())
        self.given |= {(name, line) for line in range(number)}

    def answered(self) -> bool:
        return len(self.rows()) == len(self.given)

    def counts(self, tools: ToolService) -> Counts:
        return count(self.given, self.directory / "out", tools.counters()["executions"], None)


def right(counts: Counts) -> bool:
    return counts.right and counts.outcomes == counts.events


@pytest.fixture
def slow_tools(stack: Stack) -> ToolService:
    """Calls are under way at any moment."""
    return stack.tools("--delay-ms", "300")


def test_a_late_executor_gets_shards_and_a_dead_one_and_a_dead_worker_lose_nothing(
    cluster: SparkCluster, stack: Stack, triton: str, slow_tools: ToolService
) -> None:
    job = ClusterJob(cluster, stack, triton, slow_tools, **{"host.executors_wait_s": 2})
    job.ask()
    job.start()
    job.until(lambda: len(job.rows()) >= 1, "the first outcomes, of one host")
    assert len(job.host_pids()) == 1
    assert "room for 1 of 2 hosts" in job.part.log.read_text()

    (late,) = cluster.add_workers(1)
    job.until(lambda: len(job.host_pids()) == 2, "a host on the executor that joined")
    job.until(lambda: "gives up 8 shards" in job.part.log.read_text(), "shards on their way to it")
    job.ask()
    job.until(lambda: len(slow_tools.counters()["executions"]) >= 30, "calls after the move")

    late.executors()[-1].kill()
    job.until(lambda: len(job.host_pids()) == 3, "a host on the executor that came instead")
    job.ask()
    job.until(lambda: len(slow_tools.counters()["executions"]) >= 54, "calls after the executor's death")

    kill_process(late.part.process.pid)
    job.ask()
    job.until(job.answered, "all outcomes, of the host that is left")
    os.kill(job.part.process.pid, signal.SIGTERM)
    assert job.part.wait(90) == 0, job.part.tail(60)
    assert right(job.counts(slow_tools)), job.counts(slow_tools)


def test_a_killed_driver_is_started_by_hand_and_by_its_supervisor(
    cluster: SparkCluster, stack: Stack, triton: str, slow_tools: ToolService
) -> None:
    job = ClusterJob(cluster, stack, triton, slow_tools, **{"hosts": 1})
    job.ask()
    job.start()
    job.until(lambda: len(slow_tools.counters()["executions"]) >= 5, "some calls")
    hosts = [psutil.Process(pid) for pid in job.host_pids()]
    kill_process(job.driver_pid())
    assert job.part.wait(60) == 137
    assert all(gone(host) for host in hosts)

    job.options = ["--supervise"]
    job.ask()
    job.start()
    job.until(lambda: len(slow_tools.counters()["executions"]) >= 30, "calls of the second life")
    kill_process(job.driver_pid())
    job.ask()
    job.until(job.answered, "all outcomes, of the third life")
    assert "it is started again in 1 s" in job.part.log.read_text()
    os.kill(job.part.process.pid, signal.SIGTERM)
    assert job.part.wait(90) == 0, job.part.tail(60)
    assert right(job.counts(slow_tools)), job.counts(slow_tools)


def gone(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
        process.wait(15)
    return not process.is_running()


def test_what_a_cluster_has_too_little_of_is_said(
    cluster: SparkCluster, stack: Stack, triton: str, tools: ToolService
) -> None:
    job = ClusterJob(cluster, stack, triton, tools, **{"hosts": 1, "spark.executor.cores": 1, "spark.cores.max": 1})
    part = job.start(**{"host.executors_wait_s": 4})
    assert part.wait(90) == 2
    assert "1 agent hosts leave no slot for micro-batches" in part.tail()

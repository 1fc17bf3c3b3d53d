"""The job on a real standalone cluster: what of it is killed, and what joins it, changes nothing in what comes out."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from certificates import Authority
from chaos_parts.counts import Counts, count
from jobs import Job, kill_process, question
from spark_cluster import SparkCluster, Worker
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

    def __init__(self, cluster: SparkCluster, stack: Stack, triton: str, tools: ToolService) -> None:
        small = {"hosts": 2, "spark.executor.memory": "600m"}
        waits = {"host.executors_wait_s": 2, "host.restart_timeout_s": 3, "tools.timeout_s": 100}
        authority = Authority(stack.directory / "certificates")
        certificate, key = authority.sign("hosts", "DNS:hosts.example")
        tls = {
            "host.tls_certificate_file": certificate,
            "host.tls_key_file": key,
            "host.tls_ca_file": authority.ca_file,
            "host.tls_server_name": "hosts.example",
        }
        super().__init__(stack, triton, tools, **small, **waits, **tls)
        self.tools = tools
        self.master = cluster.url
        self.given: set[tuple[str, int]] = set()

    def ask(self, questions: list[dict[str, object]]) -> None:
        self.drop(questions)
        name = max(path.name for path in self.events.iterdir())
        self.given |= {(name, line) for line in range(len(questions))}

    def ask_and_see_calls(self, what: str, number: int = 24) -> None:
        """Ask questions of twelve sessions; return when half of the tool calls that they lead to have been made."""
        before = self.tools.counters()["total"]
        self.ask([question(f"s{n % 12}", f"What is the status of order A-100{n % 6}?") for n in range(number)])
        self.until(lambda: self.tools.counters()["total"] >= before + number // 2, what)

    def answered(self) -> bool:
        return len(self.rows()) == len(self.given)

    def log(self) -> str:
        return self.part.log.read_text()

    def counts(self) -> Counts:
        return count(self.given, self.directory / "out", self.tools.counters()["executions"], None)


@pytest.fixture
def slow_tools(stack: Stack) -> ToolService:
    """Calls are under way at any moment."""
    return stack.tools("--delay-ms", "300")


def test_whatever_is_killed_on_a_cluster_and_whatever_joins_it_nothing_is_lost(
    cluster: SparkCluster, stack: Stack, triton: str, slow_tools: ToolService
) -> None:
    job = ClusterJob(cluster, stack, triton, slow_tools)
    job.options = ["--supervise"]
    job.start()
    an_executor_joins(job, cluster)
    executor_and_worker_die(job, cluster.workers[-1])
    driver_dies_and_its_supervisor_starts_it(job)
    a_second_sigterm_ends_it_and_it_is_started_by_hand(job)

    job.until(job.answered, "all outcomes")
    os.kill(job.part.process.pid, signal.SIGTERM)
    assert job.part.wait(90) == 0, job.part.tail(60)
    counts = job.counts()
    assert counts.right, counts
    assert counts.outcomes == counts.events


def an_executor_joins(job: ClusterJob, cluster: SparkCluster) -> None:
    job.until(lambda: len(job.host_pids()) == 1, "the first host")
    assert "room for 1 of 2 hosts" in job.log()
    cluster.add_workers(1)
    job.ask_and_see_calls("calls while the executor starts")
    job.until(lambda: len(job.host_pids()) == 2, "a host on the executor that joined")
    job.until(lambda: "gives up 8 shards" in job.log(), "shards on their way to it")
    job.ask_and_see_calls("calls after the move")


def executor_and_worker_die(job: ClusterJob, worker: Worker) -> None:
    worker.executors()[-1].kill()
    job.until(lambda: len(job.host_pids()) == 3, "a host on the executor that came instead")
    moves = job.log().count("did not come back")
    kill_process(worker.part.process.pid)
    job.ask_and_see_calls("calls after the worker's death")
    job.until(lambda: job.log().count("did not come back") > moves, "the move of the dead worker's shards")


def driver_dies_and_its_supervisor_starts_it(job: ClusterJob) -> None:
    kill_process(job.driver_pid())
    job.until(lambda: "status 137; it is started again in 1 s (failure 1 of 6" in job.log(), "the supervisor's word")
    job.ask_and_see_calls("calls of the driver's second life")


def a_second_sigterm_ends_it_and_it_is_started_by_hand(job: ClusterJob) -> None:
    job.tools.control(hang=["stuck"])
    job.ask([question("stuck")])
    job.until(lambda: len(job.rows()) == len(job.given) - 1, "the outcomes of all other sessions")
    os.kill(job.part.process.pid, signal.SIGTERM)
    job.until(lambda: "stopping (asked to stop)" in job.log(), "the driver's hearing of it")
    asked = time.monotonic()
    os.kill(job.part.process.pid, signal.SIGTERM)
    assert job.part.wait(20) in (137, 143)
    assert time.monotonic() - asked < 15, "half of what it would wait for the turn that is stuck"
    job.tools.control(release=True)
    job.options = []
    job.start()

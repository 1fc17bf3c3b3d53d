"""Processes killed and stopped."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path

import psutil
import pyspark

from chaos_parts.world import RUN_S, Failed, Scenario, World

GONE_S = 5.0
OVERTAKEN_S = 120.0
"""How long a driver may take to find out that it has been overtaken, and to end."""
COPIES_S = 180.0
"""How long two copies of a host are tried for: on a busy machine the second may come up late every time."""
EXECUTORS = "local-cluster[2,4,700]"
TWO_EXECUTORS: dict[str, object] = {"hosts": 2, "spark.executor.memory": "600m"}
SOON_GIVEN_UP = {
    "spark.network.timeout": "10s",
    "spark.network.timeoutInterval": "2s",
    "spark.executor.heartbeatInterval": "2s",
}
"""What makes Spark take a silent executor for lost within seconds."""


def _in_the_middle(world: World) -> None:
    world.load()
    world.start()
    world.mid_batch()
    world.note_processes()


def _kill(world: World, process: psutil.Process, what: str) -> None:
    process.kill()
    world.hit(f"SIGKILL of {what}")


def kill_host(world: World) -> None:
    """The newest host."""
    _in_the_middle(world)
    _kill(world, world.host(), "an agent host")
    world.drain()


def kill_python_daemon(world: World) -> None:
    """The process that hosts and workers were forked from: none of them may live on as an orphan."""
    _in_the_middle(world)
    host = world.host()
    daemon = _parent(host, "pyspark.daemon")
    _kill(world, daemon, "pyspark's daemon")
    _expect_gone(host)
    world.drain()


def kill_jvm(world: World) -> None:
    """The driver's JVM, which is spark-submit."""
    _in_the_middle(world)
    _kill(world, psutil.Process(world.job.jvm_pid()), "the driver's JVM")
    world.drain()


def kill_python_driver(world: World) -> None:
    """The Python driver, below its JVM."""
    _in_the_middle(world)
    _kill(world, psutil.Process(world.job.driver_pid()), "the Python driver")
    world.drain()


def kill_everything(world: World) -> None:
    """All processes of the job, as when a machine loses power."""
    _in_the_middle(world)
    world.job.kill()
    world.hit("SIGKILL of everything")
    world.drain()


def kill_executor(world: World) -> None:
    """The executor that the newest host runs on; another one is there."""
    _in_the_middle(world)
    host = world.host()
    host_started_s = host.create_time()
    executor = _parent(_parent(host, "pyspark.daemon"), "CoarseGrainedExecutorBackend")
    _kill(world, executor, "an executor")
    _expect_gone(host)
    world.drain()
    _sweep(host_started_s)


def stop_host(world: World) -> None:
    """The newest host stands still until another one owns its shards, and goes on then, if it was not killed meanwhile."""
    _in_the_middle(world)
    host = world.host()
    host.suspend()
    world.hit("SIGSTOP of an agent host")
    try:
        world.until(lambda: world.job.host_pids()[-1] != host.pid, "another host")
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            host.resume()
    world.drain()


def lose_executor_of_living_host(world: World) -> None:
    """An executor stands still until Spark gives it up and another copy of its host is up elsewhere; the first lives on.

    Spark kills the executor ten seconds later, and the first copy ends with it: if the second is later, it is tried again.
    """
    _in_the_middle(world)
    began_s = world.host().create_time()
    while not _second_copy_comes_up(world):
        if time.time() - began_s > COPIES_S:
            raise Failed(f"no second copy of a host was up before the first was gone, for {COPIES_S:g} s")
        world.load(files=2)
    world.hit("a second copy of a living host")
    world.load(files=2)
    world.drain()
    world.start()  # what came while it was ending, for it had been idle, is read now
    world.drain()
    _sweep(began_s)


def _second_copy_comes_up(world: World) -> bool:
    """Whether the newest host lived when another one took its place, its executor standing still."""
    host = world.host()
    executor = _parent(_parent(host, "pyspark.daemon"), "CoarseGrainedExecutorBackend")
    executor.suspend()
    try:
        world.until(lambda: world.job.host_pids()[-1] != host.pid, "a second copy of the host")
        return host.is_running() and host.status() != psutil.STATUS_ZOMBIE
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            executor.resume()


def stop_job_until_overtaken(world: World) -> None:
    """Driver and host stand still, another job takes their place, and they go on: nothing that they do may count any more."""
    _in_the_middle(world)
    first = world.job.part
    assert first is not None
    submitted = psutil.Process(first.process.pid)
    stopped = [submitted, *submitted.children(recursive=True)]
    for process in stopped:
        process.suspend()
    world.hit("SIGSTOP of driver and host")
    try:
        world.start()
        world.until(lambda: len(_drivers(world)) > 1, "another driver")
        executed = world.tools.counters()["total"]  # what the first one had under way has ended since
        world.until(lambda: world.tools.counters()["total"] > executed, "calls of the new owner")
    finally:
        for process in stopped:
            process.resume()
    world.hit("SIGCONT of the overtaken driver and host")
    world.drain()
    status = first.wait(OVERTAKEN_S)
    for process in stopped:
        _expect_gone(process)
    if status == 0:
        raise Failed("the overtaken job ended as if all were well")


def _drivers(world: World) -> list[Path]:
    """One file for each driver that has ever claimed the checkpoint."""
    return list((world.stack.directory / "checkpoint" / "hermes" / "epochs").glob("*.json"))


def _sweep(since_s: float) -> None:
    """Remove the directories that `local-cluster` leaves in Spark's home for the executors of this run."""
    home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    for directory in (home / "work").glob("app-*"):
        if directory.stat().st_mtime >= since_s - RUN_S:
            shutil.rmtree(directory)


def _parent(process: psutil.Process, name: str) -> psutil.Process:
    parent = process.parent()
    if parent is None or not any(name in part for part in parent.cmdline()):
        raise Failed(f"the parent of process {process.pid} is not {name}")
    return parent


def _expect_gone(process: psutil.Process) -> None:
    deadline = time.monotonic() + GONE_S
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > deadline:
            process.kill()
            raise Failed(f"process {process.pid} lived on for {GONE_S:g} s")
        time.sleep(0.05)


KILLS = [
    Scenario("SIGKILL of a host", kill_host),
    Scenario("SIGKILL of the python daemon", kill_python_daemon),
    Scenario("SIGKILL of the driver's JVM", kill_jvm),
    Scenario("SIGKILL of the Python driver", kill_python_driver),
    Scenario("SIGKILL of everything", kill_everything),
    Scenario(
        "SIGKILL of an executor",
        kill_executor,
        master=EXECUTORS,
        settings=TWO_EXECUTORS,
    ),
    Scenario(
        "a second copy of a host",
        lose_executor_of_living_host,
        master=EXECUTORS,
        settings=TWO_EXECUTORS | SOON_GIVEN_UP | {"stop.idle_s": 20},  # the load may be over before the second is up
    ),
    Scenario("a stopped host is replaced and goes on", stop_host, settings={"host.silence_s": 5}),
    Scenario("a stopped driver and host go on after another job took over", stop_job_until_overtaken),
]

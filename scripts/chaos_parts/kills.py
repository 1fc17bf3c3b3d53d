"""Processes killed and stopped."""

from __future__ import annotations

import signal
import time

import psutil

from chaos_parts.world import Failed, Scenario, World

GONE_S = 5.0
EXECUTORS = "local-cluster[2,4,700]"


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
    """The driver's JVM, which is the process that was submitted."""
    _in_the_middle(world)
    assert world.job.part is not None
    _kill(world, psutil.Process(world.job.part.process.pid), "the driver's JVM")
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
    executor = _parent(_parent(host, "pyspark.daemon"), "CoarseGrainedExecutorBackend")
    _kill(world, executor, "an executor")
    _expect_gone(host)
    world.drain()


def stop_host_until_overtaken(world: World) -> None:
    """A host stands still, its driver dies, the next job's host owns the shards, and then the first one goes on."""
    _in_the_middle(world)
    host = world.host()
    host.suspend()
    world.hit("SIGSTOP of an agent host")
    assert world.job.part is not None
    psutil.Process(world.job.part.process.pid).kill()
    world.job.part.wait(10)
    executed = world.tools.counters()["total"]
    world.start()
    world.until(lambda: world.tools.counters()["total"] > executed, "calls of the new owner")
    if not host.is_running():
        raise Failed("the stopped host was ended before it could go on")
    host.send_signal(signal.SIGCONT)
    world.hit("SIGCONT of the overtaken host")
    _expect_gone(host)
    world.drain()


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
            raise Failed(f"agent host {process.pid} lived on for {GONE_S:g} s without the process it was forked from")
        time.sleep(0.05)


KILLS = [
    Scenario("SIGKILL of a host", kill_host),
    Scenario("SIGKILL of the python daemon", kill_python_daemon),
    Scenario("SIGKILL of the driver's JVM", kill_jvm),
    Scenario("SIGKILL of the Python driver", kill_python_driver),
    Scenario("SIGKILL of everything", kill_everything),
    Scenario("SIGKILL of an executor", kill_executor, master=EXECUTORS, settings={"hosts": 2}),
    Scenario("a stopped host goes on after its shards have a new owner", stop_host_until_overtaken),
]

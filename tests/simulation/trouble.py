"""The faults of a world: each happens at its time or place, heals after a while, and must have happened in the end."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from simulation.processes import Killed, Process

if TYPE_CHECKING:
    from simulation.world import World

HOST_POINTS = (
    "journal.before_write",
    "journal.after_write",
    "journal.after_sync",
    "host.before_intent",
    "host.after_intent",
    "host.after_call",
    "host.after_result",
)
DRIVER_POINTS = ("driver.after_handoff", "driver.before_commit", "driver.after_commit", "driver.after_publish")
KINDS = (
    "kill_host",
    "stop_host",
    "second_copy",
    "second_copy",
    "kill_driver",
    "stop_driver",
    "power_cut",
    "cut_wire",
    "bad_wire",
    "disk_full",
    "sink_down",
    "lose_task",
    "point_kill",
    "point_kill",
    "point_stop",
)

RARE = ("early_snapshot",)
"""Kinds that are only chosen by name: no part of the service does such a thing unless it is broken."""


class Fault:
    """One planned fault."""

    def __init__(self, rng: random.Random, kind: str) -> None:
        """`kind` may name the crash point, as in `point_stop:host.after_intent`; otherwise chance chooses one."""
        self.kind, _, place = kind.partition(":")
        self._rng = rng
        self.at_s = rng.uniform(0.8, 6.0)
        self.lasts_s = rng.choice((rng.uniform(0.1, 2), rng.uniform(2, 30)))
        self.point = ""
        self.passes = 0
        if self.kind.startswith("point"):
            self.point = place or rng.choice(HOST_POINTS + DRIVER_POINTS)
            self.passes = rng.randint(1, 3 if self.point in DRIVER_POINTS else 12)
        elif self.kind == "early_snapshot":
            self.point, self.passes = "journal.before_write", rng.randint(1, 8)
        self.left = self.passes
        self.fired = self.healed = False

    def __str__(self) -> str:
        place = f" at {self.point}, pass {self.passes}" if self.point else f" at {self.at_s:.2f} s"
        return f"{self.kind}{place} for {self.lasts_s:.2f} s"


class Troubles:
    """Makes the planned faults happen."""

    def __init__(self, world: World, rng: random.Random, kinds: list[str]) -> None:
        self._world, self._rng = world, rng
        self.faults = [Fault(rng, kind) for kind in kinds]
        for fault in self.faults:
            self._later(fault.at_s - 0.5, world.burst)
            self._later(fault.at_s, self._begin, fault)

    @property
    def over(self) -> bool:
        return all(fault.healed for fault in self.faults)

    def unfired(self) -> list[str]:
        return [str(fault) for fault in self.faults if not fault.fired]

    def pass_point(self, name: str) -> None:
        """A crash point of the package was passed by the process that runs."""
        world = self._world
        process = world.loop.current()
        if not process.alive:
            raise Killed
        armed = [f for f in self.faults if f.point == name and not f.fired and world.loop.time() >= f.at_s]
        for fault in armed[:1]:
            fault.left -= 1
            if fault.left <= 0:
                self._fired(fault, process.name)
                self._strike(fault, process)

    def _strike(self, fault: Fault, process: Process) -> None:
        world = self._world
        if fault.kind == "early_snapshot":
            world.snapshot_early(process)
        if fault.kind != "point_stop":
            world.kill(process)
            self._heal_later(fault, 0.0)
            raise Killed
        self._stop(fault, process)
        if world.loop.thread is not None:
            world.loop.thread.sleep(0)

    def _begin(self, fault: Fault) -> None:
        """Let a fault happen now, or a little later when there is nothing it could happen to."""
        world = self._world
        if fault.point:
            return
        if fault.kind in ("kill_driver", "stop_driver"):
            target = world.newest_driver()
        elif fault.kind in ("kill_host", "stop_host", "second_copy"):
            target = world.some_host()
        else:
            target = world.loop.root
        if target is None:
            self._later(0.1, self._begin, fault)
            return
        getattr(self, f"_{fault.kind}")(fault, target)

    # ------------------------------------------------------------------ kinds

    def _kill_host(self, fault: Fault, host: Process) -> None:
        self._fired(fault, host.name)
        self._world.kill(host)
        self._heal_later(fault, 0.0)

    _kill_driver = _kill_host

    def _stop_host(self, fault: Fault, host: Process) -> None:
        self._fired(fault, host.name)
        self._stop(fault, host)

    _stop_driver = _stop_host

    def _second_copy(self, fault: Fault, host: Process) -> None:
        self._fired(fault, host.name)
        if self._rng.random() < 0.7:
            self._world.spark.slow_hosts = 1  # the old owner goes on while the new one opens its shards
        self._world.report_lost(host)
        self._later(fault.lasts_s, self._orphaned, host)
        self._heal_later(fault, fault.lasts_s)

    def _power_cut(self, fault: Fault, _: Process) -> None:
        self._fired(fault, f"{self._world.cut_power()} bytes lost")
        self._heal_later(fault, 0.0)

    def _cut_wire(self, fault: Fault, _: Process) -> None:
        """Cut the driver off from one host; from another one when the first is gone before anybody has noticed."""
        world = self._world

        def cut() -> None:
            driver, host = world.newest_driver(), world.some_host()
            if not fault.fired and driver is not None and host is not None:
                world.network.cut.add(frozenset((driver.name, host.name)))
            if not fault.fired:
                self._later(3.0, cut)

        cut()
        self._until_seen(fault, lambda: world.network.troubled, fault.lasts_s, world.network.cut.clear)

    def _bad_wire(self, fault: Fault, _: Process) -> None:
        network = self._world.network
        network.bad += 1
        self._until_seen(
            fault, lambda: network.troubled, fault.lasts_s, lambda: setattr(network, "bad", network.bad - 1)
        )

    def _disk_full(self, fault: Fault, _: Process) -> None:
        disk = self._world.disk
        disk.full += self._rng.randint(1, 2)
        self._until_seen(fault, lambda: disk.filled, 0.0)

    def _sink_down(self, fault: Fault, _: Process) -> None:
        sink = self._world.sink
        sink.down += self._rng.randint(1, 2)
        self._until_seen(fault, lambda: sink.refused, 0.0)

    def _lose_task(self, fault: Fault, _: Process) -> None:
        spark = self._world.spark
        spark.doomed_tasks += self._rng.randint(1, 3)
        self._until_seen(fault, lambda: spark.lost_tasks, 0.0)

    # ------------------------------------------------------------------ inside

    def _stop(self, fault: Fault, process: Process) -> None:
        world = self._world
        process.paused = True
        if process.name.startswith("driver"):
            self._later(self._rng.uniform(0.5, 5), world.ensure_driver)
        elif self._rng.random() < 0.7:
            self._later(self._rng.uniform(0.1, 2), world.report_lost, process)
        self._later(fault.lasts_s, self._resume, process)
        self._heal_later(fault, fault.lasts_s)

    def _resume(self, process: Process) -> None:
        process.paused = False
        self._world.log("resumed", process.name)
        if process.name.startswith("host") and self._world.is_lost(process):
            self._later(self._rng.uniform(0.5, 10), self._orphaned, process)

    def _orphaned(self, process: Process) -> None:
        """The forgotten copy of a host notices that its parent is gone."""
        process.orphan = True

    def _until_seen(self, fault: Fault, count, lasts_s: float, heal=lambda: None) -> None:  # type: ignore[no-untyped-def]
        """A fault that waits for somebody to run into it."""
        before, begun = count(), self._world.loop.time()

        def look() -> None:
            if count() > before and not fault.fired:
                self._fired(fault, "somebody")
            if fault.fired and self._world.loop.time() - begun >= lasts_s:
                heal()
                fault.healed = True
            else:
                self._later(0.1, look)

        look()

    def _fired(self, fault: Fault, whom: str) -> None:
        fault.fired = True
        self._world.log("fault:", fault, "hits", whom)

    def _heal_later(self, fault: Fault, delay_s: float) -> None:
        self._later(delay_s, setattr, fault, "healed", True)

    def _later(self, delay_s: float, callback, *args) -> None:  # type: ignore[no-untyped-def]
        loop = self._world.loop
        loop.call_later(delay_s, callback, *args, context=loop.root.context())

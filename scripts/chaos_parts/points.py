"""The named crash points, as the source has them: a new `faults.point("...")` joins the matrix by itself."""

from __future__ import annotations

import re
from pathlib import Path

from chaos_parts.world import STARTS, Failed, Scenario, World
from stack import ROOT

_POINT = re.compile(r"faults\.point\(\s*\"([a-z_.]+)\"")

OFTEN = {
    "state.shards": 2,
    "state.journal_file_bytes": 4096,
    "snapshot.every_commits": 2,
    "snapshot.prune_interval_s": 0,
}
"""What makes files be followed by others, snapshots be taken and journals be pruned within a short load."""

OF_TOPICS = ("ahead.",)
"""Passed only where events come from a topic (`brokers`)."""

RARE = ("rotation.", "snapshot.", "retention.")

PASSAGES = {"journal": 21, "host": 6, "driver": 2, "task": 2}
"""At which passage a point of each kind kills: in the middle of the load. Every shard flushes once when it is opened."""

RETRYING = "local[3,4]"
"""Spark tries a task again here, as it does on a cluster."""


def crash_points(package: Path = ROOT / "src" / "hermes_spark") -> list[str]:
    """All crash points that the code passes whatever the source, sorted."""
    names = {name for path in package.rglob("*.py") for name in _POINT.findall(path.read_text(encoding="utf-8"))}
    return sorted(name for name in names if not name.startswith(OF_TOPICS))


def fault_of(point: str) -> str:
    """A SIGKILL at the point, in the middle of the load."""
    return f"{point}=kill@{PASSAGES.get(point.partition('.')[0], 1)}"


def run_through(world: World) -> None:
    """The load, with whatever is armed going off in the middle of it."""
    world.load()
    world.start()
    world.drain()


def point_scenarios() -> list[Scenario]:
    """One for each crash point."""
    return [
        Scenario(
            f"crash at {point}",
            run_through,
            faults=fault_of(point),
            settings=OFTEN if point.startswith(RARE) else {},
            master=RETRYING if point.startswith("task.") else "local[3]",
        )
        for point in crash_points()
    ]


def all_points(kinds: tuple[str, ...], name: str) -> Scenario:
    """Every crash point of some kinds in the life of one checkpoint, each once."""
    points = [point for point in crash_points() if point.startswith(kinds)]
    return Scenario(name, run_until_all_fired, faults=",".join(map(fault_of, points)), settings=OFTEN, master=RETRYING)


def run_until_all_fired(world: World) -> None:
    """New events for every start, until each armed point has had its turn."""
    armed = len(world.scenario.faults.split(","))
    world.load()
    while True:
        world.load(files=2)
        world.start()
        if world.wait_end() == 0 and len(world.all_fired()) == armed:
            return
        if world.starts >= STARTS:
            raise Failed(f"only {', '.join(world.all_fired())} fired in {STARTS} starts: {world.last_word()}")


TASK_FAILS_TWICE = Scenario(
    "a hand-off task fails twice, then succeeds",
    run_through,
    faults="task.after_offer=raisex2",
    settings={"intake.driver_rows": 0},
    master=RETRYING,
)

"""Run one seed and say what was wrong with it."""

from __future__ import annotations

import contextlib
import logging
import os
import traceback
from collections.abc import Iterator
from pathlib import Path

import msgspec

from simulation.check import problems
from simulation.loop import Stuck
from simulation.plants import FOCUS, PLANTS
from simulation.world import World


class Report(msgspec.Struct, frozen=True):
    """What became of a seed."""

    seed: int
    faults: list[str]
    events: int
    problems: list[str]
    digest: str


def run_seed(seed: int, *, plant: str | None = None, kinds: list[str] | None = None, trace: bool = False) -> Report:
    """Run a seed, with a planted bug or with chosen kinds of faults if asked for. The same arguments, the same report."""
    world = World(seed, kinds=kinds or FOCUS.get(plant or ""), trace=trace)
    found: list[str] = []
    try:
        with PLANTS[plant]() if plant else contextlib.nullcontext(), _one_core():
            try:
                world.run()
            except Stuck as exc:
                found.append(f"stuck: {exc}")
            except Exception as exc:
                where = traceback.extract_tb(exc.__traceback__)[-1]
                found.append(f"{type(exc).__name__} at {where.filename.rpartition('/')[2]}:{where.lineno}: {exc}")
        found += problems(world)
    finally:
        world.remove()
    found = [problem.replace(str(world.root), "state") for problem in found]
    for problem in found:
        world.log("wrong:", problem)
    faults = [str(fault) for fault in world.troubles.faults]
    return Report(seed, faults, len(world.workload.sent), found, world.digest)


@contextlib.contextmanager
def _one_core() -> Iterator[None]:
    """Stay where we are: a seed's threads take turns, and handing over costs a third of the time between two cores."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed = os.sched_getaffinity(0)
    here = int(Path("/proc/thread-self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[36])
    os.sched_setaffinity(0, {here} & allowed or allowed)
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


@contextlib.contextmanager
def quiet_log() -> Iterator[None]:
    """Keep what the service logs about its troubles out of a test's output."""
    logger = logging.getLogger("hermes_spark")
    level, logger.level = logger.level, logging.CRITICAL
    try:
        yield
    finally:
        logger.level = level

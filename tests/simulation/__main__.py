"""Run seeds of the simulation: `scripts/simulate --help`."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from simulation.plants import PLANTS
from simulation.run import Report, run_seed


def main() -> int:
    parser = argparse.ArgumentParser(prog="simulate", description="Run the service on a simulated machine that breaks.")
    parser.add_argument("--seeds", type=int, default=10_000, help="how many seeds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="this seed only")
    parser.add_argument("--trace", action="store_true", help="with --seed: print what happens")
    parser.add_argument("--plant", choices=sorted(PLANTS), help="plant a known bug first")
    parser.add_argument("--jobs", type=int, default=1, help="processes to run at once")
    options = parser.parse_args()
    logging.getLogger("hermes_spark").setLevel(logging.DEBUG if options.trace else logging.CRITICAL)
    if options.seed is not None:
        return _say([run_seed(options.seed, plant=options.plant, trace=options.trace)], options.plant)
    seeds = range(options.first, options.first + options.seeds)
    if options.jobs == 1:
        return _say((run_seed(seed, plant=options.plant) for seed in seeds), options.plant)
    with ProcessPoolExecutor(options.jobs) as pool:
        return _say(pool.map(_plain, seeds, [options.plant] * len(seeds), chunksize=20), options.plant)


def _plain(seed: int, plant: str | None) -> Report:
    logging.getLogger("hermes_spark").setLevel(logging.CRITICAL)
    return run_seed(seed, plant=plant)


def _say(reports, plant: str | None) -> int:  # type: ignore[no-untyped-def]
    """One JSON line per bad seed, then a closing line; the exit status."""
    good = bad = events = faults = 0
    since = time.monotonic()
    for report in reports:
        events, faults = events + report.events, faults + len(report.faults)
        good, bad = good + (not report.problems), bad + bool(report.problems)
        if report.problems:
            again = f"scripts/simulate --seed {report.seed} --trace" + (f" --plant {plant}" if plant else "")
            print(
                json.dumps(
                    {"seed": report.seed, "faults": report.faults, "problems": report.problems[:20], "again": again}
                )
            )
        sys.stdout.flush()
    print(f"{good} passed, {bad} failed ({events} events, {faults} faults, {time.monotonic() - since:.0f} s)")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

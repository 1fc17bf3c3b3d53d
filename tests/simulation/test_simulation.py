"""The simulation itself: good seeds, the same seed twice, planted bugs that must be found, and faults that must happen.

A bad seed is replayed with `scripts/simulate --seed N --trace`.
"""

from __future__ import annotations

import pytest

from simulation.plants import FOCUS, PLANTS
from simulation.run import Report, quiet_log, run_seed
from simulation.trouble import DRIVER_POINTS, HOST_POINTS, KINDS, RARE

SEEDS = 200


@pytest.fixture(autouse=True)
def _quiet():  # type: ignore[no-untyped-def]
    with quiet_log():
        yield


def bad(reports: list[Report]) -> list[tuple[int, list[str], list[str]]]:
    return [(report.seed, report.faults, report.problems[:5]) for report in reports if report.problems]


@pytest.mark.parametrize("first", range(0, SEEDS, 50))
def test_no_seed_breaks_a_promise(first: int) -> None:
    reports = [run_seed(seed) for seed in range(first, first + 50)]
    assert bad(reports) == []
    assert sum(report.events for report in reports) > 500


def test_a_seed_happens_the_same_way_again() -> None:
    for seed in (4, 11, 21):
        assert run_seed(seed) == run_seed(seed)
    assert run_seed(4).digest != run_seed(5).digest


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_bug_is_found(plant: str) -> None:
    for seed in range(SEEDS):
        report = run_seed(seed, plant=plant)
        if report.problems:
            assert run_seed(seed, plant=plant) == report, "the same seed finds it again"
            assert run_seed(seed, kinds=FOCUS.get(plant)).problems == [], "and without the bug that seed is good"
            return
    pytest.fail(f"{plant} was not found within {SEEDS} seeds")


@pytest.mark.parametrize("kind", sorted({*KINDS, *RARE}))
def test_every_kind_of_fault_happens_and_is_survived(kind: str) -> None:
    report = run_seed(1000, kinds=[kind])
    assert report.problems == []
    assert report.faults[0].startswith(kind)


def test_a_fault_that_does_not_happen_fails_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulation.world.LIMIT_S", 60.0)
    monkeypatch.setattr("simulation.trouble.HOST_POINTS", ("host.nobody_passes_here",))
    monkeypatch.setattr("simulation.trouble.DRIVER_POINTS", ())
    report = run_seed(1, kinds=["point_kill"])
    assert any(problem.startswith("a fault did not happen: point_kill") for problem in report.problems)


def test_the_crash_points_are_those_of_the_package() -> None:
    from hermes_spark.faults import POINTS

    assert set(HOST_POINTS + DRIVER_POINTS) <= POINTS

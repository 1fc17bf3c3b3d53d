"""Every named crash point once, by SIGKILL, on real parts: what `scripts/chaos --quick` does one by one, in two jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos_parts.brokers import HOST_RUNNING_AHEAD
from chaos_parts.points import all_points, crash_points
from chaos_parts.world import run_scenario

pytestmark = [pytest.mark.spark, pytest.mark.triton, pytest.mark.timeout(600)]

IN_THE_HOST = ("journal.", "host.")
ELSEWHERE = tuple(sorted({f"{point.partition('.')[0]}." for point in crash_points()} - set(IN_THE_HOST)))


@pytest.mark.parametrize("kinds", [IN_THE_HOST, ELSEWHERE], ids=["host", "driver"])
def test_a_crash_at_any_point_loses_repeats_and_reruns_nothing(
    tmp_path: Path, triton: str, kinds: tuple[str, ...]
) -> None:
    line = run_scenario(all_points(kinds, f"all of {kinds}"), tmp_path / "world", triton)
    assert line["passed"], line
    assert line["fired"] == [point for point in crash_points() if point.startswith(kinds)]
    assert line["in_flight_unknown"], "no call was under way at any crash"


def test_a_host_that_dies_while_it_runs_ahead_of_the_batches_loses_repeats_and_reruns_nothing(
    tmp_path: Path, triton: str
) -> None:
    line = run_scenario(HOST_RUNNING_AHEAD, tmp_path / "world", triton)
    assert line["passed"], line

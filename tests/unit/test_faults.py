"""Crash points: what is armed acts once, what is not does nothing, and a wrong name is loud."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hermes_spark
from hermes_spark import faults
from hermes_spark.errors import SettingsError

PACKAGE = Path(hermes_spark.__file__).parent


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    faults.arm("")
    yield
    faults.arm("")


def test_a_point_that_is_not_armed_does_nothing() -> None:
    for name in faults.POINTS:
        faults.point(name)


def test_an_armed_point_acts_at_the_passage_named_and_only_then() -> None:
    faults.arm("host.after_call=raise@3, host.after_result=raise")
    faults.point("host.after_call")
    faults.point("host.after_call")
    with pytest.raises(faults.InjectedFault, match=r"host\.after_call"):
        faults.point("host.after_call")
    faults.point("host.after_call")
    with pytest.raises(faults.InjectedFault):
        faults.point("host.after_result")


def test_a_fault_acts_so_many_times_as_it_is_told(tmp_path: Path) -> None:
    faults.arm("task.after_offer=raise@2x2", tmp_path)
    faults.point("task.after_offer")
    for _ in range(2):
        with pytest.raises(faults.InjectedFault):
            faults.point("task.after_offer")
    faults.point("task.after_offer")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["task.after_offer", "task.after_offer.2"]


def test_what_another_process_has_had_counts(tmp_path: Path) -> None:
    (tmp_path / "task.after_offer").touch()
    faults.arm("task.after_offer=raisex2", tmp_path)
    with pytest.raises(faults.InjectedFault):
        faults.point("task.after_offer")
    faults.point("task.after_offer")


def test_no_handler_of_ordinary_errors_takes_an_injected_fault() -> None:
    assert not issubclass(faults.InjectedFault, Exception)


def test_with_a_directory_a_fault_fires_once_over_all_processes(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    faults.arm("host.after_call=raise", marks)
    with pytest.raises(faults.InjectedFault):
        faults.point("host.after_call")
    assert [path.name for path in marks.iterdir()] == ["host.after_call"]
    faults.arm("host.after_call=raise", marks)
    faults.point("host.after_call")


@pytest.mark.parametrize(
    "text", ["host.after_cal=kill", "host.after_call", "host.after_call=explode", "host.after_call=kill@0", "a b=kill"]
)
def test_a_text_that_cannot_be_meant_is_refused_and_arms_nothing(text: str) -> None:
    with pytest.raises(SettingsError):
        faults.arm(f"host.after_result=raise,{text}")
    faults.point("host.after_result")


def test_an_unknown_point_raises_where_it_is_passed() -> None:
    with pytest.raises(SettingsError, match=r"no crash point 'host\.after_cal'; .*host\.after_call"):
        faults.point("host.after_cal")


@pytest.mark.parametrize(("action", "number"), [("kill", signal.SIGKILL), ("stop", signal.SIGSTOP)])
def test_the_environment_arms_a_process_at_its_start(action: str, number: int) -> None:
    code = "from hermes_spark import faults; faults.point('driver.after_commit')"
    with subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "HERMES_FAULTS": f"driver.after_commit={action}"}
    ) as process:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        ended = os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WSTOPSIG(status)
        process.kill()
    assert ended == number


def test_a_wrong_environment_ends_the_process_at_its_start() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import hermes_spark.faults"],
        env={**os.environ, "HERMES_FAULTS": "driver.after_comit=kill"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert "no crash point 'driver.after_comit'" in done.stderr


def test_every_point_that_the_code_passes_is_known() -> None:
    passed = {
        name
        for path in PACKAGE.rglob("*.py")
        if path != PACKAGE / "faults.py"
        for name in re.findall(r"faults\.point\(\"([^\"]+)\"\)", path.read_text())
    }
    assert {"journal.before_write", "journal.after_write", "journal.after_sync"} <= passed <= faults.POINTS

"""What runs a job: signals go to its driver, and a failed one is started again as long as that can mend something."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hermes_spark.streaming.driver_note import DriverNote
from supervise import PAUSES_S, Again, GiveUp, Patience, Runner, supervise

SUPERVISE = Path(__file__).parents[2] / "scripts" / "supervise.py"

JOB = """
import json, os, pathlib, signal, subprocess, sys, time
plan = pathlib.Path(sys.argv[1])
lives = json.loads(plan.read_text())
life, rest = lives[0], lives[1:]
plan.write_text(json.dumps(rest))
lived = plan.with_name("lived")
stopping = []

def stop(number, frame):
    stopping.append(number)
    if len(stopping) > 1 and not life.get("stubborn"):
        sys.exit(99)

signal.signal(signal.SIGTERM, stop)
note = pathlib.Path(os.environ["HERMES_DRIVER_NOTE"])
if life.get("notes", True):
    note.write_text(json.dumps({"pid": os.getpid(), "commits": life.get("commits", 0)}))
with lived.open("a") as file:
    file.write(f"{os.getpid()}\\n")
if life.get("leaves"):
    left = subprocess.Popen(["sleep", "60"])
    with lived.open("a") as file:
        file.write(f"{left.pid}\\n")
while life.get("runs") and (not stopping or life.get("stubborn")):
    time.sleep(0.01)
time.sleep(life.get("finishing", 0) if stopping else 0)
if life.get("killed"):
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(life.get("status", 0))
"""


class FakeJob:
    """A job whose lives are planned: `status`, `commits`, `runs` until it is asked to stop, and more."""

    def __init__(self, directory: Path) -> None:
        self.plan = directory / "plan"
        self.program = directory / "job.py"
        self.program.write_text(JOB)
        self.runner = Runner([sys.executable, str(self.program), str(self.plan)], directory / "note.json")

    def lives(self, *lives: dict[str, object]) -> None:
        self.plan.write_text(json.dumps(lives))

    @property
    def pids(self) -> list[int]:
        lived = self.plan.with_name("lived")
        return [int(pid) for pid in lived.read_text().split()] if lived.exists() else []

    def left(self) -> int:
        return len(json.loads(self.plan.read_text()))


@pytest.fixture
def job(tmp_path: Path) -> FakeJob:
    return FakeJob(tmp_path)


QUICK = (0.01,) * len(PAUSES_S)


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# what a restart can mend


@pytest.mark.parametrize("status", [1, 137, 143, 134])
def test_a_failure_and_a_kill_are_mended_with_growing_pauses(status: int) -> None:
    patience = Patience()
    pauses = [verdict.pause_s for _ in PAUSES_S if isinstance(verdict := patience.after(status, 0), Again)]
    assert pauses == sorted(pauses) == list(PAUSES_S)
    last = patience.after(status, 0)
    assert isinstance(last, GiveUp)
    assert "failed 7 times in a row without a commit" in last.why


@pytest.mark.parametrize(("status", "why"), [(2, "cannot start as it is configured"), (127, "status 127")])
def test_what_no_restart_mends_is_left(status: int, why: str) -> None:
    verdict = Patience().after(status, 5)
    assert isinstance(verdict, GiveUp)
    assert why in verdict.why


def test_a_commit_in_between_makes_the_pauses_short_again() -> None:
    patience = Patience()
    for _ in range(4):
        patience.after(1, 0)
    assert patience.after(1, 3) == Again(PAUSES_S[0])
    assert patience.after(1, 0) == Again(PAUSES_S[1])


# a job, run


def test_a_job_that_ends_well_is_not_started_again(job: FakeJob) -> None:
    job.lives({}, {})
    assert supervise(job.runner, Patience(QUICK)) == 0
    assert job.left() == 1


def test_without_supervision_a_failure_is_passed_on(job: FakeJob) -> None:
    job.lives({"status": 1}, {})
    assert supervise(job.runner, None) == 1
    assert job.left() == 1


def test_a_killed_job_comes_back(job: FakeJob, capfd: pytest.CaptureFixture[str]) -> None:
    job.lives({"killed": True}, {"status": 1, "commits": 2}, {})
    assert supervise(job.runner, Patience(QUICK)) == 0
    told = capfd.readouterr().err
    assert "ended with status 137; it is started again in 0.01 s (failure 1 of 6" in told
    assert "ended with status 1; it is started again in 0.01 s (failure 1 of 6" in told


def test_the_commits_of_an_earlier_life_are_none_of_this_one(job: FakeJob) -> None:
    job.lives({"status": 1, "commits": 9}, *[{"status": 1, "notes": False}] * 9)
    assert supervise(job.runner, Patience(QUICK)) == 1
    assert len(job.pids) == 1 + len(QUICK)


def test_it_gives_up_and_says_why(job: FakeJob, capfd: pytest.CaptureFixture[str]) -> None:
    job.lives(*[{"status": 1}] * 20)
    assert supervise(job.runner, Patience(QUICK)) == 1
    assert len(job.pids) == 1 + len(QUICK)
    assert "is not started again: it has failed 7 times in a row" in capfd.readouterr().err
    job.lives({"status": 2}, {})
    assert supervise(job.runner, Patience(QUICK)) == 2
    assert "is not started again: it cannot start as it is configured" in capfd.readouterr().err


# signals


def run(job: FakeJob, *options: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, str(SUPERVISE), *options, "--", *job.runner.command])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_lets_the_driver_end_well_and_nothing_is_started_again(job: FakeJob, number: int) -> None:
    job.lives({"runs": True}, {})
    process = run(job, "--supervise")
    until(lambda: job.pids)
    process.send_signal(number)
    assert process.wait(30) == 0
    assert job.left() == 1


def test_a_failure_while_it_was_asked_to_stop_is_not_mended(job: FakeJob) -> None:
    job.lives({"runs": True, "status": 1}, {})
    process = run(job, "--supervise")
    until(lambda: job.pids)
    process.terminate()
    assert process.wait(30) == 1
    assert job.left() == 1


def test_a_second_signal_reaches_the_driver_too(job: FakeJob) -> None:
    job.lives({"runs": True, "finishing": 60})
    process = run(job)
    until(lambda: job.pids)
    process.terminate()
    time.sleep(0.2)
    process.terminate()
    assert process.wait(30) == 99


def test_a_job_that_does_not_heed_a_second_signal_is_killed(job: FakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supervise.END_S", 0.1)
    job.lives({"runs": True, "stubborn": True})
    ended: list[int] = []
    thread = threading.Thread(target=lambda: ended.append(job.runner.run()))
    thread.start()
    until(lambda: job.pids)
    job.runner.pass_on(signal.SIGTERM, None)
    time.sleep(0.3)
    assert not ended
    job.runner.pass_on(signal.SIGTERM, None)
    thread.join(30)
    assert ended == [137]


def test_before_there_is_a_driver_the_whole_job_is_ended(job: FakeJob) -> None:
    job.lives({"runs": True, "notes": False, "status": 5})
    process = run(job)
    until(lambda: job.pids)
    process.terminate()
    assert process.wait(30) == 5


def test_a_signal_between_two_starts_ends_it(job: FakeJob) -> None:
    job.lives({"status": 1}, {})
    ended: list[int] = []
    thread = threading.Thread(target=lambda: ended.append(supervise(job.runner, Patience((60.0,)))))
    thread.start()
    until(lambda: job.pids)
    time.sleep(0.3)
    job.runner.pass_on(signal.SIGTERM, None)
    thread.join(30)
    assert ended == [1]
    assert job.left() == 1


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's death")
def test_the_job_does_not_outlive_what_runs_it(job: FakeJob) -> None:
    job.lives({"runs": True})
    process = run(job)
    until(lambda: job.pids)
    process.kill()
    process.wait(30)
    until(lambda: not Path(f"/proc/{job.pids[0]}").exists())


def test_what_a_killed_job_leaves_behind_is_ended_before_the_next_start(job: FakeJob) -> None:
    job.lives({"leaves": True, "killed": True})
    assert job.runner.run() == 137
    until(lambda: not Path(f"/proc/{job.pids[1]}/exe").exists())


# the driver's side


def test_a_driver_notes_where_it_is_and_what_it_commits(tmp_path: Path) -> None:
    path = tmp_path / "note.json"
    note = DriverNote(str(path))
    runner = Runner([], path)
    assert json.loads(path.read_text()) == {"pid": os.getpid(), "commits": 0}
    note.committed()
    note.committed()
    assert runner.commits() == 2
    assert [each.name for each in tmp_path.iterdir()] == ["note.json"]


def test_a_driver_that_nobody_watches_notes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    DriverNote("").committed()
    assert list(tmp_path.iterdir()) == []

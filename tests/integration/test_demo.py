"""The first command of the README, and the same from topic to topic."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.spark
@pytest.mark.triton
@pytest.mark.timeout(400)
def test_the_demo_accounts_for_everything_and_stops_what_it_started(tmp_path: Path) -> None:
    command = [str(ROOT / "scripts/demo"), "--events", "80", "--sessions", "20", "--keep", str(tmp_path / "demo")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=380, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.strip().splitlines()[-1]
    assert last.startswith('{"summary":')
    summary = json.loads(last)["summary"]
    assert summary["completed"] == summary["turns"] == 80
    assert (summary["failed"], summary["open"]) == (0, 0)
    assert summary["events"] == summary["turns"] + summary["controls"] + summary["dead_letters"]
    assert {"calls", "calls_failed", "turns_per_second", "p50_ms", "p90_ms", "p99_ms"} <= set(summary)
    assert processes_of(tmp_path / "demo") == ""


@pytest.mark.spark
@pytest.mark.triton
@pytest.mark.timeout(400)
def test_with_kafka_it_kills_the_driver_and_accounts_for_everything(tmp_path: Path) -> None:
    command = [str(ROOT / "scripts/demo"), "--kafka", "--events", "80", "--sessions", "20", "--rate", "20"]
    command += ["--keep", str(tmp_path / "demo")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=380, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(done.stdout.strip().splitlines()[-1])["summary"]
    assert (summary["events"], summary["dead_letters"], summary["restarts"]) == (80, 2, 1)
    assert summary["completed"] == summary["outcomes"] == 78
    assert (summary["lost"], summary["answered_twice"], summary["finished_calls_rerun"]) == (0, 0, 0)
    assert "killed the driver's JVM" in done.stdout
    assert "read before the kill" in done.stdout
    assert processes_of(tmp_path / "demo") == ""


@pytest.mark.triton
def test_interrupted_it_stops_what_it_started(tmp_path: Path) -> None:
    command = [str(ROOT / "scripts/demo"), "--kafka", "--keep", str(tmp_path / "demo")]
    demo = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert demo.stdout is not None
    assert any("submitting the streaming job" in line for line in demo.stdout), "it ended before"
    assert processes_of(tmp_path / "demo") != ""
    demo.send_signal(signal.SIGINT)
    _, errors = demo.communicate(timeout=60)
    assert demo.returncode == 130
    assert errors.endswith("demo: interrupted; all that it started has been stopped\n")
    assert processes_of(tmp_path / "demo") == ""


def processes_of(directory: Path) -> str:
    """Pids of the processes whose command lines name the directory."""
    return subprocess.run(["pgrep", "-f", str(directory)], capture_output=True, text=True, check=False).stdout

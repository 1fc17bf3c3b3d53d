"""The first command of the README."""

from __future__ import annotations

import json
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
    left = subprocess.run(["pgrep", "-f", str(tmp_path / "demo")], capture_output=True, text=True, check=False)
    assert left.stdout == ""

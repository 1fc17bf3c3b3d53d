"""A writer is killed at every crash point of a group commit, and at any other moment; what it reported durable is there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hermes_spark import faults
from hermes_spark.errors import Fenced
from hermes_spark.state.journal import ShardJournal
from hermes_spark.state.records import Overdue, TermId

SHARD = 0
JOURNAL_POINTS = sorted(name for name in faults.POINTS if name.startswith("journal."))

WRITER = """
import sys
from pathlib import Path
from hermes_spark.state.journal import ShardJournal
from hermes_spark.state.records import Overdue, TermId

journal, past = ShardJournal.open(Path(sys.argv[1]), 0, TermId(1, int(sys.argv[2])), now_ms=1)
print(journal.durable_lsn, flush=True)
for _ in range(int(sys.argv[3])):
    for _ in range(3):
        lsn = journal.appended_lsn + 1
        journal.append(Overdue("session", f"turn-{lsn}" * 50, lsn))
    journal.flush()
    print(journal.durable_lsn, flush=True)
"""


def start_writer(root: Path, counter: int, groups: int, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(root), str(counter), str(groups)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def check_journal(root: Path, counter: int, reported: int) -> int:
    """Take the shard over in this process: all reported records are there, in order, none of them changed; the last LSN."""
    journal, past = ShardJournal.open(root, SHARD, TermId(1, counter), now_ms=1, known_end=reported)
    lsn = 0
    for lsn, record in past:
        if isinstance(record, Overdue):
            assert record == Overdue("session", f"turn-{lsn}" * 50, lsn)
    assert lsn == journal.previous.lsn >= reported
    journal.close()
    return lsn


@pytest.mark.parametrize("passage", [1, 5])
@pytest.mark.parametrize("point", JOURNAL_POINTS)
def test_a_kill_at_each_crash_point_loses_nothing_reported(tmp_path: Path, point: str, passage: int) -> None:
    marks = tmp_path / "marks"
    armed = {"HERMES_FAULTS": f"{point}=kill@{passage}", "HERMES_FAULTS_DIR": str(marks)}
    with start_writer(tmp_path, 1, 6, **armed) as writer:
        output, _ = writer.communicate(timeout=60)
    assert writer.returncode == -signal.SIGKILL
    assert [path.name for path in marks.iterdir()] == [point]
    reported = [int(line) for line in output.split()]
    # The first passage is that of TermStarted, the others are groups of three: the one under way was not reported.
    assert reported == [1 + 3 * group for group in range(passage - 1)]
    last = check_journal(tmp_path, 2, max(reported, default=0))
    groups = passage if point != "journal.before_write" else passage - 1
    assert last == (1 + 3 * (groups - 1) if groups else 0)

    # The same environment again: the mark is there, so the next owner lives, behind what the dead one left.
    with start_writer(tmp_path, 3, 2, **armed) as writer:
        output, _ = writer.communicate(timeout=60)
    assert writer.returncode == 0
    assert [int(line) for line in output.split()] == [last + 2, last + 5, last + 8]
    assert check_journal(tmp_path, 4, last + 8) == last + 8


def test_a_writer_killed_at_any_moment_again_and_again_loses_nothing_reported(tmp_path: Path) -> None:
    end = 0
    for round_ in range(1, 6):
        with start_writer(tmp_path, 2 * round_, 100_000) as writer:
            assert writer.stdout is not None
            reported = [int(writer.stdout.readline()) for _ in range(7 * round_)]
            writer.kill()
            reported += [int(line) for line in writer.stdout.read().splitlines()]
        assert reported[0] == end + 1
        end = 1 + check_journal(tmp_path, 2 * round_ + 1, reported[-1])


def test_a_stopped_writer_that_wakes_behind_a_seal_reports_nothing_more(tmp_path: Path) -> None:
    armed = {"HERMES_FAULTS": "journal.before_write=stop@4", "HERMES_FAULTS_DIR": str(tmp_path / "marks")}
    with start_writer(tmp_path, 1, 10, **armed) as writer:
        assert writer.stdout is not None
        reported = [int(writer.stdout.readline()) for _ in range(3)]
        os.waitpid(writer.pid, os.WUNTRACED)
        last = check_journal(tmp_path, 2, reported[-1])
        writer.send_signal(signal.SIGCONT)
        output, _ = writer.communicate(timeout=60)
    assert reported == [1, 4, 7]
    assert (output, last, writer.returncode) == ("", 7, 1)
    assert check_journal(tmp_path, 3, 8) == 8


def test_a_fault_can_be_raised_in_place_and_leaves_an_unconfirmed_group(tmp_path: Path) -> None:
    journal = ShardJournal.open(tmp_path, SHARD, TermId(1, 1), now_ms=1).journal
    lsn = journal.append(Overdue("session", "turn-2" * 50, 2))
    faults.arm("journal.after_sync=raise")
    try:
        with pytest.raises(faults.InjectedFault):
            journal.flush()
    finally:
        faults.arm("")
    assert (journal.durable_lsn, lsn) == (1, 2)
    assert check_journal(tmp_path, 2, 1) == 2
    with pytest.raises(Fenced):
        ShardJournal.open(tmp_path, SHARD, TermId(1, 1), now_ms=1)

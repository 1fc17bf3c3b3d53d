"""A job whose journal is pruned all the time is killed: it goes on from snapshots alone, and every row has its one outcome."""

from __future__ import annotations

import pytest

from jobs import Job, executed_more_than_once, one_each, question
from stack import Stack, ToolService

pytestmark = [pytest.mark.spark, pytest.mark.triton, pytest.mark.timeout(420)]


def test_a_job_that_lives_on_snapshots_loses_and_repeats_nothing(stack: Stack, triton: str, tools: ToolService) -> None:
    job = Job(
        stack,
        triton,
        tools,
        **{
            "state.shards": 2,
            "state.journal_file_bytes": 4096,
            "snapshot.every_commits": 2,
            "snapshot.prune_interval_s": 0.5,
        },
    )
    journal = job.directory / "checkpoint" / "hermes" / "journal"
    rows = job.drop(question(f"s{number % 7}") for number in range(40))
    job.start()
    job.until(lambda: len(job.rows()) == rows, "all outcomes")
    # More of everything: a third snapshot makes what lies before the second superfluous.
    rows += job.drop(question(f"s{number % 7}") for number in range(40))
    job.until(lambda: len(job.rows()) == rows, "the next outcomes")
    job.until(lambda: any(journal.rglob("*.pruned")), "pruning")
    rows += job.drop(question(f"s{number % 7}") for number in range(10))
    job.kill()
    job.finish()
    outcomes = job.rows()
    assert len(outcomes) == rows
    assert one_each(outcomes)
    assert executed_more_than_once(tools) == {}

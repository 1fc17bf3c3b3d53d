"""A job whose journal is pruned all the time is killed again and again: every row has its one outcome all the same."""

from __future__ import annotations

from jobs import Job, executed_more_than_once, one_each, question
from stack import Stack, ToolService


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
    rows, pruned = 0, ""
    for _ in range(2):
        rows += job.drop(question(f"s{number % 7}") for number in range(40))
        job.start()
        job.until(lambda rows=rows: len(job.rows()) == rows, "all outcomes")
        job.until(
            lambda pruned=pruned: max((p.name for p in journal.rglob("*.pruned")), default="") > pruned, "pruning"
        )
        rows += job.drop(question(f"s{number % 7}") for number in range(10))
        job.kill()
        pruned = max(path.name for path in journal.rglob("*.pruned"))
    job.finish()
    outcomes = job.rows()
    assert len(outcomes) == rows
    assert one_each(outcomes)
    assert executed_more_than_once(tools) == {}

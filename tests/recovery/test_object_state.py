"""State on an object store: a writer killed at each crash point, and the whole job killed; both go on from what is stored."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jobs import Job, executed_more_than_once, one_each, question
from journal_places import in_objects
from journaling import TermId, append_groups, lsns_of_facts
from object_server import S3Server, s3_bucket
from stack import Stack, ToolService

WRITER = """
import sys
from hermes_spark.state.journal_store import journals_at
from hermes_spark.state.records import TermId
from journaling import SHARD, append_groups

journal, past = journals_at(sys.argv[1]).open(SHARD, TermId(1, 1), now_ms=7)
print(journal.durable_lsn, flush=True)
for _ in range(4):
    append_groups(journal, [3])
    print(journal.durable_lsn, flush=True)
"""


@pytest.mark.parametrize("passage", [1, 3])
@pytest.mark.parametrize("point", ["journal.before_write", "journal.after_write", "journal.after_sync"])
def test_a_kill_at_each_crash_point_loses_nothing_reported(
    s3_server: S3Server, tmp_path: Path, point: str, passage: int
) -> None:
    bucket, marks = s3_bucket(s3_server), tmp_path / "marks"
    armed = {"HERMES_FAULTS": f"{point}=kill@{passage}", "HERMES_FAULTS_DIR": str(marks)}
    paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
    writer = subprocess.run(
        [sys.executable, "-c", WRITER, f"s3://{bucket.name}"],
        env={**os.environ, **bucket.environment(), **armed, **paths},
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
    )
    assert writer.returncode == -signal.SIGKILL
    assert [path.name for path in marks.iterdir()] == [point]
    # The first passage is that of TermStarted, the others are groups of three: the one under way was not reported.
    reported = [int(line) for line in writer.stdout.split()]
    assert reported == [1 + 3 * group for group in range(passage - 1)]
    place = in_objects(bucket.storage())
    journal, past = place.open(TermId(1, 2), known_end=max(reported, default=0))
    lsns_of_facts(list(past))
    last = journal.previous.lsn
    under_way = max(reported, default=-2) + 3
    # Between writing and syncing the put is under way: it may or may not arrive.
    expected = {"journal.before_write": {max(reported, default=0)}, "journal.after_sync": {under_way}}
    assert last in expected.get(point, {max(reported, default=0), under_way})
    append_groups(journal, [2])
    assert place.past_of(TermId(1, 3), known_end=last + 3)[-1][0] == last + 3


@pytest.mark.spark
@pytest.mark.triton
@pytest.mark.timeout(420)
def test_a_killed_job_with_state_on_objects_goes_on(
    stack: Stack, triton: str, tools: ToolService, s3_server: S3Server
) -> None:
    bucket = s3_bucket(s3_server)
    job = Job(stack, triton, tools, **{"state.path": f"s3://{bucket.name}/hermes", "state.shards": 4})
    rows = job.drop(question(f"s{n}", f"What is the status of order A-100{n % 6}?") for n in range(20))
    job.start(bucket.environment())
    job.until(lambda: len(tools.counters()["executions"]) >= 5, "some calls")
    job.kill()
    rows += job.drop(question(f"s{n}") for n in range(10))
    part = job.start(bucket.environment(), **{"stop.idle_s": 3})
    assert part.wait(200) == 0, part.tail(60)
    outcomes = job.rows()
    assert (len(outcomes), one_each(outcomes), executed_more_than_once(tools)) == (rows, True, {})
    assert {row["status"] for row in outcomes} == {"completed"}
    kinds = {key.partition("/")[0] for key in bucket.storage().list("hermes")}
    assert bucket.storage().list("hermes/journal")
    assert kinds == {"hermes"}
    assert not (stack.directory / "checkpoint" / "hermes").exists()

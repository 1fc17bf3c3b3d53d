"""The job with its state on an object store: killed whole, it goes on from what the store holds."""

from __future__ import annotations

import pytest

from jobs import Job, executed_more_than_once, one_each, question
from object_server import S3Server, s3_bucket
from stack import Stack, ToolService


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

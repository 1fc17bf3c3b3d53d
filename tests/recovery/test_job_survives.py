"""The job on real parts: what is killed, nothing is lost, nothing is published twice, no finished call runs again."""

from __future__ import annotations

import os
import signal

import pytest

from jobs import Job, executed_more_than_once, kill_process, one_each, question
from stack import Stack, ToolService

pytestmark = [pytest.mark.spark, pytest.mark.triton, pytest.mark.timeout(420)]


def some_questions(count: int, sessions: int = 20) -> list[dict[str, object]]:
    return [
        question(f"s{number % sessions}", f"What is the status of order A-100{number % 6}?") for number in range(count)
    ]


def test_a_run_ends_with_every_row_accounted_for(stack: Stack, triton: str, tools: ToolService) -> None:
    job = Job(stack, triton, tools)
    rows = job.drop(
        [
            *some_questions(30),
            b'{"session_id": "s1", "type": "reset"}',
            b"no json",
            b'{"messages": []}',
            question("big", "x" * 5_000_000),
            question("s2", tools=[{"name": "crm_query", "parameters": {"type": "no such type"}}]),
            question("s3", "[[unknown-tool]] hello"),
            question("s4", "[[wrong-types]] 查一下客户张三的订单状态"),
            question("s5", "[[loop]] What is the status of order A-1001?"),
            question("s6", "[[junk:1]] hello"),
        ]
    )
    job.finish()
    outcomes, dead, controls = job.rows(), job.rows("dead_letters"), job.rows("controls")
    assert len(outcomes) + len(dead) + len(controls) == rows
    assert len(dead) == 4
    assert {"not JSON", "session_id is missing", "at most", "crm_query"} == {
        word
        for word in ("not JSON", "session_id is missing", "at most", "crm_query")
        if any(word in row["reason"] for row in dead)
    }
    assert [row["type"] for row in controls] == ["reset"]
    assert {row["status"] for row in outcomes} == {"completed"}
    assert all(row["steps"] <= 3 for row in outcomes)
    assert one_each(outcomes)
    assert executed_more_than_once(tools) == {}


@pytest.mark.parametrize("how", ["ctrl-c", "kill -9"])
def test_a_killed_job_goes_on_from_its_checkpoint(stack: Stack, triton: str, tools: ToolService, how: str) -> None:
    job = Job(stack, triton, tools)
    rows = job.drop(some_questions(40))
    part = job.start()
    job.until(lambda: len(tools.counters()["executions"]) >= 5, "some calls")
    if how == "ctrl-c":
        part.signal(signal.SIGINT)
        part.wait(60)
    else:
        job.kill()
    rows += job.drop(some_questions(20))
    job.finish()
    outcomes = job.rows()
    assert len(outcomes) == rows
    assert one_each(outcomes)
    assert executed_more_than_once(tools) == {}
    assert {row["status"] for row in outcomes} == {"completed"}


def test_a_killed_host_loses_no_turn_and_repeats_no_finished_call(
    stack: Stack, triton: str, tools: ToolService
) -> None:
    job = Job(stack, triton, tools)
    rows = job.drop(some_questions(50, sessions=50))
    job.start()
    job.until(lambda: len(tools.counters()["executions"]) >= 5, "some calls of the 50 turns")
    kill_process(job.host_pids()[-1])
    job.until(lambda: len(job.host_pids()) == 2, "the host's successor")
    rows += job.drop(some_questions(10))
    job.until(lambda: len(job.rows()) == rows, "all outcomes")
    outcomes = job.rows()
    assert one_each(outcomes)
    assert executed_more_than_once(tools) == {}
    assert {row["status"] for row in outcomes} == {"completed"}


def test_a_full_host_makes_the_hand_off_wait_and_a_dead_one_does_not(
    stack: Stack, triton: str, tools: ToolService
) -> None:
    one_partition_per_file = {"spark.sql.files.maxPartitionBytes": 1, "spark.sql.files.openCostInBytes": 1}
    job = Job(stack, triton, tools, **{"host.max_open_turns": 3}, **one_partition_per_file)
    rows = sum(job.drop(some_questions(10, sessions=10)) for _ in range(8))
    job.start()
    job.until(lambda: len(tools.counters()["executions"]) >= 8, "a hand-off in the middle of eight partitions")
    kill_process(job.host_pids()[-1])
    job.until(lambda: len(job.rows()) == rows, "all outcomes")
    assert len(job.host_pids()) == 2
    outcomes = job.rows()
    assert one_each(outcomes)
    assert executed_more_than_once(tools) == {}
    assert {row["status"] for row in outcomes} == {"completed"}


def test_available_now_takes_what_is_there_and_ends(stack: Stack, triton: str, tools: ToolService) -> None:
    job = Job(stack, triton, tools, **{"trigger.available_now": True, "source.max_files_per_trigger": 2})
    rows = sum(job.drop(some_questions(5)) for _ in range(5))
    part = job.start()
    assert part.wait(120) == 0, part.tail(60)
    outcomes = job.rows()
    assert len(outcomes) == rows
    assert len({row["batch_id"] for row in outcomes}) >= 3


def test_sigterm_lets_open_turns_end_and_publishes_them(stack: Stack, triton: str, tools: ToolService) -> None:
    job = Job(stack, triton, tools, **{"source.kind": "rate", "source.rows_per_second": 20})
    part = job.start()
    job.until(lambda: len(job.rows()) >= 20, "some outcomes")
    os.kill(part.process.pid, signal.SIGTERM)
    assert part.wait(90) == 0, part.tail(60)
    assert "ended (asked to stop)" in part.tail()
    numbers = sorted(row["source_offset"] for row in job.rows())
    assert numbers == list(range(len(numbers)))


def test_a_hanging_tool_delays_no_other_session(stack: Stack, triton: str, tools: ToolService) -> None:
    tools.control(hang=["stuck"])
    job = Job(stack, triton, tools, **{"tools.timeout_s": 100})
    others = job.drop([question("stuck"), *some_questions(30)]) - 1
    job.start()
    job.until(lambda: len(job.rows()) == others, "the outcomes of all other sessions")
    assert "stuck" not in {row["session_id"] for row in job.rows()}
    tools.control(release=True)
    job.until(lambda: len(job.rows()) == others + 1, "the outcome of the session that was stuck")
    assert {row["status"] for row in job.rows()} == {"completed"}

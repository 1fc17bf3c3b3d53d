"""Two jobs on one checkpoint: the second one refuses, or takes over from one that shows no life and wakes up later."""

from __future__ import annotations

import os
import signal

import psutil
import pytest

from jobs import Job, executed_more_than_once, one_each, question
from stack import Stack, ToolService

pytestmark = [pytest.mark.spark, pytest.mark.triton, pytest.mark.timeout(420)]


def some_questions(count: int) -> list[dict[str, object]]:
    return [question(f"s{number}", f"What is the status of order A-100{number % 6}?") for number in range(count)]


def test_a_second_job_refuses_while_the_first_lives(stack: Stack, triton: str, tools: ToolService) -> None:
    job = Job(stack, triton, tools)
    rows = job.drop(some_questions(5))
    first = job.start(**{"stop.idle_s": 40})
    job.until(lambda: len(job.rows()) == rows, "the first outcomes")
    second = job.start()
    assert second.wait(120) == 2
    assert "another driver is running on this checkpoint (process " in second.tail(60)
    rows += job.drop(some_questions(5))
    job.part = first
    job.until(lambda: len(job.rows()) == rows, "outcomes after the refusal")
    os.kill(job.driver_pid(), signal.SIGTERM)
    assert first.wait(90) == 0, first.tail(60)
    assert one_each(job.rows())


def test_a_driver_that_wakes_up_after_another_took_over_does_no_harm(
    stack: Stack, triton: str, tools: ToolService
) -> None:
    job = Job(stack, triton, tools)
    rows = job.drop(some_questions(40))
    first = job.start()
    job.until(lambda: len(tools.counters()["executions"]) >= 5, "some calls of the 40 turns")
    sleeping = [psutil.Process(pid) for pid in job.processes()]
    for process in sleeping:
        os.kill(process.pid, signal.SIGSTOP)
    rows += job.drop(some_questions(10))
    try:
        job.finish()
    finally:
        for process in sleeping:
            process.send_signal(signal.SIGCONT)
    assert first.wait(120) == 1
    assert "has taken this checkpoint over from driver 1" in first.log.read_text()
    outcomes = job.rows()
    assert len(outcomes) == rows
    assert one_each(outcomes)
    assert executed_more_than_once(tools) == {}
    assert {row["status"] for row in outcomes} == {"completed"}

"""What demo and benchmark conclude from what was sent and read: every loss, repeat and late answer must show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import bench_kafka
from demo_kafka import summarize, what_is_wrong
from kafka_answers import Exchange

START_MS = 1_000_000


class Noted:
    """The two clients' files."""

    def __init__(self, directory: Path) -> None:
        self.sent, self.read = directory / "sent.jsonl", directory / "read.jsonl"
        self.exchange = Exchange.of(self.sent, self.read)

    def send(self, *offsets: int) -> None:
        with self.sent.open("a") as file:
            for n in offsets:
                file.write(json.dumps({"partition": 0, "offset": n, "ts": START_MS + 100 * n}) + "\n")

    def answer(self, offset: int, after_ms: float = 500.0, turn_id: str | None = None, **row: Any) -> None:
        turn_id = f"turn-{offset}" if turn_id is None else turn_id
        call = {"call_id": f"call-{offset}", "status": "ok", "step": 1}
        outcome = {"status": "completed", "calls": [call], "completion_tokens": 0, "steps": 2}
        row = {"source_partition": "events-0", "source_offset": offset, **(outcome if turn_id else {}), **row}
        note = {"at_ms": START_MS + 100 * offset + after_ms, "topic": "t", "turn_id": turn_id, "row": row}
        with self.read.open("a") as file:
            file.write(json.dumps(note) + "\n")

    def looked(self) -> Exchange:
        self.exchange.look()
        return self.exchange


@pytest.fixture
def noted(tmp_path: Path) -> Noted:
    return Noted(tmp_path)


def wrong(noted: Noted, executions: dict[str, int], restarts: int = 1) -> list[str]:
    return what_is_wrong(summarize(noted.looked(), executions) | {"restarts": restarts})


def test_a_line_that_is_being_written_is_read_when_it_is_whole(noted):
    assert noted.looked().unanswered == 0, "no file yet"
    noted.send(0, 1)
    noted.answer(0)
    text = noted.read.read_text()
    noted.read.write_text(text[:20])
    assert noted.looked().unanswered == 2
    noted.read.write_text(text)
    assert noted.looked().unanswered == 1
    noted.answer(1)
    assert noted.looked().unanswered == 0


def test_outcomes_dead_letters_and_equal_repeats_are_an_account_that_holds(noted):
    noted.send(0, 1, 2)
    noted.answer(0)
    noted.answer(1, turn_id="")
    noted.answer(2, after_ms=700)
    noted.answer(0, after_ms=900)
    noted.answer(1, after_ms=900, turn_id="")
    summary = summarize(noted.looked(), {"call-0": 1, "call-2": 1})
    assert what_is_wrong(summary | {"restarts": 1}) == []
    counts = ("events", "outcomes", "dead_letters", "lost", "completed", "repeats", "calls", "p50_ms")
    assert [summary[name] for name in counts] == [3, 2, 1, 0, 2, 2, 2, 600.0]


def test_what_does_not_add_up_is_told(noted):
    noted.send(0, 1)
    noted.answer(0)
    assert wrong(noted, {"call-0": 1}) == [
        "1 events were lost",
        "outcomes and dead letters do not add up to the events",
    ]
    noted.answer(1)
    assert wrong(noted, {"call-0": 1, "call-1": 2}) == ["1 calls were executed more than once"]
    assert wrong(noted, {"call-0": 1}) == ["1 calls are said to have been made and were not"]
    executions = {"call-0": 1, "call-1": 1}
    assert wrong(noted, executions, restarts=0) == ["the job was started again 0 times; expected once"]
    noted.answer(1, status="failed")
    assert wrong(noted, executions) == ["1 repeats differ from what they repeat"]


def test_an_event_that_is_answered_twice_or_was_never_sent_is_told(noted):
    noted.send(0)
    noted.answer(0)
    noted.answer(0, turn_id="another")
    told = ["1 answers are too many for the events", "outcomes and dead letters do not add up to the events"]
    assert wrong(noted, {"call-0": 1}) == told
    noted.answer(7, turn_id="never-sent")
    assert wrong(noted, {"call-0": 1, "call-7": 1})[0] == "2 answers are too many for the events"


def test_failed_turns_are_told(noted):
    noted.send(0)
    noted.answer(0, status="failed")
    assert wrong(noted, {"call-0": 1}) == ["1 turns failed"]


def test_the_benchmark_counts_from_the_producers_timestamp_and_after_the_warm_up(noted):
    noted.send(*range(40))  # ten a second for four seconds
    for n in range(40):
        noted.answer(n, after_ms=3000 if n < 10 else 500)
    figures = bench_kafka.figures(noted.looked(), warm_up_s=1, seconds=4)
    assert figures["read_ms"] == {"p50": 500.0, "p90": 500.0, "p99": 500.0}
    assert figures["floor_p50_ms"] == 2 * 112 + 30
    assert figures["read_above_floor_ms"]["p50"] == 500.0 - 254
    # Those of the warm-up are read from 3.0 s to 3.9 s, the others from 1.5 s to 4.4 s: 4.0 s is the end.
    assert figures["turns_per_s"] == round((10 + 25) / 3, 1)
    assert figures["turns_per_s_to_the_end"] == round(40 / 4.4, 1)
    # At 2 s: all of the first second, and those of 1.5 s to 1.9 s; at 4 s: those of 3.5 s to 3.9 s.
    assert (figures["open_at_half"], figures["open_at_end"]) == (10 + 5, 5)
    assert (figures["events"], figures["outcomes"], figures["failed"]) == (40, 40, 0)

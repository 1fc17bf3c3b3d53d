"""Outcomes that a host sends itself: durable first, then sent, then noted once the sink has them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from hermes_spark.errors import StateError
from hermes_spark.host.early import EarlyOutcomes
from hermes_spark.settings import Settings
from hermes_spark.state.records import Outcome, PublishedEarly
from hosting import HostedShard, ScriptedModel, ScriptedTools, one_call_then_answer

SHARD = 5


class ScriptedSink:
    """Keeps what is sent; the test confirms."""

    def __init__(self, hosted: Callable[[], HostedShard]) -> None:
        self.hosted = hosted
        self.sent: list[tuple[int, int, Outcome, Callable[[], None]]] = []
        self.closed = False

    def send(self, shard: int, lsn: int, outcome: Outcome, confirmed: Callable[[], None]) -> None:
        durable = [record for record in self.hosted().journal() if isinstance(record, Outcome)]
        assert outcome in durable, "sent before it is durable"
        self.sent.append((shard, lsn, outcome, confirmed))

    def close(self) -> None:
        self.closed = True


class Stage:
    def __init__(self, root: Path) -> None:
        self.hosted = HostedShard(root, 1, ScriptedModel(one_call_then_answer), ScriptedTools(), Settings())
        self.sink = ScriptedSink(lambda: self.hosted)
        self.early = EarlyOutcomes(self.sink)
        self.hosted.on_outcome = lambda outcome: self.early.ended(self.hosted.shard, SHARD, outcome)

    def notes(self) -> list[tuple[int, ...]]:
        return [record.lsns for record in self.hosted.journal() if isinstance(record, PublishedEarly)]

    def lsns(self) -> list[int]:
        """Where the outcomes lie in the journal, whose records are numbered from 1."""
        return [lsn for lsn, record in enumerate(self.hosted.journal(), 1) if isinstance(record, Outcome)]


@pytest.fixture
async def stage(tmp_path: Path):
    stage = Stage(tmp_path)
    yield stage
    await stage.early.close()
    await stage.hosted.crash()


async def test_an_outcome_is_sent_when_durable_and_noted_when_confirmed(stage: Stage) -> None:
    for number in range(3):
        stage.hosted.say(f"s{number}", "hello", number)
    await stage.hosted.until(lambda: len(stage.sink.sent) == 3)
    assert [(shard, lsn) for shard, lsn, _, _ in stage.sink.sent] == [(SHARD, lsn) for lsn in stage.lsns()]
    assert stage.notes() == []
    for _, _, _, confirmed in stage.sink.sent[:2]:
        await asyncio.to_thread(confirmed)
    await stage.hosted.until(lambda: stage.notes() != [])
    assert stage.notes() == [tuple(stage.lsns()[:2])]


async def test_a_barrier_takes_the_notes_along(stage: Stage) -> None:
    stage.hosted.say("s", "hello", 0)
    await stage.hosted.until(lambda: len(stage.sink.sent) == 1)
    await asyncio.to_thread(stage.sink.sent[0][3])
    await asyncio.sleep(0)
    stage.early.note()
    await stage.hosted.shard.durable()
    assert stage.notes() == [tuple(stage.lsns())]
    stage.early.note()
    await stage.hosted.shard.durable()
    assert len(stage.notes()) == 1


async def test_nothing_is_noted_for_a_shard_that_has_failed(stage: Stage) -> None:
    stage.hosted.say("s", "hello", 0)
    await stage.hosted.until(lambda: len(stage.sink.sent) == 1)
    stage.hosted.shard.fail(StateError("the disk is gone"))
    await asyncio.to_thread(stage.sink.sent[0][3])
    await asyncio.sleep(0)
    stage.early.note()
    assert stage.notes() == []

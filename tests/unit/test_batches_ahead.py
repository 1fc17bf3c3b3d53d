"""Batches whose events hosts may have read already: handed over only where something is missing, and ended with the job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hermes_spark.host.wire import Barrier
from hermes_spark.settings import Settings, SinkSettings, SourceSettings
from hermes_spark.state.storage import Storage
from hermes_spark.streaming import orchestrator
from hermes_spark.streaming.commit import CommitLog
from hermes_spark.streaming.handoff import Handed
from hermes_spark.streaming.orchestrator import BatchParts, Orchestrator
from hermes_spark.streaming.ownership import Ownership
from hermes_spark.streaming.publishing import Publisher

SETTINGS = Settings(source=SourceSettings(kind="kafka", topic="t"), sink=SinkSettings(publish_interval_ms=0))


class Fleet:
    """Hosts without shards; what a barrier finds is up to the test."""

    open_turns = 0

    def ownership(self) -> Ownership:
        return Ownership("", {}, {})

    def barrier(self, timeout_s: float, batch: int | None = None) -> list[Barrier]:
        return [Barrier((), self.open_turns, 0)]

    def committed(self, view: object) -> None:
        pass


class Ahead:
    """Hosts have read up to `covered`."""

    def __init__(self) -> None:
        self.covered = 0
        self.taken = 0
        self.stopped = False
        self.told: list[dict[str, int]] = []

    def cover(self, ownership, ends, spans):
        return all(span.stop <= self.covered for span in spans.values())

    def committed(self, ownership, ends):
        self.told.append(dict(ends))

    def stop(self, ownership):
        self.stopped = True


class Pruner:
    def committed(self, commit: object) -> None:
        pass


class Stage:
    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.checkpoint = Storage.at(str(root / "checkpoint"))
        self.commits = CommitLog(Storage.at(str(root / "state")))
        self.ahead = Ahead()
        self.handed: list[dict[str, tuple[int, int]]] = []
        monkeypatch.setattr(orchestrator, "hand_over", self._hand_over)
        parts = BatchParts(
            settings=SETTINGS,
            epoch=1,
            look=lambda: None,
            fleet=Fleet(),
            commits=self.commits,
            checkpoint=self.checkpoint,
            settle=lambda batch: None,
            publisher=Publisher(SETTINGS, "q", {}, []),
            tasks=1,
            batch_log=None,
            pruner=Pruner(),
            ahead=self.ahead,
        )
        self.orchestrator = Orchestrator(parts)

    def _hand_over(self, frame, plan, fleet, tasks):
        self.handed.append({name: (span.start, span.stop) for name, span in plan.spans.items()})
        return Handed(taken=1)

    def batch(self, number: int, end: int) -> None:
        self.checkpoint.put(f"offsets/{number}", f"v1\n{{}}\n{json.dumps({'t': {'0': end}})}\n".encode())
        self.orchestrator(Frame(), number)


class Frame:
    """A data frame whose session only hears of a description."""

    class sparkSession:
        class sparkContext:
            setJobDescription = staticmethod(lambda text: None)


@pytest.fixture
def stage(tmp_path, monkeypatch):
    stage = Stage(tmp_path, monkeypatch)
    stage.batch(0, 5)
    assert stage.handed == [{"t-0": (0, 5)}]
    return stage


def test_a_batch_that_hosts_have_taken_runs_no_hand_off(stage):
    stage.ahead.covered = 9
    stage.batch(1, 9)
    assert len(stage.handed) == 1
    commit = stage.commits.of(1)
    assert (commit.ends, commit.taken, commit.skipped) == ({"t-0": 9}, 0, 4)
    assert stage.ahead.told == [{"t-0": 5}, {"t-0": 9}]


def test_a_batch_of_which_something_is_missing_is_handed_over(stage):
    stage.ahead.covered = 8
    stage.batch(1, 9)
    assert stage.handed[1:] == [{"t-0": (5, 9)}]
    assert stage.commits.of(1).ends == {"t-0": 9}


@pytest.mark.parametrize("end", [5, 9], ids=["without events", "with events"])
def test_a_job_that_ends_reads_nothing_ahead_any_more(stage, end):
    stage.orchestrator.drain()
    stage.batch(1, end)
    assert stage.ahead.stopped
    assert stage.orchestrator.drained.is_set()


def test_asked_to_end_during_the_hand_off_it_reads_nothing_ahead_any_more(stage, monkeypatch):
    def meanwhile(frame, plan, fleet, tasks):
        stage.orchestrator.drain()
        return Handed(taken=1)

    monkeypatch.setattr(orchestrator, "hand_over", meanwhile)
    stage.batch(1, 9)
    assert stage.ahead.stopped
    assert stage.orchestrator.drained.is_set()

"""What a publishing commit sends, by its record alone: everything once to most sinks; to Kafka what no host has sent."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from hermes_spark.settings import KafkaSinkSettings, Settings, SinkSettings
from hermes_spark.state.records import Position, PublishedEarly, Record
from hermes_spark.streaming.commit import Commit
from hermes_spark.streaming.publishing import Publisher
from unit.test_publish_tables import REJECTED, outcome

SHARD = 2


class Journal:
    """Records of one shard; positions are their numbers from 1."""

    def __init__(self, *records: Record) -> None:
        self.records = list(records)

    def check(self, position: Position, end: Position) -> None:
        raise AssertionError("not asked for")

    def read(self, after: Position, upto: Position | None) -> Iterator[tuple[int, Record]]:
        assert upto is not None
        yield from ((lsn, r) for lsn, r in enumerate(self.records, 1) if after.lsn < lsn <= upto.lsn)


class Kept:
    """A sink of either kind that keeps what it gets."""

    def __init__(self) -> None:
        self.all: list[int] = []
        self.outcomes: list[int] = []
        self.letters = 0

    def publish(self, *given: object) -> None:
        if isinstance(given[0], int):
            self.all += given[1]["outcomes"]["lsn"].to_pylist()
            return
        tables, unsettled = given
        assert isinstance(unsettled, pa.Table)
        self.outcomes += unsettled["lsn"].to_pylist()
        self.letters += len(tables["dead_letters"])


def at(lsn: int) -> dict[int, Position]:
    return {SHARD: Position(lsn)}


class Life:
    """Commits over a journal, each of which publishes unless told otherwise."""

    def __init__(self, *, early: bool) -> None:
        self.journal = Journal()
        self.sink, self.kafka = Kept(), Kept()
        self.last: Commit | None = None
        self.switch(early=early)

    def switch(self, *, early: bool) -> None:
        """Start the job again, perhaps in the other mode."""
        mode = KafkaSinkSettings(outcomes_topic="o", mode="early" if early else "committed")
        settings = Settings(sink=SinkSettings(kafka=mode, publish_interval_ms=0))
        self.publisher = Publisher(settings, "q", {SHARD: self.journal}, [self.sink], self.kafka)

    def batch(self, *records: Record, publish: bool = True) -> list[int]:
        """Append records, commit, and return which outcomes went to Kafka."""
        self.journal.records += records
        last = self.last
        self.last = Commit(
            batch=0 if last is None else last.batch + 1,
            epoch=1,
            source="",
            ends={},
            positions=at(len(self.journal.records)),
            published={} if last is None else last.rest(),
            publish=publish,
            taken=0,
            skipped=0,
            time_ms=0,
            settled={} if last is None else last.settles(),
            early=self.publisher.early,
        )
        return self.replay() if publish else []

    def replay(self) -> list[int]:
        before = len(self.kafka.outcomes)
        self.publisher.publish(self.last)
        return self.kafka.outcomes[before:]


def noted(*lsns: int) -> PublishedEarly:
    return PublishedEarly(lsns, 0)


def test_committed_sends_everything_with_its_batch():
    life = Life(early=False)
    assert life.batch(outcome(), REJECTED, outcome()) == [1, 3]
    assert life.batch(outcome(), publish=False) == []
    assert life.batch(outcome()) == [4, 5]
    assert life.batch() == []
    assert life.sink.all == [1, 3, 4, 5]
    assert life.kafka.letters == 1


def test_early_leaves_the_newest_to_the_hosts_and_sends_what_they_have_not_noted():
    life = Life(early=True)
    assert life.batch(outcome(), outcome(), noted(1)) == []
    assert life.batch(outcome(), noted(4)) == [2]
    assert life.batch() == []
    assert life.batch() == []
    assert life.sink.all == [1, 2, 4]


def test_a_note_that_comes_with_the_next_commit_is_in_time():
    life = Life(early=True)
    assert life.batch(outcome()) == []
    assert life.batch(noted(1)) == []
    assert life.batch() == []


def test_early_counts_publishing_commits_only():
    life = Life(early=True)
    assert life.batch(outcome()) == []
    life.batch(outcome(), publish=False)
    assert life.batch(noted(1, 2), outcome()) == []
    life.batch(publish=False)
    assert life.batch() == [4]


def test_a_replay_sends_the_same_again():
    life = Life(early=True)
    life.batch(outcome(), outcome(), noted(1))
    first = life.batch(outcome())
    assert life.replay() == first == [2]


def test_after_a_change_to_committed_nothing_is_left_out_and_little_sent_again():
    life = Life(early=True)
    life.batch(outcome(), outcome(), noted(1))
    life.switch(early=False)
    assert life.batch(outcome()) == [2, 4]
    assert life.batch(outcome()) == [5]


def test_after_a_change_to_early_the_last_batch_of_before_is_not_sent_again():
    life = Life(early=False)
    assert life.batch(outcome()) == [1]
    life.switch(early=True)
    assert life.batch(outcome()) == []
    assert life.batch() == [2]


def test_a_commit_of_an_older_version_counts_as_settled_where_it_published():
    life = Life(early=False)
    life.batch(outcome())
    assert life.last is not None
    life.last = Commit(**{name: getattr(life.last, name) for name in life.last.__struct_fields__} | {"settled": None})
    life.switch(early=True)
    assert life.batch(outcome()) == []
    assert life.batch() == [2]


@pytest.mark.parametrize(("seconds", "due"), [(0.85, False), (0.95, True), (5.0, True)])
def test_a_batch_is_due_a_little_before_its_interval(seconds, due):
    now = 100.0
    publisher = Publisher(Settings(sink=SinkSettings(publish_interval_ms=1000)), "q", {}, [])
    assert publisher.is_due(lambda: now)
    assert publisher.is_due(lambda: now + seconds) is due

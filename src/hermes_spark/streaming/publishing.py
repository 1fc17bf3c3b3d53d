"""What a commit publishes, and when: always from what is stored, so that a replay publishes the same rows.

Everything between two publishing commits goes to the sinks with the second. Only of the outcomes for Kafka the newest may be
left to the hosts (`sink.kafka.mode=early`): those send an outcome when it is durable and note in the journal that the brokers
have it, and the publishing commit after the next sends the ones without a note again (`Commit.settled`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa

from hermes_spark.settings import Settings
from hermes_spark.state.journal_store import RecordReader
from hermes_spark.state.records import Outcome, Position, PublishedEarly
from hermes_spark.streaming.commit import Commit
from hermes_spark.streaming.kafka_sink import KafkaSink
from hermes_spark.streaming.publish import Sink
from hermes_spark.streaming.tables import PlacedRecord, build_tables

SLACK = 0.1
"""Part of the interval by which a batch may be early, so that triggers of the same interval do not miss every other time."""


class Publisher:
    """Publishes commits. Used by the one thread that runs batches."""

    def __init__(
        self,
        settings: Settings,
        query_id: str,
        readers: Mapping[int, RecordReader],
        sinks: Sequence[Sink],
        kafka: KafkaSink | None = None,
    ) -> None:
        """`readers`: of the journals, by shard."""
        self._interval_s = settings.sink.publish_interval_ms / 1000
        self._query_id = query_id
        self._readers = readers
        self._sinks = sinks
        self._kafka = kafka
        self._chosen_at = -self._interval_s
        self.early = kafka is not None and settings.sink.kafka.mode == "early"
        """Whether hosts send outcomes themselves."""

    def is_due(self, clock: Callable[[], float] = time.monotonic) -> bool:
        """Whether the batch that asks should publish; takes a yes as done."""
        now = clock()
        if now - self._chosen_at < self._interval_s * (1 - SLACK):
            return False
        self._chosen_at = now
        return True

    def publish(self, commit: Commit) -> None:
        """Publish what a commit says. Raises what the sinks raise."""
        if not self._sinks and self._kafka is None:
            return
        tables = build_tables(self._query_id, commit.batch, self._between(commit.published, commit.positions))
        for sink in self._sinks:
            sink.publish(commit.batch, tables)
        if self._kafka is not None:
            self._kafka.publish(tables, self._unsettled(commit, tables["outcomes"]))

    def _unsettled(self, commit: Commit, newest: pa.Table) -> pa.Table:
        """The outcomes that Kafka may lack and no host is about to send. `newest`: those since the last publishing commit."""
        begin, end = commit.settled, commit.settles()
        if begin is None or (begin == commit.published and end == commit.positions and not commit.early):
            return newest
        records = list(self._between(begin, commit.positions))
        sent = {
            (shard, lsn) for shard, _, record in records if isinstance(record, PublishedEarly) for lsn in record.lsns
        }
        outcomes = [
            (shard, lsn, record)
            for shard, lsn, record in records
            if isinstance(record, Outcome) and lsn <= end.get(shard, Position()).lsn and (shard, lsn) not in sent
        ]
        return build_tables(self._query_id, commit.batch, outcomes)["outcomes"]

    def _between(self, after: dict[int, Position], upto: dict[int, Position]) -> Iterator[PlacedRecord]:
        for shard, end in sorted(upto.items()):
            for lsn, record in self._readers[shard].read(after.get(shard, Position()), end):
                yield shard, lsn, record

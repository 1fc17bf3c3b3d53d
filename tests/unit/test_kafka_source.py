"""The source's rules that need no broker: ranges of a batch, rows of records, what a failure of the query means."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import PySparkException

from hermes_spark.errors import CheckpointMismatch, KafkaError, StateError
from hermes_spark.events import Coordinates, InvalidEvent, Row, parse_event
from hermes_spark.kafka.topics import TopicState
from hermes_spark.settings import SourceSettings
from hermes_spark.streaming.commit import Origin
from hermes_spark.streaming.kafka_source import KafkaTopic
from hermes_spark.streaming.rows import decode
from hermes_spark.streaming.source import ranges

OFFSETS = st.dictionaries(st.integers(0, 40), st.integers(0, 2**40), max_size=6)


@given(OFFSETS, OFFSETS)
def test_a_range_per_partition_of_the_end_that_joins_the_batch_before(start, more):
    end = {number: start.get(number, 0) + more.get(number, 0) for number in start.keys() | more.keys()}
    found = ranges("kafka", json.dumps({"a-b": start}), json.dumps({"a-b": end}))
    assert found == {f"a-b-{number}": (start.get(number, 0), stop) for number, stop in end.items()}


def test_a_value_is_what_counts_and_none_is_a_tombstone():
    intake = [("t-0", 4, 99, b"{}"), ("t-0", 5, 99, bytearray(b"x")), ("t-0", 6, 99, None)]
    rows = list(decode(intake, SourceSettings(kind="kafka", topic="t")))
    assert rows[:2] == [Row(Coordinates("t-0", 4), 99, b"{}"), Row(Coordinates("t-0", 5), 99, b"x")]
    with pytest.raises(InvalidEvent, match="tombstone"):
        parse_event(rows[2], max_bytes=100)


class Brokers:
    """What `Topics` would say."""

    def __init__(self, state: TopicState | KafkaError | None) -> None:
        self.answer = state

    def state(self, topic: str) -> TopicState | None:
        if isinstance(self.answer, KafkaError):
            raise self.answer
        return self.answer

    def offsets(self, topic, partitions, which, isolation_level):
        raise KafkaError("away")


def failing(state: TopicState | KafkaError | None, text: str) -> None:
    topic = KafkaTopic(Brokers(state), Origin("t", "id-1", {0: 0}), 1, "read_committed")
    with topic.explaining():
        raise PySparkException(text)


@pytest.mark.parametrize("state", [TopicState("id-1", 1), KafkaError("away")])
def test_lost_records_are_told_in_a_sentence(state):
    with pytest.raises(StateError, match="topic t that were not read yet are gone"):
        failing(state, "Job aborted: [KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] Some data may have been lost")
    with pytest.raises(PySparkException, match="something else"):
        failing(state, "something else")


def test_a_topic_made_again_is_the_better_reason():
    with pytest.raises(CheckpointMismatch, match="was id-1 and is id-2"):
        failing(TopicState("id-2", 1), "Some data may have been missed")
    with pytest.raises(CheckpointMismatch, match="was deleted"):
        failing(None, "Some data may have been missed")


def test_a_lag_that_is_not_known_stops_nothing():
    topic = KafkaTopic(Brokers(KafkaError("away")), Origin("t", "id-1", {0: 0}), 1, "read_committed")
    assert topic.lag({}) is None

"""What the job finds out about its topics before it starts and between batches, on a real broker and without Spark."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from hermes_spark.errors import CheckpointMismatch, KafkaError, StartError
from hermes_spark.kafka import topics as asking
from hermes_spark.kafka.confirmed import ConfirmedProducer, Message
from hermes_spark.kafka.connection import client_config
from hermes_spark.settings import KafkaSettings, KafkaSinkSettings, Settings, SinkSettings, SourceSettings
from hermes_spark.state.storage import Storage
from hermes_spark.streaming.commit import CommitLog, Origin
from hermes_spark.streaming.kafka_sink import KafkaSink
from hermes_spark.streaming.kafka_source import KafkaTopic
from kafka_broker import KafkaBroker
from kafka_secure import LISTENER
from kafka_topics import Topics
from stack import free_ports


@pytest.fixture
def topics(kafka: KafkaBroker) -> Topics:
    return Topics(kafka.bootstrap)


@pytest.fixture
def commits(tmp_path: Path) -> CommitLog:
    return CommitLog(Storage.at(str(tmp_path)))


def reading(bootstrap: str, topic: str, *, starting_offsets="earliest", **sink) -> Settings:
    return Settings(
        kafka=KafkaSettings(bootstrap_servers=bootstrap),
        source=SourceSettings(kind="kafka", topic=topic, starting_offsets=starting_offsets),
        sink=SinkSettings(kafka=KafkaSinkSettings(**sink)),
    )


def test_where_to_begin_is_decided_once(topics, commits):
    name = topics.create(partitions=2)
    topics.send(name, b"a", b"b", b"c")
    first = KafkaTopic.open(reading(topics.bootstrap, name, starting_offsets="latest"), commits)
    assert first.first_offsets == f'{{"{name}":{{"0":3,"1":0}}}}'
    assert first.first_ends == {f"{name}-0": 3, f"{name}-1": 0}
    topics.send(name, b"d")
    topics.add_partitions(name, 3)
    again = KafkaTopic.open(reading(topics.bootstrap, name, starting_offsets="latest"), commits)
    assert again.first_offsets == f'{{"{name}":{{"0":3,"1":0,"2":0}}}}'


def test_earliest_is_where_the_log_begins(topics, commits):
    name = topics.create()
    topics.send(name, b"a", b"b", b"c")
    topics.remove_records(name, 2)
    assert KafkaTopic.open(reading(topics.bootstrap, name), commits).first_offsets == f'{{"{name}":{{"0":2}}}}'


def test_the_lag_counts_what_is_behind_the_commit(topics, commits):
    name = topics.create(partitions=2)
    topic = KafkaTopic.open(reading(topics.bootstrap, name), commits)
    topics.send(name, b"a", b"b", b"c")
    topics.send(name, b"d", partition=1)
    now = [0.0]
    assert topic.lag({f"{name}-0": 1}, lambda: now[0]) == 3
    assert topic.lag({f"{name}-0": 3, f"{name}-1": 1}, lambda: now[0]) == 3, "asked again within the same second"
    now[0] += 1
    assert topic.lag({f"{name}-0": 3, f"{name}-1": 1}, lambda: now[0]) == 0


def test_a_topic_made_again_is_another_topic(topics, commits):
    name = topics.create()
    settings = reading(topics.bootstrap, name)
    topic = KafkaTopic.open(settings, commits)
    topic.check()
    topics.delete(name)
    with pytest.raises(CheckpointMismatch, match="was deleted; the job cannot go on"):
        topic.check()
    with pytest.raises(StartError, match=f"source.topic {name} does not exist"):
        KafkaTopic.open(settings, commits)
    topics.create(name)
    for look in (topic.check, lambda: KafkaTopic.open(settings, commits)):
        with pytest.raises(CheckpointMismatch, match=r"deleted and made again .* start on a new checkpoint"):
            look()


def test_another_topic_wants_another_checkpoint(topics, commits):
    name, other = topics.create(), topics.create()
    KafkaTopic.open(reading(topics.bootstrap, name), commits)
    with pytest.raises(CheckpointMismatch, match=f"reads topic {name} and source.topic is {other}"):
        KafkaTopic.open(reading(topics.bootstrap, other), commits)


def test_the_first_decision_counts(commits):
    first = commits.put_origin(Origin("t", "id", {0: 4}))
    assert commits.put_origin(Origin("t", "id", {0: 9})) == first == commits.origin()


def test_no_broker_and_no_topic_are_told_at_the_start(topics, commits, monkeypatch):
    monkeypatch.setattr(asking, "ANSWER_S", 1.0)
    nobody = f"127.0.0.1:{free_ports(1)[0]}"
    with pytest.raises(StartError, match=f"Kafka at {nobody} did not answer .*kafka.bootstrap_servers"):
        KafkaTopic.open(reading(nobody, "t"), commits)
    with pytest.raises(StartError, match=f"Kafka at {nobody}"):
        KafkaSink.open(reading(nobody, "t", outcomes_topic="o"))
    there = topics.create()
    with pytest.raises(StartError, match=r"sink.kafka.calls_topic nowhere not found .*create every topic"):
        KafkaSink.open(reading(topics.bootstrap, there, outcomes_topic=there, calls_topic="nowhere"))
    assert KafkaSink.open(reading(topics.bootstrap, there)) is None


def test_who_is_refused_is_told_why_without_the_password(topics, kafka, kafka_secured, monkeypatch):
    monkeypatch.setattr(asking, "ANSWER_S", 2.0)
    settings = KafkaSettings(**kafka_secured.settings(kafka.address(LISTENER)))
    name = topics.create(partitions=2)
    assert asking.Topics(client_config(settings, kafka_secured.environment)).state(name).partitions == 2
    wrong = {**kafka_secured.environment, "KAFKA_PASSWORD": "wrong-one"}
    with pytest.raises(KafkaError, match=r"[Aa]uthentication failed") as caught:
        asking.Topics(client_config(settings, wrong)).state(name)
    assert "wrong-one" not in str(caught.value)
    nobody = msgspec.structs.replace(settings, certificate_file="", key_file="")
    with pytest.raises(KafkaError, match=r"alert bad certificate|certificate required"):
        asking.Topics(client_config(nobody, kafka_secured.environment)).state(name)
    stranger = msgspec.structs.replace(settings, ca_file=kafka_secured.other_ca_file)
    with pytest.raises(KafkaError, match=r"certificate verify failed|broker certificate could not be verified"):
        asking.Topics(client_config(stranger, kafka_secured.environment)).state(name)


class TestConfirmedProducer:
    def test_all_are_there_when_it_returns(self, topics):
        name = topics.create()
        producer = ConfirmedProducer({"bootstrap.servers": topics.bootstrap})
        producer.send(Message(name, b"k", b"%d" % n, [("turn_id", b"t")]) for n in range(2_000))
        found = topics.read(name)
        assert [record.value() for record in found] == [b"%d" % n for n in range(2_000)]
        assert (found[0].key(), found[0].headers()) == (b"k", [("turn_id", b"t")])

    def test_a_refused_record_fails_all(self, topics):
        name = topics.create(**{"max.message.bytes": "1000"})
        producer = ConfirmedProducer({"bootstrap.servers": topics.bootstrap})
        with pytest.raises(KafkaError, match=f"a record for topic {name} was not taken: .*[Tt]oo large"):
            producer.send([Message(name, None, b"a", []), Message(name, None, b"b" * 5_000, [])])

    def test_no_confirmation_in_time_is_an_error(self):
        producer = ConfirmedProducer({"bootstrap.servers": f"127.0.0.1:{free_ports(1)[0]}"}, delivery_s=1.5)
        with pytest.raises(KafkaError, match=r"not taken|not confirmed in 1.5 s"):
            producer.send([Message("t", None, b"a", [])])

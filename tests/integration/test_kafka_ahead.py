"""What run-ahead needs of Kafka, on a real broker and without Spark: reading from anywhere, sending without waiting."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Sequence

import pytest
from confluent_kafka import KafkaException, Producer

from hermes_spark.events import Row
from hermes_spark.kafka import early as sending
from hermes_spark.kafka.confirmed import Message
from hermes_spark.kafka.connection import client_config
from hermes_spark.kafka.early import EarlyProducer
from hermes_spark.kafka.reader import KafkaReader
from hermes_spark.settings import KafkaSettings
from kafka_broker import KafkaBroker
from kafka_topics import Topics

WITHIN_S = 30.0


@pytest.fixture
def topics(kafka: KafkaBroker) -> Topics:
    return Topics(kafka.bootstrap)


def config(topics: Topics) -> dict[str, str]:
    return client_config(KafkaSettings(bootstrap_servers=topics.bootstrap))


class Reading:
    """A reader of one partition, and what it has delivered."""

    def __init__(self, topics: Topics, topic: str) -> None:
        self.partition = f"{topic}-0"
        self.delivered: queue.Queue[tuple[tuple[int, int], int, list[int]]] = queue.Queue()
        self.reader = KafkaReader(config(topics), topic, "read_committed", self._deliver)

    def _deliver(self, partition: str, offsets: tuple[int, int], generation: int, rows: Sequence[Row]) -> None:
        assert partition == self.partition
        self.delivered.put((offsets, generation, [row.coordinates.offset for row in rows]))

    def read(self, offset: int, generation: int) -> None:
        self.reader.read(self.partition, offset, generation)

    def upto(self, stop: int, generation: int) -> tuple[int, list[int]]:
        """Where the reading of a generation began, and its rows, once it has come to `stop`; nothing of it may be missing."""
        rows: list[int] = []
        ends: list[int] = []
        deadline = time.monotonic() + WITHIN_S
        while not ends or ends[-1] < stop:
            (start, end), of, some = self.delivered.get(timeout=max(0.01, deadline - time.monotonic()))
            if of != generation:
                assert of < generation
                continue
            ends = [*(ends or [start]), end]
            assert ends[-2] == start, "a part was left out"
            rows += some
        return ends[0], rows


@pytest.fixture
def reading(topics: Topics):
    made = []

    def make(topic: str) -> Reading:
        made.append(Reading(topics, topic))
        return made[-1]

    yield make
    for one in made:
        one.reader.close()


def test_it_reads_from_anywhere_and_again_while_more_comes(topics, reading):
    topic = topics.create()
    topics.send(topic, *(b"x" * 100 for _ in range(500)))
    one = reading(topic)
    one.read(40, 1)
    assert one.upto(500, 1) == (40, list(range(40, 500)))
    more = threading.Thread(target=lambda: topics.send(topic, *(b"y" * 100 for _ in range(2000))))
    more.start()
    for generation, offset in enumerate((450, 10, 499, 0), 2):
        one.read(offset, generation)
        assert one.upto(500, generation)[0] == offset
    more.join()
    one.read(7, 9)
    assert one.upto(2500, 9) == (7, list(range(7, 2500)))


def test_a_pause_ends_with_the_next_reading(topics, reading):
    topic = topics.create()
    topics.send(topic, *(b"x" for _ in range(10)))
    one = reading(topic)
    one.read(0, 1)
    one.upto(10, 1)
    one.reader.hold(one.partition, held=True)
    one.read(5, 2)
    assert one.upto(10, 2) == (5, list(range(5, 10)))


def test_a_pause_holds_until_it_is_ended(topics, reading):
    topic = topics.create()
    topics.send(topic, b"x")
    one = reading(topic)
    one.read(0, 1)
    one.upto(1, 1)
    one.reader.hold(one.partition, held=True)
    held = threading.Event()
    one.reader._orders.put(held.set)  # follows the orders before it, on the reader's thread
    assert held.wait(WITHIN_S)
    topics.send(topic, b"y")
    with pytest.raises(queue.Empty):
        one.delivered.get(timeout=1.0)
    one.reader.hold(one.partition, held=False)
    assert one.upto(2, 1) == (1, [1])


def test_marks_of_transactions_are_passed_and_what_was_given_up_is_not_seen(topics, reading):
    topic = topics.create()
    producer = Producer({"bootstrap.servers": topics.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        producer.produce(topic, json.dumps({}).encode(), partition=0)
        producer.flush(30)
        end()
    one = reading(topic)
    one.read(0, 1)
    assert one.upto(4, 1) == (0, [0])


def test_a_partition_whose_offset_is_gone_is_left_to_the_batches(topics, reading):
    topic = topics.create()
    topics.send(topic, *(b"x" for _ in range(10)))
    topics.remove_records(topic, 6)
    one = reading(topic)
    one.read(2, 1)
    with pytest.raises(queue.Empty):
        one.delivered.get(timeout=2.0)
    one.read(6, 2)
    assert one.upto(10, 2) == (6, [6, 7, 8, 9])


def confirm(producer: EarlyProducer, topic: str, number: int) -> Callable[[], bool]:
    done = threading.Event()
    producer.send(Message(topic, b"k", str(number).encode(), []), done.set)
    return lambda: done.wait(WITHIN_S)


def test_what_was_sent_is_confirmed_and_there(topics):
    topic = topics.create()
    producer = EarlyProducer(config(topics))
    assert all([wait() for wait in [confirm(producer, topic, number) for number in range(50)]])
    producer.close()
    assert [record.value() for record in topics.read(topic)] == [str(number).encode() for number in range(50)]


def test_a_producer_that_cannot_go_on_is_replaced(topics, monkeypatch):
    class Dead:
        """librdkafka's producer after a fatal error: polling raises."""

        def poll(self, timeout):
            raise KafkaException(sending.Code(sending.Code._FATAL, "made up", fatal=True))

        def purge(self):
            pass

    topic = topics.create()
    producer = EarlyProducer(config(topics))
    alive, producer._producer = producer._producer, Dead()
    deadline = time.monotonic() + WITHIN_S
    while isinstance(producer._producer, Dead) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert confirm(producer, topic, 1)()
    producer.close()
    alive.flush(1)

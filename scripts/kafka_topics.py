"""Topics of a real broker for tests, chaos and demo: made, filled and read."""

from __future__ import annotations

import json
import time
import uuid
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec

PATIENCE_S = 60.0


class Topics:
    """Makes, fills and reads topics of one broker; every wait ends after `PATIENCE_S`."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._admin = AdminClient({"bootstrap.servers": bootstrap})

    def create(self, name: str = "", partitions: int = 1, **config: Any) -> str:
        """Make a topic and return its name, a fresh one unless given."""
        name = name or f"t-{uuid.uuid4().hex[:8]}"
        sizes = {"max.message.bytes": "20000000", **config}
        self._admin.create_topics([NewTopic(name, partitions, 1, config=sizes)])[name].result(PATIENCE_S)
        self._await(name, partitions)
        return name

    def delete(self, name: str) -> None:
        self._admin.delete_topics([name])[name].result(PATIENCE_S)
        deadline = time.monotonic() + PATIENCE_S
        while name in self._admin.list_topics(timeout=PATIENCE_S).topics:
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def add_partitions(self, name: str, total: int) -> None:
        self._admin.create_partitions([NewPartitions(name, total)])[name].result(PATIENCE_S)
        self._await(name, total)

    def remove_records(self, name: str, before: int, partition: int = 0) -> None:
        """What retention does: the log begins at `before` then."""
        place = TopicPartition(name, partition, before)
        self._admin.delete_records([place])[place].result(PATIENCE_S)

    def _await(self, name: str, partitions: int) -> None:
        """Return when every partition answers: a broker hears a moment later of what the controller has made."""
        latest = {TopicPartition(name, number): OffsetSpec.latest() for number in range(partitions)}
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                described = self._admin.describe_topics(TopicCollection([name]))[name].result(PATIENCE_S)
                if len(described.partitions) == partitions:
                    for answer in self._admin.list_offsets(latest).values():
                        answer.result(PATIENCE_S)
                    return
            except KafkaException:
                pass
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def send(self, name: str, *values: dict[str, Any] | bytes | None, partition: int = 0, **client: Any) -> None:
        """Send records, keyed by their session if they have one; `client` are properties of the producer."""
        config = {name.replace("_", "."): value for name, value in client.items()}
        sizes = {"message.max.bytes": 20_000_000, "linger.ms": 5}
        producer = Producer({"bootstrap.servers": self.bootstrap, **sizes, **config})
        failed: list[Any] = []
        for value in values:
            data = json.dumps(value).encode() if isinstance(value, dict) else value
            key = value["session_id"] if isinstance(value, dict) else None
            producer.produce(name, data, key, partition, on_delivery=lambda error, _: error and failed.append(error))
        assert producer.flush(PATIENCE_S) == 0
        assert not failed

    def read(self, name: str, partitions: int = 1) -> list[Message]:
        """All records that are there now."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "test", "enable.auto.commit": False})
        try:
            ends = [consumer.get_watermark_offsets(TopicPartition(name, n), PATIENCE_S)[1] for n in range(partitions)]
            consumer.assign([TopicPartition(name, n, 0) for n in range(partitions)])
            found: list[Message] = []
            deadline = time.monotonic() + PATIENCE_S
            while len(found) < sum(ends):
                assert time.monotonic() < deadline, f"{len(found)} of {sum(ends)} records of {name} came"
                record = consumer.poll(1.0)
                if record is not None and record.error() is None:
                    found.append(record)
            return found
        finally:
            consumer.close()

    def rows(self, name: str) -> list[dict[str, Any]]:
        """The values of all records that are there now."""
        return [json.loads(record.value()) for record in self.read(name)]

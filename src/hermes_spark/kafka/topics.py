"""What the brokers say of topics: their ids, partitions and offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any, Literal, NamedTuple, TypeVar

from confluent_kafka import IsolationLevel, KafkaException, TopicCollection, TopicPartition
from confluent_kafka import KafkaError as Code
from confluent_kafka.admin import AdminClient, OffsetSpec

from hermes_spark.errors import KafkaError

T = TypeVar("T")

ANSWER_S = 10.0
"""How long an answer may take. A broker that restarts is back sooner; whoever can wait longer asks again."""

_ISOLATION = {
    "read_committed": IsolationLevel.READ_COMMITTED,
    "read_uncommitted": IsolationLevel.READ_UNCOMMITTED,
}


class TopicState(NamedTuple):
    """A topic as it is now."""

    id: str
    """Of this very topic: one that is deleted and made again under the same name has another."""
    partitions: int


class Topics:
    """Asks the brokers. One connection, made at the first question; safe to use from one thread at a time."""

    def __init__(self, config: Mapping[str, str]) -> None:
        """`config` of `connection.client_config`. Raises `KafkaError` when librdkafka cannot use it."""
        self._where = config["bootstrap.servers"]
        self._trouble = ""
        try:
            self._admin = AdminClient({**config, "error_cb": self._note, "log_level": 2})
        except KafkaException as exc:
            raise KafkaError(f"Kafka's client cannot be set up: {_said(exc)}") from None

    def state(self, topic: str) -> TopicState | None:
        """The topic, or None if there is none. Raises `KafkaError` when no broker answers."""
        asked = self._admin.describe_topics(TopicCollection([topic]), request_timeout=ANSWER_S)
        try:
            found = self._answer(asked[topic])
        except KafkaException as exc:
            if exc.args[0].code() == Code.UNKNOWN_TOPIC_OR_PART:
                return None
            raise self._failed(exc) from None
        return TopicState(str(found.topic_id), len(found.partitions))

    def offsets(
        self,
        topic: str,
        partitions: Iterable[int],
        which: Literal["earliest", "latest"],
        isolation_level: str = "read_committed",
    ) -> dict[int, int]:
        """The first, or the next, offset of each partition. Raises `KafkaError` when no broker answers."""
        spec = OffsetSpec.earliest() if which == "earliest" else OffsetSpec.latest()
        asked = self._admin.list_offsets(
            {TopicPartition(topic, partition): spec for partition in partitions},
            isolation_level=_ISOLATION[isolation_level],
            request_timeout=ANSWER_S,
        )
        try:
            return {place.partition: self._answer(future).offset for place, future in asked.items()}
        except KafkaException as exc:
            raise self._failed(exc) from None

    def _answer(self, future: Future[Any]) -> Any:
        try:
            return future.result(ANSWER_S + 1)
        except TimeoutError:  # the request's own time-out comes first
            raise KafkaError(f"no Kafka broker at {self._where} answered within {ANSWER_S:g} s") from None

    def _failed(self, exc: KafkaException) -> KafkaError:
        """The error to raise; with what the connection's threads said meanwhile, such as a refused login."""
        self._admin.poll(0)  # what they said waits until somebody polls
        trouble = f" ({self._trouble})" if self._trouble else ""
        return KafkaError(
            f"Kafka at {self._where} did not answer as it should: {_said(exc)}{trouble}; check kafka.bootstrap_servers and "
            "that the brokers run"
        )

    def _note(self, error: Code) -> None:
        self._trouble = error.str()


def _said(exc: KafkaException) -> str:
    error = exc.args[0]
    return error.str() if isinstance(error, Code) else str(error)

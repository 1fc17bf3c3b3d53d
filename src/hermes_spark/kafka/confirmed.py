"""Sending records so that all of them are in the topic when the call returns."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from confluent_kafka import KafkaError as Code
from confluent_kafka import KafkaException, Producer

from hermes_spark.errors import KafkaError

DELIVERY_S = 120.0
"""How long all records of one call may take; a broker may be away for a minute."""
MAX_RECORD_BYTES = 1_000_000
"""A whole record at most, below the 1,048,588 bytes that a broker takes by default."""


class Message(NamedTuple):
    """One record to send."""

    topic: str
    key: bytes | None
    value: bytes
    headers: list[tuple[str, bytes]]


class ConfirmedProducer:
    """An idempotent producer that answers for every record. For one thread."""

    def __init__(self, config: Mapping[str, str], delivery_s: float = DELIVERY_S) -> None:
        """`config` of `connection.client_config`. Raises `KafkaError` when librdkafka cannot use it."""
        self._delivery_s = delivery_s
        own = {
            "enable.idempotence": True,
            "acks": "all",
            "delivery.timeout.ms": int(delivery_s * 1000),
            "message.max.bytes": MAX_RECORD_BYTES,
            "linger.ms": 5,
            "log_level": 2,  # what keeps failing is raised here, not told every second
        }
        try:
            self._producer = Producer({**config, **own})
        except KafkaException as exc:
            raise KafkaError(f"Kafka's client cannot be set up: {exc.args[0]}") from None

    def send(self, messages: Iterable[Message]) -> None:
        """Send records in order and return when the brokers have confirmed every one.

        Raises `KafkaError` when they have not within `delivery_s`, or one was refused; others may have been sent then, and
        sending all of them again repeats those.
        """
        deadline = time.monotonic() + self._delivery_s
        refused: list[str] = []
        for message in messages:
            self._produce(message, deadline, refused)
        left = self._producer.flush(max(0.0, deadline - time.monotonic()))
        if refused or left:
            self._producer.purge()
            raise KafkaError(refused[0] if refused else f"{left} records were not confirmed in {self._delivery_s:g} s")

    def _produce(self, message: Message, deadline: float, refused: list[str]) -> None:
        def on_delivery(error: Code | None, _: object) -> None:
            if error is not None:
                refused.append(f"a record for topic {message.topic} was not taken: {error.str()}")

        while True:
            try:
                self._producer.produce(
                    message.topic, message.value, message.key, headers=message.headers, on_delivery=on_delivery
                )
            except BufferError:  # the client's queue is full: some must be confirmed first
                if time.monotonic() > deadline:
                    raise KafkaError(f"records were not confirmed in {self._delivery_s:g} s") from None
                self._producer.poll(0.1)
            except KafkaException as exc:
                raise KafkaError(f"a record for topic {message.topic} was not taken: {exc.args[0]}") from None
            else:
                self._producer.poll(0)
                return

"""Sends records without waiting for them, and says which of them the brokers have."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from confluent_kafka import KafkaError as Code
from confluent_kafka import KafkaException, Producer

from hermes_spark.errors import KafkaError
from hermes_spark.kafka.confirmed import MAX_RECORD_BYTES, Message

log = logging.getLogger(__name__)

DELIVERY_S = 30.0
"""After this a record counts as not sent; a batch sends it then."""
POLL_S = 0.1
CLOSE_S = 2.0


class EarlyProducer:
    """An idempotent producer. `send` is for one thread, `confirmed` is called from a thread of this object."""

    def __init__(self, config: Mapping[str, str]) -> None:
        """`config` of `connection.client_config`. Raises `KafkaError` when librdkafka cannot use it."""
        self._config = {
            **config,
            "enable.idempotence": True,
            "acks": "all",
            "delivery.timeout.ms": int(DELIVERY_S * 1000),
            "message.max.bytes": MAX_RECORD_BYTES,
            "linger.ms": 1,
            "log_level": 2,
        }
        self._producer = self._made()
        self._closing = threading.Event()
        self._broken = False
        self._thread = threading.Thread(target=self._serve, name="early-outcomes", daemon=True)
        self._thread.start()

    def send(self, message: Message, confirmed: Callable[[], None]) -> None:
        """Send a record; `confirmed` is called once the brokers have it, and never if they do not take it in time."""

        def on_delivery(error: Code | None, _: object) -> None:
            if error is None:
                confirmed()
            else:
                self._failed(error)

        try:
            self._producer.produce(
                message.topic, message.value, message.key, headers=message.headers, on_delivery=on_delivery
            )
        except BufferError:
            log.debug("an outcome waits for its batch: too many are on their way")
        except KafkaException as exc:
            self._failed(exc.args[0])

    def close(self) -> None:
        """End, within a bound; what is on its way may still arrive."""
        self._closing.set()
        self._thread.join(CLOSE_S)

    def _serve(self) -> None:
        while not self._closing.is_set():
            if self._broken:
                # Such as an epoch that the brokers have forgotten: no further record could be sent with it.
                self._broken = False
                self._producer.purge()
                self._producer = self._made()
            self._producer.poll(POLL_S)
        self._producer.flush(CLOSE_S / 2)

    def _made(self) -> Producer:
        try:
            return Producer(self._config)
        except KafkaException as exc:
            raise KafkaError(f"Kafka's client cannot be set up: {exc.args[0]}") from None

    def _failed(self, error: Code) -> None:
        log.warning("an outcome was not sent early, its batch will: %s", error.str())
        self._broken = self._broken or error.fatal()

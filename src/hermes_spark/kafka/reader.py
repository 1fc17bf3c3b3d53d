"""Reads partitions of a topic from given offsets, with no consumer group: what a host's run-ahead reads with."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from confluent_kafka import KafkaError as Code

from hermes_spark.errors import KafkaError
from hermes_spark.events import Coordinates, Row
from hermes_spark.kafka.records import partition_name, record_row

log = logging.getLogger(__name__)

POLL_S = 0.05
"""How long to wait for a record before looking for orders."""
CHUNK = 256
"""Records handed on together at most."""
CLOSE_S = 10.0
COMPLAIN_S = 10.0
"""How often trouble with the brokers is told."""
_END = Code._PARTITION_EOF  # noqa: SLF001  # librdkafka's own codes begin with an underscore
_OUT_OF_RANGE = (Code.OFFSET_OUT_OF_RANGE, Code._AUTO_OFFSET_RESET)  # noqa: SLF001

Deliver = Callable[[str, tuple[int, int], int, Sequence[Row]], None]
"""(partition, offsets [from, to), generation, rows); all rows that there are between the offsets."""


class KafkaReader:
    """One consumer in a thread of its own. The methods may be called from any thread and return at once, but `close`.

    Trouble with the brokers is logged and tried again; what is not read here, a batch brings.
    """

    def __init__(self, config: Mapping[str, str], topic: str, isolation_level: str, deliver: Deliver) -> None:
        """`config` of `connection.client_config`. Raises `KafkaError` when librdkafka cannot use it."""
        own = {
            "group.id": "hermes-spark",  # asked for by the client; nothing subscribes, so there is no group
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": isolation_level,
            "fetch.wait.max.ms": 100,
            "fetch.error.backoff.ms": 100,
            "queued.max.messages.kbytes": 16_384,
            "log_level": 2,
        }
        try:
            self._consumer = Consumer({**config, **own})
        except KafkaException as exc:
            raise KafkaError(f"Kafka's client cannot be set up: {exc.args[0]}") from None
        self._topic = topic
        self._deliver = deliver
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._places: dict[int, tuple[int, int]] = {}
        """By partition: the offset that is read next, and the generation."""
        self._told_at = -COMPLAIN_S
        self._thread = threading.Thread(target=self._run, name="run-ahead", daemon=True)
        self._thread.start()

    def read(self, partition: str, offset: int, generation: int) -> None:
        """Begin or go on at an offset; what is delivered from then on carries the generation."""
        self._orders.put(lambda: self._assign(self._number(partition), offset, generation))

    def drop(self, partition: str) -> None:
        """Read it no more."""
        self._orders.put(lambda: self._unassign(self._number(partition)))

    def hold(self, partition: str, *, held: bool) -> None:
        """Stand still, or go on."""
        self._orders.put(lambda: self._pause(self._number(partition), held=held))

    def close(self) -> None:
        """End, within a bound."""
        self._orders.put(None)
        self._thread.join(CLOSE_S)

    # ------------------------------------------------------------------ on the thread

    def _run(self) -> None:
        try:
            while self._follow_orders():
                if self._places:
                    self._hand_on(self._some())
                else:
                    time.sleep(POLL_S)
        except Exception:
            log.exception("reading ahead of the batches has ended; the batches bring the events")
        finally:
            self._consumer.close()

    def _follow_orders(self) -> bool:
        while True:
            try:
                order = self._orders.get_nowait()
            except queue.Empty:
                return True
            if order is None:
                return False
            try:
                order()
            except KafkaException as exc:
                self._complain(str(exc.args[0]))

    def _some(self) -> list[Message]:
        messages, message = [], self._consumer.poll(POLL_S)
        while message is not None:
            messages.append(message)
            message = self._consumer.poll(0) if len(messages) < CHUNK else None
        return messages

    def _hand_on(self, messages: list[Message]) -> None:
        rows: dict[int, list[Row]] = {}
        stops: dict[int, int] = {}
        for message in messages:
            number, offset = message.partition(), message.offset()
            if number not in self._places or message.topic() != self._topic:
                if message.error() is not None:
                    self._complain(message.error().str())
                continue
            if offset < max(self._places[number][0], stops.get(number, 0)):
                continue
            if message.error() is None:
                coordinates = Coordinates(partition_name(self._topic, number), offset)
                rows.setdefault(number, []).append(record_row(coordinates, message.timestamp()[1], message.value()))
                stops[number] = offset + 1
            elif message.error().code() == _END:
                stops[number] = offset  # past the marks of transactions, which are no records
            else:
                self._note_error(number, message.error())
        for number, stop in stops.items():
            start, generation = self._places[number]
            if stop > start:
                self._places[number] = (stop, generation)
                self._deliver(partition_name(self._topic, number), (start, stop), generation, rows.get(number, []))

    def _note_error(self, number: int, error: Code) -> None:
        self._complain(error.str())
        if error.code() in _OUT_OF_RANGE:
            # What the last commit stands before is gone, or not there yet: Spark finds that out, and says so.
            self._unassign(number)

    def _assign(self, number: int, offset: int, generation: int) -> None:
        self._unassign(number)
        self._consumer.incremental_assign([TopicPartition(self._topic, number, offset)])
        self._places[number] = (offset, generation)

    def _unassign(self, number: int) -> None:
        if self._places.pop(number, None) is not None:
            self._consumer.incremental_unassign([TopicPartition(self._topic, number)])

    def _pause(self, number: int, *, held: bool) -> None:
        if number in self._places:
            (self._consumer.pause if held else self._consumer.resume)([TopicPartition(self._topic, number)])

    def _number(self, partition: str) -> int:
        return int(partition.rpartition("-")[2])

    def _complain(self, trouble: str) -> None:
        if time.monotonic() - self._told_at > COMPLAIN_S:
            self._told_at = time.monotonic()
            log.warning("reading %s ahead of the batches: %s", self._topic, trouble)

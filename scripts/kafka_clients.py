"""Clients beside the job, for demo and benchmark: a producer at a fixed rate, and a consumer that notes when it read what.

    kafka_clients.py produce --bootstrap HOST:PORT --topic NAME --notes FILE --rate N --count N --sessions N --events KIND
    kafka_clients.py consume --bootstrap HOST:PORT --topic NAME [--topic NAME ...] --notes FILE

Each is a process of its own, so that what the measuring program does otherwise is not in the times. What they note, one JSON
line per record, is read by `kafka_answers`. The producer is an open loop: a record's timestamp is when it should have been
sent, whatever became of it. The consumer ends at SIGTERM, after it has read all that is in its topics then.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from hermes_spark.streaming.load_schedule import Schedule
from hermes_spark.tools.demo.messages import bad_rows, demo_event, one_tool_event
from stack import Part, Stack

ANSWER_S = 30.0
LINGER_S = 0.002
"""How long the producer sleeps between two looks at the clock."""
BAD_EVERY = 50
"""With the demo's events, one record of so many is no event."""


def start_producer(stack: Stack, notes: Path, bootstrap: str, topic: str, **options: object) -> Part:
    """Begin to produce; `options` are those of the command line (`rate`, `count`, `sessions`, `events`)."""
    return _start(stack, "produce", notes, bootstrap, [topic], options)


def start_consumer(stack: Stack, notes: Path, bootstrap: str, *topics: str) -> Part:
    """Begin to read; records that are there already are read as well."""
    return _start(stack, "consume", notes, bootstrap, topics, {})


def _start(
    stack: Stack, action: str, notes: Path, bootstrap: str, topics: Sequence[str], options: dict[str, object]
) -> Part:
    notes.unlink(missing_ok=True)
    command = [sys.executable, __file__, action, "--bootstrap", bootstrap, "--notes", str(notes)]
    for topic in topics:
        command += ["--topic", topic]
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    return stack.spawn(action, command)


def record(number: int, sessions: int, events: str) -> tuple[str | None, bytes]:
    """Key and value of record `number`."""
    if events == "bench":
        event = one_tool_event(number, sessions)
    elif number % BAD_EVERY == BAD_EVERY // 2:
        bad = bad_rows()
        return None, bad[number // BAD_EVERY % len(bad)]
    else:
        event = demo_event(number, sessions=sessions)
    return str(event["session_id"]), json.dumps(event, ensure_ascii=False).encode()


def produce(options: argparse.Namespace, notes: BinaryIO) -> int:
    """Send `count` records, each at its time, and note where each of them lies."""
    producer = Producer({"bootstrap.servers": options.bootstrap, "enable.idempotence": True, "linger.ms": 1})
    producer.list_topics(options.topic[0], ANSWER_S)  # connects, before the clock starts
    failed: list[str] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failed.append(error.str())
            return
        note = {"partition": message.partition(), "offset": message.offset(), "ts": message.timestamp()[1]}
        notes.write(json.dumps(note).encode() + b"\n")

    schedule = Schedule(options.rate)
    start_ms, sent = time.time_ns() // 1_000_000, 0
    while sent < options.count:
        due = min(options.count, schedule.rows_due(time.time_ns() // 1_000_000 - start_ms))
        for number in range(sent, due):
            key, value = record(number, options.sessions, options.events)
            at_ms = start_ms + schedule.arrival_ms(number)
            producer.produce(options.topic[0], value, key, timestamp=at_ms, on_delivery=delivered)
        sent = due
        producer.poll(0)
        notes.flush()
        time.sleep(LINGER_S)
    left = producer.flush(ANSWER_S)
    if failed or left:
        print(f"{len(failed) + left} records were not sent {failed[:1]}", file=sys.stderr)
    return 1 if failed or left else 0


def consume(options: argparse.Namespace, notes: BinaryIO) -> int:
    """Read the topics from their beginning and note each record with the time at which it was here."""
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: ended.append(number))
    consumer = Consumer({"bootstrap.servers": options.bootstrap, "group.id": "reader", "enable.auto.commit": False})
    with contextlib.closing(consumer):
        places = [
            TopicPartition(topic, partition, 0)
            for topic in options.topic
            for partition in consumer.list_topics(topic, ANSWER_S).topics[topic].partitions
        ]
        consumer.assign(places)
        while not ended:
            _note(consumer.poll(0.1), notes)
        missing = sum(consumer.get_watermark_offsets(place, ANSWER_S)[1] for place in places) - _read(consumer, places)
        deadline = time.monotonic() + ANSWER_S
        while missing > 0 and time.monotonic() < deadline:
            missing -= _note(consumer.poll(0.1), notes)
    return 1 if missing > 0 else 0


def _read(consumer: Consumer, places: list[TopicPartition]) -> int:
    """How many records have been read; the topics began at 0."""
    return sum(max(0, place.offset) for place in consumer.position(places))


def _note(message: Message | None, notes: BinaryIO) -> int:
    """Note a record that has come; how many have."""
    if message is None or message.error() is not None:
        return 0
    at_ms = time.time_ns() / 1_000_000
    turn_id = dict(message.headers() or ()).get("turn_id", b"").decode()
    head = json.dumps({"at_ms": at_ms, "topic": message.topic(), "turn_id": turn_id})
    notes.write(head[:-1].encode() + b', "row": ' + message.value() + b"}\n")  # as it is: parsing would cost time here
    notes.flush()
    return 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["produce", "consume"])
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", action="append", required=True)
    parser.add_argument("--notes", type=Path, required=True)
    parser.add_argument("--rate", type=int, default=20)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--sessions", type=int, default=20)
    parser.add_argument("--events", choices=["demo", "bench"], default="demo")
    return parser.parse_args()


if __name__ == "__main__":
    chosen = _arguments()
    with chosen.notes.open("ab") as file:
        sys.exit(produce(chosen, file) if chosen.action == "produce" else consume(chosen, file))

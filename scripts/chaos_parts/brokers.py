"""Kafka fails under the job: events and outcomes on a real broker."""

from __future__ import annotations

import time

from chaos_parts.world import QUESTIONS, SESSIONS, Scenario, World
from jobs import question
from kafka_broker import KafkaBroker
from kafka_setup import jars
from kafka_topics import Topics

EVENTS = 4 * SESSIONS
AWAY_S = 5.0


def restart_broker(world: World) -> None:
    """The broker dies with calls under way and a batch open, is away for a while, and comes back with what it had."""
    jars("connector")
    broker = KafkaBroker(world.stack)
    topics = Topics(broker.start())
    source, outcomes = topics.create(), topics.create()
    world.settings |= {
        "source.kind": "kafka",
        "source.topic": source,
        "source.max_offsets_per_trigger": SESSIONS,
        "kafka.bootstrap_servers": broker.bootstrap,
        "sink.kafka.outcomes_topic": outcomes,
    }
    topics.send(source, *(question(f"s{n % SESSIONS}", QUESTIONS[n % len(QUESTIONS)]) for n in range(EVENTS)))
    world.events |= {(f"{source}-0", offset) for offset in range(EVENTS)}
    world.start()
    world.mid_batch()
    broker.kill()
    world.hit("SIGKILL of the broker")
    back_at = time.monotonic() + AWAY_S
    world.until(lambda: time.monotonic() > back_at, "the broker's return")
    broker.start()
    world.drain()


BROKERS = [Scenario("the Kafka broker is killed and started again", restart_broker)]

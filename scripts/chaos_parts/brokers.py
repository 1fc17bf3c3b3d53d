"""Events and outcomes on a real Kafka broker, which hosts read ahead of the batches; the broker fails, or who reads it."""

from __future__ import annotations

import os
import signal
import time

from chaos_parts.world import QUESTIONS, SESSIONS, Scenario, World
from jobs import question
from kafka_broker import KafkaBroker
from kafka_setup import jars
from kafka_topics import Topics

EVENTS = 4 * SESSIONS
AWAY_S = 5.0
LONG_MS = 5000
"""Between two batches: long enough to kill the driver before the one that commits what hosts have taken."""


def load_topic(world: World) -> KafkaBroker:
    """Start a broker with all events in a topic, and let the job read that and send its outcomes to another."""
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
    return broker


def restart_broker(world: World) -> None:
    """The broker dies with calls under way and a batch open, is away for a while, and comes back with what it had."""
    broker = load_topic(world)
    world.start()
    world.mid_batch()
    broker.kill()
    world.hit("SIGKILL of the broker")
    back_at = time.monotonic() + AWAY_S
    world.until(lambda: time.monotonic() > back_at, "the broker's return")
    broker.start()
    world.drain()


def run_from_topic(world: World) -> None:
    """The load, with whatever is armed going off in the middle of it."""
    load_topic(world)
    world.start()
    world.drain()


def kill_driver_before_the_batch(world: World) -> None:
    """Hosts have taken events and made calls for them, and the batch that commits these has not begun."""
    load_topic(world)
    world.start()
    world.mid_batch()
    os.kill(world.job.driver_pid(), signal.SIGKILL)
    world.hit("SIGKILL of the driver")
    world.drain()


HOST_RUNNING_AHEAD = Scenario(
    "a host is killed while it runs ahead",
    run_from_topic,
    faults="ahead.after_taken=kill@4",
    settings={"sink.kafka.mode": "early"},
)
BROKERS = [
    Scenario("the Kafka broker is killed and started again", restart_broker),
    HOST_RUNNING_AHEAD,
    Scenario(
        "the driver is killed between a take and its batch",
        kill_driver_before_the_batch,
        settings={"run_ahead.interval_ms": LONG_MS},
    ),
]

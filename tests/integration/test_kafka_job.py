"""The real job between topics of a real broker: what comes in goes out once, whatever the records or the broker do."""

from __future__ import annotations

import base64
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from jobs import PATIENCE_S, Job, executed_more_than_once, question
from kafka_broker import KafkaBroker
from kafka_secure import LISTENER, PASSWORD, Secured
from kafka_setup import jars
from kafka_topics import Topics
from stack import Part, Stack, running_stack

pytestmark = [pytest.mark.spark, pytest.mark.triton, pytest.mark.timeout(400)]

AWAY_S = 5.0


class KafkaJob(Job):
    """A job from topic to topics."""

    def __init__(
        self, stack: Stack, triton: str, topics: Topics, environment: dict[str, str] | None = None, **settings: object
    ) -> None:
        self.topics = topics
        self.environment = environment or {}
        self.runs_ahead = settings.get("run_ahead.enabled", False)
        self.source = topics.create()
        self.outcomes, self.calls, self.letters = (topics.create() for _ in range(3))
        self.tools = stack.tools()
        super().__init__(
            stack,
            triton,
            self.tools,
            **{
                "source.kind": "kafka",
                "source.topic": self.source,
                "source.max_offsets_per_trigger": 20,
                "kafka.bootstrap_servers": topics.bootstrap,
                "run_ahead.enabled": False,
                "sink.kafka.outcomes_topic": self.outcomes,
                "sink.kafka.calls_topic": self.calls,
                "sink.kafka.dead_letters_topic": self.letters,
                "sink.path": "",
                "telemetry.turn_log": stack.directory / "logs",
                **settings,
            },
        )

    def start(self, environment: dict[str, str] | None = None, **settings: object) -> Part:
        return super().start({**self.environment, **(environment or {})}, **settings)

    def until_answered(self, *sessions: str) -> list[dict[str, Any]]:
        """The outcomes without repeats, when every one of the sessions has one."""
        self.until(lambda: set(sessions) <= {row["session_id"] for row in self.topics.rows(self.outcomes)}, "outcomes")
        return list({row["turn_id"]: row for row in self.topics.rows(self.outcomes)}.values())

    def lags(self) -> list[int]:
        """What the batches that ran until now say of the lag."""
        files = sorted(Path(self.stack.directory / "logs").glob("batches-*.jsonl"))
        return [json.loads(line).get("lag", -1) for file in files for line in file.read_text().splitlines()]


@pytest.fixture(scope="module")
def broker(kafka: KafkaBroker) -> KafkaBroker:
    jars("connector")
    return kafka


@pytest.fixture(scope="module")
def other_job(broker: KafkaBroker, triton: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaJob]:
    """A job for the last test, started with the first one because two start in little more time than one."""
    with running_stack(tmp_path_factory.mktemp("other-kafka-job")) as stack:
        job = KafkaJob(stack, triton, Topics(broker.bootstrap))
        job.start()
        yield job


WAYS = {
    "batches": {"run_ahead.enabled": False, "sink.kafka.mode": "committed"},
    "run-ahead": {"run_ahead.enabled": True, "sink.kafka.mode": "early"},
}
"""Who reads the topic and who sends the outcomes: the batches alone, or the hosts as soon as they can."""


@pytest.fixture(scope="module", params=list(WAYS))
def job(
    request: pytest.FixtureRequest,
    broker: KafkaBroker,
    kafka_secured: Secured,
    triton: str,
    tmp_path_factory: pytest.TempPathFactory,
    other_job: KafkaJob,
) -> Iterator[KafkaJob]:
    """One job for the tests below, which run in their order; eight turns fill its host.

    It reads and writes over TLS with its own certificate and a login.
    """
    del other_job  # it only shall start at the same time
    secured = kafka_secured.settings(broker.address(LISTENER))
    settings = {**WAYS[request.param], "host.max_open_turns": 8} | {
        f"kafka.{name}": value for name, value in secured.items()
    }
    with running_stack(tmp_path_factory.mktemp("kafka-job")) as stack:
        job = KafkaJob(stack, triton, Topics(broker.bootstrap), kafka_secured.environment, **settings)
        job.start()
        yield job


def test_each_record_becomes_an_outcome_or_a_dead_letter(job):
    topics, source = job.topics, job.source
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        events = [question(f"{codec}-{n}", event_id=f"e-{codec}-{n}") for n in range(3)]
        topics.send(source, *events, compression_type=codec)
    topics.send(source, None, b"{no json", b"x" * 10_000_000)
    topics.send(source, json.dumps(question("no-key")).encode(), question("last"))
    sessions = {f"{codec}-{n}" for codec in ("none", "gzip", "snappy", "lz4", "zstd") for n in range(3)}
    rows = job.until_answered(*sessions, "no-key", "last")

    assert sorted(row["session_id"] for row in rows) == sorted([*sessions, "no-key", "last"])
    assert {row["status"] for row in rows} == {"completed"}
    assert {(row["source_partition"], row["source_offset"]) for row in rows} == {
        (f"{source}-0", n) for n in range(20) if n not in (15, 16, 17)
    }
    for record in topics.read(job.outcomes):
        headers, row = dict(record.headers()), json.loads(record.value())
        assert record.key().decode() == row["session_id"]
        assert headers == {
            "event_id": row["event_id"].encode(),
            "turn_id": row["turn_id"].encode(),
            "schema_version": b"2",
        }
    made = {call["call_id"] for row in rows for call in row["calls"]}
    job.until(lambda: len(topics.rows(job.calls)) >= len(made) and len(topics.rows(job.letters)) >= 3, "the batch")
    assert sorted(call["call_id"] for call in topics.rows(job.calls)) == sorted(made)
    assert made
    letters = topics.rows(job.letters)
    assert [(row["source_offset"], row["raw_bytes"]) for row in letters] == [(15, 0), (16, 8), (17, 10_000_000)]
    assert "tombstone" in letters[0]["reason"]
    assert "JSON" in letters[1]["reason"]
    assert "at most 1048576 are taken (intake.max_event_bytes)" in letters[2]["reason"]
    assert base64.b64decode(letters[1]["raw"]) == b"{no json"
    assert [record.key() for record in topics.read(job.letters)] == [None] * 3


def test_a_full_host_makes_batches_wait_and_the_lag_shows_it(job):
    before = len(job.lags())
    job.topics.send(job.source, *(question(f"many-{n}") for n in range(60)))
    job.until_answered(*(f"many-{n}" for n in range(60)))
    job.until(lambda: job.lags()[-1] == 0, "the lag to be gone")
    assert max(job.lags()[before:]) >= 20, "60 records are three batches"


def test_partitions_that_are_added_while_it_runs(job):
    job.topics.add_partitions(job.source, 3)
    job.topics.send(job.source, question("added-1"), partition=1)
    job.topics.send(job.source, question("added-2"), partition=2)
    rows = {row["session_id"]: row for row in job.until_answered("added-1", "added-2")}
    assert rows["added-2"]["source_partition"] == f"{job.source}-2"
    assert rows["added-2"]["source_offset"] == 0


def test_only_committed_transactions_are_seen(job):
    producer = Producer({"bootstrap.servers": job.topics.bootstrap, "transactional.id": job.source})
    producer.init_transactions(30)
    for session, end in (("given-up", producer.abort_transaction), ("in-transaction", producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce(job.source, json.dumps(question(session)).encode(), partition=2)
        producer.flush(30)
        end()
    assert "given-up" not in {row["session_id"] for row in job.until_answered("in-transaction")}


def test_a_broker_that_is_away_for_a_while(job, broker):
    job.topics.send(job.source, *(question(f"away-{n}") for n in range(10)))
    broker.kill()
    back_at = time.monotonic() + AWAY_S
    job.until(lambda: time.monotonic() > back_at, "the broker's return")
    broker.start()
    job.topics.send(job.source, question("back"))
    job.until_answered("back", *(f"away-{n}" for n in range(10)))


def test_killed_and_started_again_with_nothing_lost_and_no_call_run_twice(job):
    job.topics.send(job.source, *(question(f"killed-{n}") for n in range(20)))
    job.kill()
    job.topics.send(job.source, question("meanwhile"), partition=2)
    job.start()
    job.until_answered("meanwhile", *(f"killed-{n}" for n in range(20)))
    turns = {row["turn_id"]: row for row in job.topics.rows(job.outcomes)}
    sessions = [row["session_id"] for row in turns.values()]
    assert len(sessions) == len(set(sessions)), "an event was answered twice"
    assert len(sessions) == 17 + 60 + 2 + 1 + 11 + 21
    assert not executed_more_than_once(job.tools)
    repeats: dict[str, set[bytes]] = {}
    for record in job.topics.read(job.outcomes):
        repeats.setdefault(dict(record.headers())["turn_id"], set()).add(record.value())
    assert all(len(values) == 1 for values in repeats.values()), "a repeat has other bytes"


def test_records_that_are_removed_before_they_are_read(job):
    if job.runs_ahead:
        pytest.skip("a host may have the records already, and then nothing is lost")
    assert job.part is not None
    driver = job.part.process
    driver.send_signal(signal.SIGSTOP)
    job.topics.send(job.source, *(question(f"removed-{n}") for n in range(5)))
    job.topics.remove_records(job.source, 20 + 60 + 11 + 20 + 4)
    driver.send_signal(signal.SIGCONT)
    assert job.part.wait(PATIENCE_S) == 1
    assert f"records of topic {job.source} that were not read yet are gone" in job.part.tail()
    assert not {f"removed-{n}" for n in range(5)} & {row["session_id"] for row in job.topics.rows(job.outcomes)}


def test_no_secret_was_logged(job):
    assert job.part is not None
    log = job.part.log.read_text()
    assert "is up: pid" in log
    assert PASSWORD not in log
    assert "PRIVATE KEY" not in log


def test_a_topic_that_is_made_again_while_it_runs(other_job):
    job, part = other_job, other_job.part
    assert part is not None
    job.topics.send(job.source, question("one"), question("two"))
    job.until_answered("one", "two")
    job.topics.delete(job.source)
    job.topics.create(job.source)
    job.topics.send(job.source, *(question(f"new-{n}") for n in range(5)))
    assert part.wait(PATIENCE_S) == 1
    assert f"topic {job.source} was deleted" in part.tail()
    assert {row["session_id"] for row in job.topics.rows(job.outcomes)} == {"one", "two"}

"""`scripts/bench --kafka`: from the producer's timestamp until a consumer has read the outcome, both outside the job.

A producer sends at the offered rate whatever becomes of it, so a record's timestamp is when it should have been sent. Each run
has topics, a checkpoint and a job of its own, and is over when every event has an outcome.
"""

from __future__ import annotations

import argparse
import itertools
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

from accounting import Accounting
from bench_figures import batches, floor_ms, host_pids, json_lines, open_at, quantiles
from kafka_answers import Exchange
from kafka_broker import KafkaBroker
from kafka_clients import start_consumer, start_producer
from kafka_setup import jars
from kafka_topics import Topics
from stack import Part, Stack, StackError, ToolService

RATES = (20, 100, 300)
SATURATION = 500
"""Events offered per second when nothing is said: more than the service does on two cores."""
PARTITIONS = 4
START_S = 120.0
ANSWERS_S = 300.0
"""How long the job may take for what is left when the last event has been sent."""
END_S = 60.0
LOOK_S = 1.0
"""Between two looks at what came, which cost processor time themselves."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this mode."""
    parser.add_argument(
        "--kafka",
        action="store_true",
        help="from topic to topic, until a consumer has read the outcome\n"
        f"(default: {', '.join(map(str, RATES))} a second, then --saturation {SATURATION})",
    )
    parser.add_argument(
        "--run-ahead",
        choices=["on", "off"],
        action="append",
        help="with --kafka: run_ahead.enabled; may be repeated, each is a run (default on)",
    )
    parser.add_argument(
        "--sink-mode",
        choices=["committed", "early"],
        action="append",
        help="with --kafka: sink.kafka.mode; may be repeated, each is a run (default committed)",
    )


def run(
    arguments: argparse.Namespace,
    stack: Stack,
    triton: str,
    tools: ToolService,
    plain: Callable[[int], dict[str, Any]] | None,
) -> Iterator[dict[str, Any]]:
    """One line to print per run; `plain` is the yardstick at a rate, for saturation."""
    jars("connector")
    broker = KafkaBroker(stack)
    broker.start()
    chosen = itertools.product(
        _offers(arguments), arguments.run_ahead or ["on"], arguments.sink_mode or ["committed"], arguments.hosts
    )
    for number, ((mode, rate), run_ahead, sink_mode, hosts) in enumerate(chosen):
        exchange = KafkaRun(arguments, stack, broker.bootstrap, f"run-{number}")
        settings = {"run_ahead.enabled": run_ahead == "on", "sink.kafka.mode": sink_mode, "hosts": hosts}
        settings |= {"model.url": triton, "tools.base_url": tools.url}
        result = exchange.result(rate, settings)
        result = {"mode": f"kafka {mode}", "run_ahead": run_ahead, "sink_mode": sink_mode, **result}
        if plain is not None:
            yardstick = plain(rate)
            result |= {"plain": yardstick, "share_of_plain": round(result["turns_per_s"] / yardstick["turns_per_s"], 3)}
        yield result


def _offers(arguments: argparse.Namespace) -> list[tuple[str, int]]:
    """Mode and events a second of each run."""
    saturation = arguments.saturation or (0 if arguments.rate else SATURATION)
    rates = arguments.rate or ([] if arguments.saturation else RATES)
    return [*(("rate", rate) for rate in rates), *([("saturation", saturation)] if saturation else [])]


class KafkaRun:
    """One run of the job, with a producer and a consumer beside it."""

    def __init__(self, arguments: argparse.Namespace, stack: Stack, bootstrap: str, name: str) -> None:
        self._arguments = arguments
        self._stack = stack
        self._bootstrap = bootstrap
        self._name = name
        self._directory = stack.directory / name
        self._directory.mkdir()
        self._exchange = Exchange.of(self._directory / "sent.jsonl", self._directory / "read.jsonl")
        self._source, self._outcomes = f"{name}-events", f"{name}-outcomes"
        topics = Topics(bootstrap)
        for topic in (self._source, self._outcomes):
            topics.create(topic, PARTITIONS)

    def result(self, rate: int, settings: dict[str, object]) -> dict[str, Any]:
        """Run it, and say what came of it."""
        arguments, exchange = self._arguments, self._exchange
        reader = start_consumer(self._stack, self._directory / "read.jsonl", self._bootstrap, self._outcomes)
        wanted = int(str(settings["hosts"]))
        job = self._stack.job({**self._settings(), **settings}, f"local[{max(arguments.slots, wanted + 2)}]")
        hosts = host_pids(job.log, job.log.stat().st_size, max(1, wanted), lambda: job.alive)
        commits = self._directory / "checkpoint" / "commits"
        _until(lambda: any(commits.glob("*")), START_S, "the first batch", (job, reader))
        options = {"rate": rate, "count": rate * arguments.seconds, "events": "bench"}
        options["sessions"] = rate * arguments.sessions_per_rate
        with Accounting(hosts) as accounting:
            producer = start_producer(
                self._stack, self._directory / "sent.jsonl", self._bootstrap, self._source, **options
            )
            if producer.wait(arguments.seconds + END_S) != 0:
                raise StackError(f"not every event was sent\n{producer.tail()}")
            _until(self._all_read, ANSWERS_S, "every outcome", (job, reader))
        _end(job)
        _end(reader)
        exchange.look()
        thousands = len(exchange.sent) / 1000
        return {
            "hosts": len(hosts),
            "offered_per_s": rate,
            "seconds": arguments.seconds,
            **figures(exchange, arguments.warm_up, arguments.seconds),
            "durable_ms": self._durable(),
            "batch_ms_p50": batches(self._directory / "log"),
            "cpu_s_per_1000_turns": {role: round(s / thousands, 2) for role, s in accounting.cpu_s().items()},
            "peak_mb": dict(accounting.peak_mb),
        }

    def _settings(self) -> dict[str, object]:
        arguments, directory = self._arguments, self._directory
        return {
            "checkpoint": directory / "checkpoint",
            "kafka.bootstrap_servers": self._bootstrap,
            "source.kind": "kafka",
            "source.topic": self._source,
            "sink.kafka.outcomes_topic": self._outcomes,
            "sink.publish_interval_ms": arguments.publish_interval_ms,
            "trigger.interval_ms": arguments.trigger_ms,
            "model.max_in_flight": arguments.in_flight,
            "host.max_open_turns": arguments.open_turns,
            "state.local_path": directory / "rocksdb",
            "telemetry.turn_log": directory / "log",
            "spark.ui.enabled": False,
            "spark.sql.streaming.numRecentProgressUpdates": 5000,
        }

    def _all_read(self) -> bool:
        self._exchange.look()
        return not self._exchange.unanswered

    def _durable(self) -> dict[str, float]:
        """The part of the latency until an outcome was durable in the journal."""
        begin, end = window(self._exchange, self._arguments.warm_up, self._arguments.seconds)
        turns = json_lines(self._directory / "log", "turns-*.jsonl")
        return quantiles(turn["at_ms"] - turn["ts"] for turn in turns if begin <= turn["ts"] < end)


def window(exchange: Exchange, warm_up_s: int, seconds: int) -> tuple[float, float]:
    """From when until when (ms) events and outcomes count."""
    start = min(exchange.sent.values())
    return start + warm_up_s * 1000, start + seconds * 1000


def figures(exchange: Exchange, warm_up_s: int, seconds: int) -> dict[str, Any]:
    """What a run shows from outside: counts of all of it, latencies of the events after the warm-up."""
    answers = list(exchange.answers.outcomes.values())
    begin, end = window(exchange, warm_up_s, seconds)
    spans = [(exchange.sent[answer.place], answer.at_ms) for answer in answers]
    counted = [answer for answer in answers if begin <= exchange.sent[answer.place] < end]
    start = begin - warm_up_s * 1000
    return {
        "events": len(exchange.sent),
        "outcomes": len(answers),
        "failed": sum(answer.row["status"] != "completed" for answer in answers),
        "repeats": exchange.answers.repeats,
        "turns_per_s": round(sum(begin <= answer.at_ms < end for answer in answers) / (seconds - warm_up_s), 1),
        "turns_per_s_to_the_end": round(len(answers) / (max(answer.at_ms for answer in answers) - start) * 1000, 1),
        "open_at_half": open_at(spans, start + seconds * 500),
        "open_at_end": open_at(spans, end),
        "read_ms": quantiles(exchange.latency_ms(answer) for answer in counted),
        "read_above_floor_ms": quantiles(exchange.latency_ms(answer) - floor_ms(answer.row) for answer in counted),
        "floor_p50_ms": quantiles(floor_ms(answer.row) for answer in counted).get("p50"),
    }


def _until(condition: Callable[[], bool], patience_s: float, what: str, parts: tuple[Part, ...]) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():
        for part in parts:
            if not part.alive:
                raise StackError(f"{part.name} ended while waiting for {what}\n{part.tail()}")
        if time.monotonic() > deadline:
            raise StackError(f"waited in vain for {what}\n{parts[0].tail()}")
        time.sleep(LOOK_S)


def _end(part: Part) -> None:
    part.signal(signal.SIGTERM)
    if (status := part.wait(END_S)) != 0:
        raise StackError(f"{part.name} ended with status {status}\n{part.tail()}")

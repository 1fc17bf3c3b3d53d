"""The demo behind `scripts/demo --kafka`: from topic to topic, and the driver is killed in the middle.

Every figure comes from what a producer and a consumer noted, and from the tool service's own counters; none from the job. All
tools have the policy `unknown` here, under which no call is ever sent again: so whatever the service executed more than once
was a call run twice, and a call that was under way when the driver was killed is shown to the model as unknown.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from jobs import jvm_pid, tools_never_sent_again
from kafka_answers import Exchange
from kafka_broker import KafkaBroker
from kafka_clients import start_consumer, start_producer
from kafka_setup import jars
from kafka_topics import Topics
from stack import Part, Stack, StackError, ToolService

START_S = 180.0
ANSWERS_S = 240.0
"""How long the job may take for what is left when the last event has been sent."""
END_S = 60.0
STILL_COMING_MS = 1000.0
"""What the dead driver had sent may be read for so long after its death."""
PARTITIONS = 4
SOURCE, OUTCOMES, DEAD_LETTERS = "events", "outcomes", "dead-letters"
AGAIN = "is started again in"
"""What `--supervise` says in the job's log."""


@dataclass
class Kill:
    """The SIGKILL of the driver's JVM."""

    at_ms: float
    back_ms: float = 0.0
    """When a consumer read the first answer after it; both in ms since the epoch."""


def run(arguments: argparse.Namespace, stack: Stack, console: Console) -> int:
    """Run the demo on a fresh directory; 0 when everything is accounted for. Raises `StackError`."""
    if (stack.directory / "checkpoint").exists():
        raise StackError(
            f"{stack.directory} holds an earlier run; with --kafka each run begins anew: name another --keep"
        )
    jars("connector")
    console.print("· starting Kafka (one broker, KRaft)")
    broker = KafkaBroker(stack)
    topics = Topics(broker.start())
    for name, partitions in ((SOURCE, PARTITIONS), (OUTCOMES, PARTITIONS), (DEAD_LETTERS, 1)):
        topics.create(name, partitions)
    console.print("· starting Triton with the reference engine (a rule-based stand-in for the model, on the CPU)")
    grpc = stack.triton()
    console.print("· starting the demo's tool service (CRM, orders, knowledge base, tickets)")
    tools = stack.tools()
    job = stack.job(_settings(arguments, stack.directory, broker.bootstrap, grpc, tools), options=["--supervise"])
    console.print(
        f"· submitting the streaming job (scripts/dgx-spark-submit --supervise jobs/stream_agent.py); its log: {job.log}"
    )
    exchange = Exchange.of(stack.directory / "sent.jsonl", stack.directory / "read.jsonl")
    reader = start_consumer(stack, stack.directory / "read.jsonl", broker.bootstrap, OUTCOMES, DEAD_LETTERS)
    _until(lambda: any((stack.directory / "checkpoint").glob("commits/*")), START_S, "the job to start", job, reader)
    kill = _exchange(arguments, stack, console, broker.bootstrap, (exchange, job, reader))
    console.print("· stopping the job (SIGTERM: it finishes its batch, publishes and ends)")
    job.signal(signal.SIGTERM)
    if (status := job.wait(END_S)) != 0:
        raise StackError(f"the job ended with status {status}\n{job.tail()}")
    reader.signal(signal.SIGTERM)  # it reads what is left, such as repeats, and ends
    if reader.wait(END_S) != 0:
        raise StackError(f"the consumer did not read all that is in the topics\n{reader.tail()}")
    exchange.look()
    restarts = job.log.read_text(errors="replace").count(AGAIN)
    return _report(console, exchange, tools.counters()["executions"], kill, restarts)


def _settings(
    arguments: argparse.Namespace, directory: Path, bootstrap: str, grpc: str, tools: ToolService
) -> dict[str, object]:
    return {
        "checkpoint": directory / "checkpoint",
        "kafka.bootstrap_servers": bootstrap,
        "source.kind": "kafka",
        "source.topic": SOURCE,
        "sink.kafka.outcomes_topic": OUTCOMES,
        "sink.kafka.dead_letters_topic": DEAD_LETTERS,
        "sink.kafka.mode": arguments.sink_mode,
        "sink.publish_interval_ms": 200,
        "model.url": grpc,
        "tools.base_url": tools.url,
        "tools.file": tools_never_sent_again(directory),
        "state.local_path": directory / "rocksdb",
        "spark.ui.enabled": False,
    }


def _exchange(
    arguments: argparse.Namespace,
    stack: Stack,
    console: Console,
    bootstrap: str,
    parts: tuple[Exchange, Part, Part],
) -> Kill:
    """Send the events, kill the driver in the middle, and return when every event is answered."""
    exchange, job, reader = parts
    count, rate = arguments.events, arguments.rate
    options = {"rate": rate, "count": count, "sessions": arguments.sessions, "events": "demo"}
    producer = start_producer(stack, stack.directory / "sent.jsonl", bootstrap, SOURCE, **options)
    console.print(f"· producing {count} events for {arguments.sessions} sessions, {rate} a second, bad ones among them")

    def in_the_middle() -> bool:
        exchange.look()
        begun = bool(exchange.answers.outcomes)
        return len(exchange.sent) >= count / 2 and begun and exchange.unanswered > 0

    _until(in_the_middle, count / rate + END_S, "half of the events to be sent", job, reader)
    victim = jvm_pid(job)
    os.kill(victim, signal.SIGKILL)
    kill = Kill(time.time() * 1000)
    console.print(
        f"· killed the driver's JVM (pid {victim}, SIGKILL) after {len(exchange.sent)} events, {exchange.unanswered} of them "
        "without an answer yet; --supervise brings it back"
    )

    def all_answered() -> bool:
        exchange.look()
        later = [answer.at_ms for answer in exchange.answers.all() if answer.at_ms > kill.at_ms + STILL_COMING_MS]
        kill.back_ms = min(later, default=0.0)
        return producer.process.poll() is not None and len(exchange.sent) == count and not exchange.unanswered

    _until(all_answered, count / rate + ANSWERS_S, "every event to be answered", job, reader)
    return kill


def _until(condition: Callable[[], bool], patience_s: float, what: str, job: Part, reader: Part) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():
        for part in (job, reader):
            if not part.alive:
                raise StackError(f"{part.name} ended while waiting for {what}\n{part.tail()}")
        if time.monotonic() > deadline:
            raise StackError(f"waited in vain for {what}\n{job.tail()}")
        time.sleep(0.1)


def _report(console: Console, exchange: Exchange, executions: dict[str, int], kill: Kill, restarts: int) -> int:
    summary = summarize(exchange, executions)
    summary |= {"restarts": restarts, "back_after_s": round((kill.back_ms - kill.at_ms) / 1000, 1)}
    console.print(_latencies(exchange, kill))
    console.print(_accounts(summary))
    print(json.dumps({"summary": summary}))
    if wrong := what_is_wrong(summary):
        print(f"demo: {'; '.join(wrong)}", file=sys.stderr)
        return 1
    return 0


def summarize(exchange: Exchange, executions: dict[str, int]) -> dict[str, Any]:
    """The figures of a run; `executions` are the tool service's, by call."""
    answers = exchange.answers
    outcomes = [answer.row for answer in answers.outcomes.values()]
    calls = [call for row in outcomes for call in row["calls"]]
    places = answers.places()
    took = [exchange.latency_ms(answer) for answer in answers.outcomes.values() if answer.place in exchange.sent]
    return {
        "events": len(exchange.sent),
        "outcomes": len(outcomes),
        "dead_letters": len(answers.dead_letters),
        "lost": len(exchange.sent.keys() - set(places)),
        "answered_twice": len(places) - len(set(places) & exchange.sent.keys()),
        "completed": sum(row["status"] == "completed" for row in outcomes),
        "failed": sum(row["status"] == "failed" for row in outcomes),
        "repeats": answers.repeats,
        "repeats_that_differ": answers.differing,
        "calls": sum(executions.values()),
        "finished_calls_rerun": sum(times > 1 for times in executions.values()),
        "calls_without_execution": sum(
            call["status"] == "ok" and not executions.get(call["call_id"]) for call in calls
        ),
        "in_flight_unknown": sum(call["status"] == "unknown" for call in calls),
        **{f"p{q}_ms": round(float(np.percentile(took, q)), 1) for q in (50, 90, 99) if took},
    }


def what_is_wrong(summary: dict[str, Any]) -> list[str]:
    """Sentences about what a run should not have shown; none when everything is accounted for."""
    none_allowed = {
        "lost": "events were lost",
        "answered_twice": "answers are too many for the events",
        "repeats_that_differ": "repeats differ from what they repeat",
        "finished_calls_rerun": "calls were executed more than once",
        "calls_without_execution": "calls are said to have been made and were not",
        "failed": "turns failed",
    }
    wrong = [f"{summary[name]} {what}" for name, what in none_allowed.items() if summary[name]]
    if summary["events"] != summary["outcomes"] + summary["dead_letters"]:
        wrong.append("outcomes and dead letters do not add up to the events")
    if summary["restarts"] != 1:
        wrong.append(f"the job was started again {summary['restarts']} times; expected once")
    return wrong


def _latencies(exchange: Exchange, kill: Kill) -> Table:
    """End to end, by when the event was sent and answered."""
    table = Table(title="from the producer's timestamp until a consumer had read the outcome")
    for column in ("outcomes", "turns", "p50 ms", "p90 ms", "p99 ms", "slowest ms"):
        table.add_column(column, justify="right")
    rows: dict[str, list[float]] = {"read before the kill": [], "while the driver was away": [], "sent after that": []}
    before, across, after = rows.values()
    for answer in exchange.answers.outcomes.values():
        sent_ms = exchange.sent[answer.place]
        kind = before if answer.at_ms < kill.at_ms else across if sent_ms < kill.back_ms else after
        kind.append(answer.at_ms - sent_ms)
    for name, values in {**rows, "all": [*before, *across, *after]}.items():
        figures = [f"{np.percentile(values, q):.0f}" for q in (50, 90, 99, 100)] if values else ["-"] * 4
        table.add_row(name, str(len(values)), *figures)
    return table


def _accounts(summary: dict[str, Any]) -> Table:
    table = Table(title="what the topics and the tool service say")
    table.add_column("")
    table.add_column("count", justify="right")
    for name in ("events", "outcomes", "dead_letters", "lost", "answered_twice", "repeats"):
        table.add_row(name.replace("_", " "), str(summary[name]))
    table.add_row("calls executed by the tool service", str(summary["calls"]))
    table.add_row("calls executed more than once", str(summary["finished_calls_rerun"]))
    table.add_row("calls under way at the kill, told as unknown", str(summary["in_flight_unknown"]))
    table.add_row("driver started again", f"{summary['restarts']}, answering after {summary['back_after_s']} s")
    return table

"""The demo behind `scripts/demo`: runs the main job on real parts and says what happened.

Every figure is read from the sinks and from the tool service's own counters, none from the job.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.table import Table

import demo_kafka
from hermes_spark.streaming.publish import read_table
from hermes_spark.tools.demo.messages import bad_rows, demo_event
from kafka_setup import KafkaError
from stack import ROOT, Part, Stack, StackError, ToolService, running_stack

FILE_S = 0.5
"""One file of events is dropped so often."""
START_S = 180.0
JOB_S = 360.0
"""How long the job may run beyond the time that dropping the events takes."""


def main() -> int:
    """Run the demo; 0 when everything is accounted for."""
    arguments = _arguments()
    directory = Path(arguments.keep) if arguments.keep else ROOT / ".state" / "demo"
    if not arguments.keep and directory.exists():
        shutil.rmtree(directory)
    console = Console(width=120)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    try:
        with running_stack(directory) as stack:
            return demo_kafka.run(arguments, stack, console) if arguments.kafka else _run(arguments, stack, console)
    except (StackError, KafkaError) as exc:
        print(f"demo: {exc}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: interrupted; all that it started has been stopped", file=sys.stderr)
        return 130


def _interrupt(number: int, frame: object) -> NoReturn:
    """Leave through the end of the stack, whose parts are stopped there; a second signal does not come in between."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt


def _run(arguments: argparse.Namespace, stack: Stack, console: Console) -> int:
    directory = stack.directory
    console.print("· starting Triton with the reference engine (a rule-based stand-in for the model, on the CPU)")
    grpc = stack.triton()
    console.print("· starting the demo's tool service (CRM, orders, knowledge base, tickets)")
    tools = stack.tools()
    events = directory / "events"
    events.mkdir(exist_ok=True)
    job = stack.job(_settings(directory, grpc, tools))
    console.print(
        "· submitting the streaming job (scripts/dgx-spark-submit jobs/stream_agent.py); its log: " + str(job.log)
    )
    lines = _lines(arguments.events, arguments.sessions)
    _await_start(directory / "checkpoint", job)
    producer = threading.Thread(target=_produce, args=(lines, events, arguments.rate), daemon=True)
    producer.start()
    console.print(f"· dropping {len(lines)} events for {arguments.sessions} sessions, {arguments.rate} a second")
    status = job.wait(JOB_S + len(lines) / arguments.rate)
    producer.join(10)
    if status != 0:
        raise StackError(f"the job ended with status {status}\n{job.tail()}")
    return _report(console, directory, tools)


def _await_start(checkpoint: Path, job: Part) -> None:
    """Return when the query runs, so that latencies are not those of a starting JVM."""
    deadline = time.monotonic() + START_S
    while not any(checkpoint.glob("commits/*")):
        if not job.alive or time.monotonic() > deadline:
            raise StackError(f"the job did not start\n{job.tail()}")
        time.sleep(0.2)


def _settings(directory: Path, grpc: str, tools: ToolService) -> dict[str, object]:
    return {
        "checkpoint": directory / "checkpoint",
        "source.kind": "files",
        "source.path": directory / "events",
        "model.url": grpc,
        "tools.base_url": tools.url,
        "sink.path": directory / "out",
        "state.local_path": directory / "rocksdb",
        "stop.idle_s": 4,
        "spark.ui.enabled": False,
    }


def _lines(count: int, sessions: int) -> list[bytes]:
    """The demo's rows: mostly messages, two controls, and some that are no events."""
    lines = [json.dumps(demo_event(i, sessions=sessions), ensure_ascii=False).encode() for i in range(count)]
    lines[count // 2 : count // 2] = [
        b'{"session_id": "demo-00000", "type": "reset"}',
        b'{"session_id": "demo-00001", "type": "cancel", "turn_id": "one-that-has-ended", "by": "the demo"}',
        *bad_rows(),
    ]
    return lines


def _produce(lines: list[bytes], events: Path, rate: int) -> None:
    step = max(1, round(rate * FILE_S))
    run = f"{time.time_ns()}"  # names are never used again, also not by the next run in a kept directory
    for number, start in enumerate(range(0, len(lines), step)):
        temporary = events / f"_{run}-{number:05d}.jsonl"
        temporary.write_bytes(b"\n".join(lines[start : start + step]) + b"\n")
        temporary.rename(events / f"{run}-{number:05d}.jsonl")
        time.sleep(FILE_S)


def _report(console: Console, directory: Path, tools: ToolService) -> int:
    out = directory / "out"
    events = sum(len(file.read_bytes().splitlines()) for file in (directory / "events").glob("*.jsonl"))
    outcomes, dead, controls = (read_table(str(out), name) for name in ("outcomes", "dead_letters", "controls"))
    executions = tools.counters()["executions"]
    summary = _summary(events, outcomes, dead, controls)
    summary["calls"] = sum(executions.values())
    table = Table(title="what the sinks and the tool service say")
    for column in ("status", "turns", "tool calls", "p50 ms", "p99 ms"):
        table.add_column(column, justify="right")
    for status in sorted(set(outcomes["status"].to_pylist())):
        part = outcomes.filter(pc.equal(outcomes["status"], status))
        calls = sum(len(calls) for calls in part["calls"].to_pylist())
        p50, p99 = _quantiles(part, 0.5, 0.99)
        table.add_row(status, str(part.num_rows), str(calls), f"{p50:.0f}", f"{p99:.0f}")
    console.print(table)
    console.print(f"outcomes, dead letters and controls: {out}")
    print(json.dumps({"summary": summary}))
    accounted = summary["events"] == summary["turns"] + summary["controls"] + summary["dead_letters"]
    repeated = [call for call, count in executions.items() if count != 1]
    if not accounted or summary["open"] or summary["failed"] or repeated:
        print(
            f"demo: not everything is accounted for (calls executed more than once: {len(repeated)})", file=sys.stderr
        )
        return 1
    return 0


def _summary(events: int, outcomes: pa.Table, dead: pa.Table, controls: pa.Table) -> dict[str, float]:
    statuses = outcomes["status"].to_pylist()
    calls = [call for calls in outcomes["calls"].to_pylist() for call in calls]
    times = (pc.max(outcomes["finished_at"]).as_py() - pc.min(outcomes["event_ts"]).as_py()).total_seconds()
    p50, p90, p99 = _quantiles(outcomes, 0.5, 0.9, 0.99)
    return {
        "events": events,
        "turns": len(statuses),
        "completed": statuses.count("completed"),
        "failed": statuses.count("failed"),
        "open": events - len(statuses) - dead.num_rows - controls.num_rows,
        "calls": 0,
        "calls_failed": sum(call["status"] != "ok" for call in calls),
        "controls": controls.num_rows,
        "dead_letters": dead.num_rows,
        "turns_per_second": round(len(statuses) / times, 1),
        "p50_ms": p50,
        "p90_ms": p90,
        "p99_ms": p99,
    }


def _quantiles(outcomes: pa.Table, *quantiles: float) -> list[float]:
    """Milliseconds from an event's time to the end of its turn."""
    took = pc.subtract(pc.cast(outcomes["finished_at"], pa.int64()), pc.cast(outcomes["event_ts"], pa.int64()))
    return [round(q.as_py(), 1) for q in pc.quantile(took, list(quantiles))]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/demo", description="Runs the main job end to end on this machine.")
    parser.add_argument(
        "--kafka",
        action="store_true",
        help="from topic to topic with a real broker, and the driver is killed in the middle",
    )
    parser.add_argument(
        "--events", type=int, help="message events (default 400; with --kafka 1000, the bad ones included)"
    )
    parser.add_argument("--sessions", type=int, help="sessions they belong to (default 60; with --kafka 200)")
    parser.add_argument("--rate", type=int, default=40, help="events a second (default 40)")
    parser.add_argument("--keep", help="directory to run in, kept and continued; default .state/demo, made anew")
    parser.add_argument(
        "--sink-mode", choices=["committed", "early"], default="committed", help="with --kafka: sink.kafka.mode"
    )
    arguments = parser.parse_args()
    defaults = (1000, 200) if arguments.kafka else (400, 60)
    arguments.events = defaults[0] if arguments.events is None else arguments.events
    arguments.sessions = defaults[1] if arguments.sessions is None else arguments.sessions
    if min(arguments.events, arguments.sessions, arguments.rate) < 1:
        parser.error("--events, --sessions and --rate are whole numbers from 1 on")
    return arguments


if __name__ == "__main__":
    sys.exit(main())

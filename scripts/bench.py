"""The benchmark behind `scripts/bench`: open loop, on real parts, latencies counted from the intended arrival.

One JSON line per run. `turn` is arrival to outcome durable in the journal, `published` arrival to the Parquet file that holds
the outcome being in place; both in milliseconds, as they are and above the floor. The floor of a turn is computed from the
engine's profile and the tools' configured delay: first token times model calls, its completion tokens over the profile's
rate, one tool delay per step that called. Turns that arrive during the first `--warm-up` seconds are not counted.

With `--kafka`, `read` is the producer's timestamp to a consumer having read the outcome, `durable` the part of it until the
outcome was in the journal.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import bench_journal
import bench_kafka
import bench_recovery
import bench_state
from accounting import Accounting
from bench_figures import (
    FIRST_TOKEN_MS,
    TOKENS_PER_SECOND,
    TOOL_DELAY_MS,
    batches,
    floor_ms,
    host_pids,
    json_lines,
    open_at,
    quantiles,
)
from hermes_spark.streaming.publish import read_table
from kafka_setup import KafkaError
from stack import ROOT, Stack, StackError, ToolService, running_stack

RATE = 100
"""Turns offered a second when nothing is said."""
MEMORY = "/dev/shm"
"""A file system in memory: the journal there is written and read the same way, and its syncs cost nothing."""
COMPARED = ("turns_per_s", "failed", "turn_ms", "turn_above_floor_ms", "cpu_s_per_1000_turns")


def main() -> int:
    """Run what was asked for."""
    arguments = _arguments()
    if arguments.journal_bytes or arguments.state:
        print(json.dumps(bench_journal.run() if arguments.journal_bytes else bench_state.run(arguments)))
        return 0
    directory = ROOT / ".state" / "bench"
    shutil.rmtree(directory, ignore_errors=True)
    try:
        with running_stack(directory) as stack:
            _measure(arguments, stack)
    except (StackError, KafkaError) as exc:
        print(f"bench: {exc}", file=sys.stderr)
        return 1
    return 0


def _measure(arguments: argparse.Namespace, stack: Stack) -> None:
    triton = stack.triton(
        first_token_ms=FIRST_TOKEN_MS, tokens_per_second=TOKENS_PER_SECOND, max_in_flight=arguments.in_flight
    )
    if arguments.recovery:
        print(json.dumps(bench_recovery.run(arguments, stack, triton, TOOL_DELAY_MS)), flush=True)
        return
    tools = stack.tools("--delay-ms", str(TOOL_DELAY_MS))
    if arguments.kafka:
        plain = functools.partial(_plain, arguments, stack, triton, tools) if arguments.plain else None
        for line in bench_kafka.run(arguments, stack, triton, tools, plain):
            print(json.dumps(line), flush=True)
        return
    rates = [arguments.saturation] if arguments.saturation else arguments.rate
    for rate, hosts in itertools.product(rates, arguments.hosts):
        result = _job(arguments, stack, triton, tools, (rate, hosts))
        if arguments.memory_journal:
            with tempfile.TemporaryDirectory(prefix="hermes-bench-", dir=MEMORY) as state:
                in_memory = _job(arguments, stack, triton, tools, (rate, hosts), state)
            result["memory_journal"] = {name: in_memory[name] for name in COMPARED}
            result["share_of_memory_journal"] = round(result["turns_per_s"] / in_memory["turns_per_s"], 3)
        if arguments.plain:
            plain = _plain(arguments, stack, triton, tools, rate)
            result |= {"plain": plain, "share_of_plain": round(result["turns_per_s"] / plain["turns_per_s"], 3)}
        print(json.dumps(result), flush=True)


def _job(
    arguments: argparse.Namespace,
    stack: Stack,
    triton: str,
    tools: ToolService,
    rate_and_hosts: tuple[int, int],
    state: str = "",
) -> dict[str, Any]:
    """One run of the job; `state`: where it keeps its state, if not beside its checkpoint."""
    rate, wanted = rate_and_hosts
    run = stack.directory / f"run-{rate}-{wanted}{'-memory' if state else ''}"
    part = stack.job(
        {
            "checkpoint": run / "checkpoint",
            "source.kind": "load",
            "source.rows_per_second": rate,
            "source.duration_s": arguments.seconds,
            "source.sessions": rate * arguments.sessions_per_rate,
            "model.url": triton,
            "model.max_in_flight": arguments.in_flight,
            "tools.base_url": tools.url,
            "sink.path": run / "out",
            "sink.publish_interval_ms": arguments.publish_interval_ms,
            "trigger.interval_ms": arguments.trigger_ms,
            "hosts": wanted,
            "host.max_open_turns": arguments.open_turns,
            "state.path": state,
            "state.local_path": run / "rocksdb",
            "telemetry.turn_log": run / "log",
            "stop.idle_s": 4,
            "spark.ui.enabled": False,
            "spark.sql.streaming.numRecentProgressUpdates": 5000,
        },
        f"local[{max(arguments.slots, wanted + 2)}]",
    )
    log_start = part.log.stat().st_size
    hosts = host_pids(part.log, log_start, max(1, wanted), lambda: part.alive)
    with Accounting(hosts) as accounting:
        status = part.wait(arguments.seconds + 240)
    if status != 0:
        raise StackError(f"the job ended with status {status}\n{part.tail()}")
    turns = json_lines(run / "log", "turns-*.jsonl")
    result = {"hosts": len(hosts), **_result(arguments, rate, turns, run)}
    thousands = len(turns) / 1000
    result["cpu_s_per_1000_turns"] = {role: round(s / thousands, 2) for role, s in accounting.cpu_s().items()}
    result["peak_mb"] = dict(accounting.peak_mb)
    return result


def _result(arguments: argparse.Namespace, rate: int, turns: list[dict[str, Any]], run: Path) -> dict[str, Any]:
    outcomes = read_table(run / "out", "outcomes").to_pylist()
    start = min(turn["ts"] for turn in turns)
    window = (start + arguments.warm_up * 1000, start + arguments.seconds * 1000)
    floors = {row["turn_id"]: floor_ms(row) for row in outcomes}
    published = _published_at(run / "out")
    spans = [(turn["ts"], turn["at_ms"]) for turn in turns]
    counted = [turn for turn in turns if window[0] <= turn["ts"] < window[1]]
    rows = [row for row in outcomes if window[0] <= row["event_ts"].timestamp() * 1000 < window[1]]
    turn_ms = {turn["turn_id"]: turn["at_ms"] - turn["ts"] for turn in counted}
    published_ms = {r["turn_id"]: published[r["batch_id"]] - r["event_ts"].timestamp() * 1000 for r in rows}
    ended = sum(window[0] <= turn["at_ms"] < window[1] for turn in turns)
    return {
        "mode": "saturation" if arguments.saturation else "rate",
        "offered_per_s": rate,
        "seconds": arguments.seconds,
        "turns": len(turns),
        "events": rate * arguments.seconds,
        "outcomes": len(outcomes),
        "failed": sum(row["status"] != "completed" for row in outcomes),
        "turns_per_s": round(ended / (arguments.seconds - arguments.warm_up), 1),
        "turns_per_s_to_the_end": round(len(turns) / (max(turn["at_ms"] for turn in turns) - start) * 1000, 1),
        "open_at_half": open_at(spans, start + arguments.seconds * 500),
        "open_at_end": open_at(spans, window[1]),
        "turn_ms": quantiles(turn_ms.values()),
        "turn_above_floor_ms": quantiles(ms - floors[turn] for turn, ms in turn_ms.items() if turn in floors),
        "published_ms": quantiles(published_ms.values()),
        "published_above_floor_ms": quantiles(ms - floors[turn] for turn, ms in published_ms.items()),
        "floor_p50_ms": quantiles(floors.values())["p50"],
        "batch_ms_p50": batches(run / "log"),
    }


def _published_at(out: Path) -> dict[int, float]:
    """When each batch's file of outcomes was in place (ms), by batch id."""
    files = (out / "outcomes").glob("batch_id=*/*.parquet")
    return {int(file.parent.name.split("=")[1]): file.stat().st_mtime * 1000 for file in files}


def _plain(arguments: argparse.Namespace, stack: Stack, triton: str, tools: ToolService, rate: int) -> dict[str, Any]:
    command = [sys.executable, str(ROOT / "scripts/plain.py"), "--model-url", triton, "--tools-url", tools.url]
    command += ["--rate", str(rate), "--seconds", str(arguments.seconds), "--in-flight", str(arguments.in_flight)]
    command += ["--sessions", str(rate * arguments.sessions_per_rate)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=arguments.seconds + 120, check=False
    )
    if done.returncode != 0:
        raise StackError(f"the plain run failed\n{done.stderr[-2000:]}")
    turns = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    start = min(turn["ts"] for turn in turns)
    window = (start + arguments.warm_up * 1000, start + arguments.seconds * 1000)
    ended = sum(window[0] <= turn["at_ms"] < window[1] for turn in turns)
    counted = [turn["at_ms"] - turn["ts"] for turn in turns if window[0] <= turn["ts"] < window[1]]
    return {
        "turns": len(turns),
        "failed": sum(turn["status"] != "completed" for turn in turns),
        "turns_per_s": round(ended / (arguments.seconds - arguments.warm_up), 1),
        "turn_ms": quantiles(counted),
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--rate", type=int, action="append", help=f"turns offered per second; may be repeated (default {RATE})"
    )
    parser.add_argument("--saturation", type=int, default=0, metavar="RATE", help="offer more than can be done")
    parser.add_argument("--plain", action="store_true", help="run the same turns with bare asyncio as well")
    parser.add_argument(
        "--memory-journal", action="store_true", help=f"run the same turns with the state in {MEMORY} as well"
    )
    parser.add_argument(
        "--journal-bytes", action="store_true", help="only say what a turn leaves in the journal; needs no Spark"
    )
    parser.add_argument(
        "--recovery", type=int, default=0, metavar="TIMES", help="only kill the host, then everything, so many times"
    )
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--warm-up", type=int, default=10)
    parser.add_argument("--sessions-per-rate", type=int, default=20, help="sessions = this times the rate (default 20)")
    parser.add_argument("--in-flight", type=int, default=512, help="model calls under way at the same time")
    parser.add_argument("--trigger-ms", type=int, default=200)
    parser.add_argument("--publish-interval-ms", type=int, default=0)
    parser.add_argument("--slots", type=int, default=3, help="Spark's local slots: one host per two")
    parser.add_argument(
        "--hosts", type=int, action="append", help="agent hosts; may be repeated, each is a run (default: by slots)"
    )
    parser.add_argument(
        "--open-turns", type=int, default=1024, help="open turns of one host: a small number makes that the limit"
    )
    bench_state.add_arguments(parser)
    bench_kafka.add_arguments(parser)
    arguments = parser.parse_args()
    arguments.hosts = arguments.hosts or [0]
    arguments.rate = arguments.rate or ([] if arguments.kafka else [RATE])
    return arguments


if __name__ == "__main__":
    sys.exit(main())

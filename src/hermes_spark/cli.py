"""The `hermes-spark` command: runs the job, and looks at what a job has left, without Spark and beside a job that runs."""

from __future__ import annotations

import argparse
import datetime as dt
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.parquet

from hermes_spark.errors import HermesError, SettingsError, StartError
from hermes_spark.state.agent_state import AgentState
from hermes_spark.state.arrow import describe
from hermes_spark.state.storage import storage_errors
from hermes_spark.streaming.audit import milliseconds, session_rows, verify
from hermes_spark.streaming.committed import SESSIONS, Committed


def main() -> None:
    """The `hermes-spark` command: ends the process with 0 well, 1 failed, 2 not usable as asked for."""
    sys.exit(command(sys.argv[1:]))


def command(arguments: Sequence[str]) -> int:
    """Run the command with these arguments; the exit status. Ends the process (`SystemExit`) for help and unknown options."""
    asked = _parser().parse_args(arguments)
    try:
        status: int = asked.run(asked)
        sys.stdout.flush()
    except HermesError as exc:
        sys.stderr.write(f"hermes-spark: {exc}\n")
        return 2 if isinstance(exc, SettingsError | StartError) else 1
    except BrokenPipeError:  # whoever read the output has seen enough, as with `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="hermes-spark", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="run the streaming job in this process (see scripts/dgx-spark-submit)")
    run.set_defaults(run=_run)
    state = commands.add_parser("state", help="look at the sessions of a checkpoint").add_subparsers(
        required=True, metavar="COMMAND"
    )
    ls = state.add_parser("ls", help="list the live sessions")
    ls.set_defaults(run=_ls)
    show = state.add_parser("show", help="print one session as JSON")
    show.add_argument("session", metavar="SESSION")
    show.set_defaults(run=_show)
    export = state.add_parser("export", help="write all sessions out, one row each")
    export.add_argument("--format", choices=["jsonl", "parquet"], default="jsonl")
    export.add_argument("--output", metavar="FILE", help="where to (default for jsonl: standard output)")
    export.set_defaults(run=_export)
    audit = commands.add_parser("audit", help="print the calls of a session, or verify what was published")
    audit.add_argument("session", metavar="SESSION", nargs="?", help="print this session's calls, oldest first")
    audit.add_argument(
        "--verify", action="store_true", help="find published outcomes that were changed, removed or added"
    )
    audit.add_argument("--sink", metavar="PATH", help="the job's spark.hermes.sink.path")
    audit.set_defaults(run=_audit)
    for each in (ls, show, export, audit):
        each.add_argument("--checkpoint", metavar="PATH", required=True, help="the job's spark.hermes.checkpoint")
    for each in (ls, show, export):
        each.add_argument("--batch", metavar="N", type=int, help="as of batch N (default: the last committed one)")
    return parser


def _run(_: argparse.Namespace) -> int:
    from hermes_spark.app.driver import stream_agent  # needs Spark, which the other commands do without

    return stream_agent()


# ---------------------------------------------------------------------- state


def _ls(asked: argparse.Namespace) -> int:
    committed = Committed.at(asked.checkpoint, asked.batch)
    _say(f"{'updated':24} {'shard':>5} {'turns':>6} {'calls':>6} {'messages':>8} {'waiting':>7} {'turn':8} session")
    for shard in committed.shards:
        for state in committed.sessions(shard):
            _say(
                f"{_utc(state.updated_ms):24} {shard:5} {state.turns:6} {state.calls:6} {len(state.messages):8} "
                f"{len(state.queue):7} {_turn(state):8} {_shown(state.session_id)}"
            )
    return 0


def _turn(state: AgentState) -> str:
    if state.turn is None:
        return "-"
    return "stopping" if state.turn.stopping else "open"


def _show(asked: argparse.Namespace) -> int:
    state = Committed.at(asked.checkpoint, asked.batch).session(asked.session)
    _say(msgspec.json.format(msgspec.json.encode(describe(state)), indent=2).decode())
    return 0


def _export(asked: argparse.Namespace) -> int:
    committed = Committed.at(asked.checkpoint, asked.batch)
    if asked.output is None:
        if asked.format == "parquet":
            raise SettingsError("A Parquet file is not for reading along; name one with --output FILE.")
        _write_lines(committed, sys.stdout.buffer)
        return 0
    target = Path(asked.output)
    unfinished = target.with_name(f".{target.name}.unfinished")
    with storage_errors(target):
        try:
            with unfinished.open("wb") as file:
                (_write_parquet if asked.format == "parquet" else _write_lines)(committed, file)
            unfinished.replace(target)
        finally:
            unfinished.unlink(missing_ok=True)
    return 0


def _write_lines(committed: Committed, out: BinaryIO) -> None:
    """One JSON object per session, with the columns of `SESSIONS` but with JSON values as they are."""
    for shard in committed.shards:
        for state in committed.sessions(shard):
            row = {**describe(state), "shard": shard, "batch_id": committed.commit.batch}
            out.write(msgspec.json.encode(row) + b"\n")


def _write_parquet(committed: Committed, out: BinaryIO) -> None:
    with pyarrow.parquet.ParquetWriter(out, SESSIONS) as writer:
        for batch in _batches(committed):
            writer.write_batch(batch)


def _batches(committed: Committed) -> Iterator[pa.RecordBatch]:
    for shard in committed.shards:
        yield from committed.tables(shard)


# ---------------------------------------------------------------------- audit


def _audit(asked: argparse.Namespace) -> int:
    if asked.verify == (asked.session is not None):
        raise SettingsError("Name a SESSION to print its calls, or give --verify to check all that was published.")
    if asked.verify:
        return _verify(asked.checkpoint, asked.sink)
    rows = session_rows(Committed.at(asked.checkpoint), asked.session, asked.sink)
    _say(f"{'done':24} {'status':8} {'turn':8} {'step':>4} {'hash':12} call")
    for row in rows:
        for call in row["calls"]:
            done = _utc(milliseconds(call["done_at"]))
            _say(
                f"{done} {call['status']:8} {row['turn_id'][:8]} {call['step']:4} {(call['hash'] or '-')[:12]:12} "
                f"{_shown(call['name'])} {_shown(call['arguments'])}"
            )
    return 0


def _verify(checkpoint: str, sink: str | None) -> int:
    if sink is None:
        raise SettingsError(
            "--verify compares with what was published: give --sink PATH, the job's spark.hermes.sink.path."
        )
    report = verify(checkpoint, sink)
    for finding in report.findings:
        _say(_shown(finding))
    others = f"; {report.others} outcomes of other checkpoints were left out" if report.others else ""
    verdict = f"{len(report.findings)} findings" if report.findings else "all as they were recorded"
    _say(f"{report.outcomes} outcomes with {report.calls} calls: {verdict}{others}")
    return 1 if report.findings else 0


# ---------------------------------------------------------------------- output


def _say(line: str) -> None:
    """A line in UTF-8, whatever the terminal's locale: session ids and messages are any text."""
    sys.stdout.buffer.write(line.encode() + b"\n")


def _shown(text: str) -> str:
    """`text` as it is, or as JSON when it would break the line or command the terminal."""
    return text if text.isprintable() else ascii(text)


def _utc(ms: int) -> str:
    moment = dt.datetime.fromtimestamp(ms // 1000, dt.timezone.utc)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{ms % 1000:03}Z"

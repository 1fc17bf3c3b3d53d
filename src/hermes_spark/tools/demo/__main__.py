"""Runs the demo's tool service: `python -m hermes_spark.tools.demo --port 0 --db shop.sqlite --port-file port`."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path

import uvloop
from aiohttp import web

from hermes_spark.tools.demo.service import Delays, ToolService
from hermes_spark.tools.demo.shop import Shop

SHUTDOWN_S = 1.0
"""How long calls under way may still take when the service is told to stop."""


def main() -> None:
    """Serve on 127.0.0.1 until SIGINT or SIGTERM."""
    uvloop.run(_serve(_arguments()))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m hermes_spark.tools.demo", description=__doc__)
    parser.add_argument("--db", type=Path, required=True, help="the SQLite file; made and filled if it is missing")
    parser.add_argument("--port", type=int, default=0, help="0: a free one")
    parser.add_argument("--port-file", type=Path, help="written, with the port, once the service answers")
    parser.add_argument("--delay-ms", type=int, default=30, help="how long a tool takes")
    parser.add_argument("--jitter-ms", type=int, default=0, help="at most so much longer, by call id")
    parser.add_argument("--slow-ms", type=int, default=20_000, help="how long a tool takes in mode slow")
    parser.add_argument("--tool-delay-ms", type=_tool_delay, action="append", default=[], metavar="TOOL=MS")
    return parser.parse_args()


def _tool_delay(text: str) -> tuple[str, int]:
    tool, _, milliseconds = text.partition("=")
    return tool, int(milliseconds)


async def _serve(arguments: argparse.Namespace) -> None:
    delays = Delays(arguments.delay_ms, dict(arguments.tool_delay_ms), arguments.jitter_ms, arguments.slow_ms)
    shop = Shop(arguments.db)
    runner = web.AppRunner(
        ToolService(shop, delays).application(), access_log=None, shutdown_timeout=SHUTDOWN_S, handle_signals=False
    )
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", arguments.port).start()
    port = runner.addresses[0][1]
    if arguments.port_file:
        _write_whole(arguments.port_file, f"{port}\n")
    sys.stdout.write(f"tool service: http://127.0.0.1:{port}\n")
    sys.stdout.flush()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()
    await runner.cleanup()
    shop.close()


def _write_whole(path: Path, text: str) -> None:
    """A reader finds the file whole or not at all."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


if __name__ == "__main__":
    main()

"""`scripts/bench --journal-bytes`: what a turn of three steps leaves in the journal, when every message has 400 characters.

That is the user's message, two completions with a call each, their results, and the answer: six messages, on a real host.
Bytes are no time, so the same measurement is a test. A long-lived journal also holds 100 bytes per file of 8 MB.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from bench_host import BenchHost, MadeUpModel, MadeUpTools, Texts
from hermes_spark.settings import Settings

CHARACTERS = 400
CALLS = 2
TURNS = 10


def run() -> dict[str, Any]:
    """The line to print: turns one after the other (each record durable alone), and all at once."""
    with tempfile.TemporaryDirectory(prefix="hermes-bench-") as directory:
        alone = asyncio.run(bytes_per_turn(Path(directory) / "alone", together=False))
        together = asyncio.run(bytes_per_turn(Path(directory) / "together", together=True))
    return {
        "mode": "journal bytes",
        "steps": CALLS + 1,
        "characters": CHARACTERS,
        "bytes_per_turn": round(alone),
        "bytes_per_turn_together": round(together),
    }


async def bytes_per_turn(directory: Path, *, together: bool) -> float:
    """Bytes that the journals of a host grow by per turn; `together`: all turns are under way at once."""
    texts = Texts()
    model, tools = MadeUpModel(texts, calls=CALLS, characters=CHARACTERS), MadeUpTools(texts, CHARACTERS)
    host = BenchHost(directory / "state", directory / "local", Settings(), model, tools)
    await host.start()
    before = _size(directory)
    values = [(f"session-{n}", _event(f"session-{n}", texts.text(CHARACTERS))) for n in range(TURNS)]
    for batch in [values] if together else [[value] for value in values]:
        await host.batch(batch)
        await host.settled()
    await host.batch([])
    after = _size(directory)
    await host.stop()
    return (after - before) / TURNS


def _event(session: str, text: str) -> bytes:
    return msgspec.json.encode({"session_id": session, "messages": [{"role": "user", "content": text}]})


def _size(directory: Path) -> int:
    return sum(path.stat().st_size for path in (directory / "state" / "journal").rglob("*.log"))

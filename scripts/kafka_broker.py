"""A local Kafka broker as a part of a `Stack`: started by scripts/kafka, ended with the process that started it.

Used by the demo, the benchmark and the tests.
"""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

from kafka_server import HOST, answers
from kafka_setup import jars
from stack import ROOT, START_S, Part, Stack, StackError


class KafkaBroker:
    """One broker with a directory of its own; after `start` it has the ports and topics that it had before `stop`.

    Start it from a thread that lives as long as the broker shall: the kernel ends the broker with that thread.
    """

    def __init__(self, stack: Stack, *options: str) -> None:
        """`options` are those of `scripts/kafka run`, such as `--set message.max.bytes=20000000`."""
        self._stack = stack
        self._options = options
        self._state: Path = stack.directory / "kafka"
        self.part: Part | None = None

    @property
    def bootstrap(self) -> str:
        """`host:port` of the plain listener."""
        return self.address("PLAINTEXT")

    def address(self, listener: str) -> str:
        """`host:port` of a listener."""
        ports: dict[str, int] = json.loads((self._state / "ports.json").read_text())
        return f"{HOST}:{ports[listener]}"

    def start(self) -> str:
        """Start it, wait until it answers, and return `bootstrap`. Raises `StackError` when it does not come up."""
        jars("broker")  # here, so that the wait below need not cover a download
        (self._state / "server.json").unlink(missing_ok=True)
        part = self.part = self._stack.spawn(
            "kafka", [str(ROOT / "scripts/kafka"), "run", "--state", str(self._state), *self._options]
        )
        deadline = time.monotonic() + START_S
        while not ((self._state / "server.json").exists() and answers(int(self.bootstrap.rpartition(":")[2]))):
            if not part.alive or time.monotonic() > deadline:
                raise StackError(f"the Kafka broker did not start; its log is {part.log}\n{part.tail()}")
            time.sleep(0.1)
        return self.bootstrap

    def stop(self) -> None:
        """End it in order; its data stay."""
        assert self.part is not None
        self.part.stop()

    def kill(self) -> None:
        """End it at once, as a crash would."""
        assert self.part is not None
        self.part.signal(signal.SIGKILL)
        self.part.wait(10)

"""Starts and stops the parts around the streaming job on this machine: Triton, the demo's tool service, the job itself.

Used by the demo, the benchmark and the tests. Every part runs in a process group of its own, writes a log, and is ended by
`Stack.stop`, whatever happened in between.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
START_S = 60.0
STOP_S = 10.0


class StackError(RuntimeError):
    """A part did not come up, or did not do what it was asked; names the part and its log."""


@dataclass
class Part:
    """A process group with a log."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def signal(self, number: int) -> None:
        """Signal the whole group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def wait(self, timeout_s: float) -> int:
        """Wait for its end and return the status. Raises `StackError` when it takes longer."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise StackError(
                f"{self.name} did not end within {timeout_s:g} s; its log is {self.log}\n{self.tail()}"
            ) from None

    def stop(self) -> None:
        """SIGTERM, then SIGKILL."""
        self.signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_S)
        self.signal(signal.SIGKILL)
        self.process.wait(STOP_S)

    def tail(self, lines: int = 30) -> str:
        """The end of the log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


@dataclass
class ToolService:
    """The running tool service, over its own HTTP interface."""

    url: str
    part: Part

    def counters(self) -> dict[str, dict[str, int]]:
        """What it executed: `executions` by call id, `by_tool`, and more."""
        with urllib.request.urlopen(f"{self.url}/counters", timeout=10) as answer:
            return json.load(answer)

    def control(self, **orders: object) -> None:
        """Make it misbehave: see `hermes_spark.tools.demo.service`."""
        body = json.dumps(orders).encode()
        request = urllib.request.Request(f"{self.url}/control", body, {"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=10).close()


@dataclass
class Stack:
    """All parts of one run, below one directory."""

    directory: Path
    parts: list[Part] = field(default_factory=list)
    stop_triton: list[list[str]] = field(default_factory=list)

    def spawn(self, name: str, command: list[str], **environment: str) -> Part:
        """Start a part in a process group of its own, with its log in the directory."""
        log = self.directory / f"{name}.log"
        with log.open("ab") as out:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        part = Part(name, process, log)
        self.parts.append(part)
        return part

    def triton(self, ports: Sequence[int] = (), **parameters: object) -> str:
        """Start Triton with the reference engine; returns its gRPC address. `ports` are HTTP's, gRPC's and that of metrics."""
        http, grpc, metrics = ports or free_ports(3)
        state = ["--state", str(self.directory / "triton")]
        command = [str(ROOT / "scripts/triton"), "start", *state]
        command += ["--http-port", str(http), "--grpc-port", str(grpc), "--metrics-port", str(metrics)]
        for name, value in parameters.items():
            command += ["--set", f"{name}={value}"]
        self.stop_triton.append([str(ROOT / "scripts/triton"), "stop", *state])
        if status := subprocess.run(command, check=False, cwd=ROOT, timeout=600).returncode:
            raise StackError(f"scripts/triton start ended with status {status}; its messages are above")
        return f"127.0.0.1:{grpc}"

    def tools(self, *options: str) -> ToolService:
        """Start the demo's tool service."""
        port_file = self.directory / "tools.port"
        port_file.unlink(missing_ok=True)
        command = [sys.executable, "-m", "hermes_spark.tools.demo", "--port-file", str(port_file)]
        part = self.spawn("tools", [*command, "--db", str(self.directory / "tools.sqlite"), *options])
        deadline = time.monotonic() + START_S
        while not port_file.exists():
            if not part.alive or time.monotonic() > deadline:
                raise StackError(f"the tool service did not start; its log is {part.log}\n{part.tail()}")
            time.sleep(0.05)
        return ToolService(f"http://127.0.0.1:{port_file.read_text().strip()}", part)

    def job(
        self, settings: dict[str, object], master: str = "local[3]", options: Sequence[str] = (), **environment: str
    ) -> Part:
        """Submit the streaming job with `spark.hermes.*` settings; `options` are those of dgx-spark-submit."""
        # Executors of a cluster run on this machine too, so that nothing need be shipped.
        command = [str(ROOT / "scripts/dgx-spark-submit"), "--installed", *options, "--master", master]
        for name, value in settings.items():
            shown = str(value).lower() if isinstance(value, bool) else str(value)
            command += ["--conf", f"{name if name.startswith('spark.') else f'spark.hermes.{name}'}={shown}"]
        return self.spawn("job", [*command, str(ROOT / "jobs/stream_agent.py")], **environment)

    def stop(self) -> None:
        """End everything that was started, newest first."""
        for part in reversed(self.parts):
            part.stop()
        for command in self.stop_triton:
            subprocess.run(command, check=False, cwd=ROOT, timeout=60, stdout=subprocess.DEVNULL)


@contextlib.contextmanager
def running_stack(directory: Path) -> Iterator[Stack]:
    """A stack that is stopped at the end of the block."""
    directory.mkdir(parents=True, exist_ok=True)
    stack = Stack(directory)
    try:
        yield stack
    finally:
        stack.stop()


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that are free now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports

"""Real servers for tests: started on free ports of 127.0.0.1, stopped with what they hold, several at once if need be."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TRITON = ROOT / "scripts" / "triton"
START_TIMEOUT_S = 600  # the first start may have to make the server's environment
STOP_TIMEOUT_S = 60


@dataclass(frozen=True)
class TritonServer:
    """A running Triton server that serves the model repository of this checkout."""

    grpc_url: str
    """`host:port`, as `tritonclient` takes it."""
    http_url: str
    """With scheme."""
    metrics_url: str
    pid: int
    """Of the server; the model's process is its child, in the same process group."""
    log: Path

    def kill(self) -> None:
        """End server and model at once, as a crash would."""
        os.killpg(self.pid, signal.SIGKILL)


@contextmanager
def running_triton(**parameters: object) -> Iterator[TritonServer]:
    """A Triton server for the length of a `with`; `parameters` override those of the model's `config.pbtxt`."""
    state = Path(tempfile.mkdtemp(prefix="hermes-triton-"))
    start = ["start", "--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"]
    for name, value in parameters.items():
        start += ["--set", f"{name}={value}"]
    try:
        started = triton(state, *start, timeout=START_TIMEOUT_S)
        if started.returncode != 0:
            raise RuntimeError(f"scripts/triton could not start the server: {started.stderr}")
        yield _server(state)
    finally:
        triton(state, "stop", timeout=STOP_TIMEOUT_S)
        shutil.rmtree(state)


def triton(state: Path, *arguments: str, timeout: float) -> subprocess.CompletedProcess[str]:
    """`scripts/triton` with a state directory of its own."""
    command = [sys.executable, str(TRITON), *arguments, "--state", str(state)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


def _server(state: Path) -> TritonServer:
    facts = json.loads((state / "server.json").read_text(encoding="utf-8"))
    return TritonServer(
        grpc_url=f"127.0.0.1:{facts['grpc_port']}",
        http_url=f"http://127.0.0.1:{facts['http_port']}",
        metrics_url=f"http://127.0.0.1:{facts['metrics_port']}/metrics",
        pid=facts["pid"],
        log=Path(facts["log"]),
    )

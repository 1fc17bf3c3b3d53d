"""Runs one job for `scripts/dgx-spark-submit`: passes signals to the Python driver, and with `--supervise` starts it again.

    supervise.py [--supervise] -- COMMAND...

spark-submit is a JVM that dies of SIGTERM within a second and takes the Python driver along, so it gets none from here. It
runs in a session of its own, and SIGTERM, SIGINT and SIGHUP go to the driver below it, which says where it is in the file that
HERMES_DRIVER_NOTE names. Only the standard library is used: whatever Python there is can run this.

Exit status: the job's own; 128 + N if signal N ended it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

PAUSES_S = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Before the first start again, the second... of a row of failures without progress in between."""
POLL_S = 0.05
END_S = 5.0
"""How long a job may take to end after a second signal, before it is killed."""
PR_SET_PDEATHSIG = 1
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True)
class Again:
    """Start the job again."""

    pause_s: float


@dataclass(frozen=True)
class GiveUp:
    """Leave it at that."""

    why: str


@dataclass
class Patience:
    """Decides whether starting a job again can mend its end."""

    pauses_s: tuple[float, ...] = PAUSES_S
    failures: int = 0
    """In a row, without a commit in between."""

    def after(self, status: int, commits: int) -> Again | GiveUp:
        """The job failed with `status` (not 0) after so many `commits` in its last life."""
        if status == 2:
            return GiveUp("it cannot start as it is configured, which no restart mends")
        if status != 1 and status <= 128:
            return GiveUp(f"status {status} is none that a restart mends")
        self.failures = 1 if commits else self.failures + 1
        if self.failures > len(self.pauses_s):
            return GiveUp(f"it has failed {self.failures} times in a row without a commit in between")
        return Again(self.pauses_s[self.failures - 1])


@dataclass
class Runner:
    """One command at a time, and the signals for it."""

    command: list[str]
    note: Path
    asked: int = 0
    """Signals so far."""
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    _kill_at: float = float("inf")

    def run(self) -> int:
        """Run the command to its end; its status."""
        self.note.unlink(missing_ok=True)
        self._process = subprocess.Popen(
            self.command,
            start_new_session=True,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - this program has one thread
            env={**os.environ, "HERMES_DRIVER_NOTE": str(self.note)},
        )
        while (status := self._process.poll()) is None:
            if time.monotonic() > self._kill_at:
                self._signal_group(signal.SIGKILL)
            time.sleep(POLL_S)
        self._signal_group(signal.SIGKILL)  # what is left of it: a driver whose JVM was killed
        return status if status >= 0 else 128 - status

    def commits(self) -> int:
        """Batches that the last life has committed."""
        return self._noted().get("commits", 0)

    def pass_on(self, number: int, frame: object) -> None:
        """A signal came: ask the driver to stop, or at the second one see that it does."""
        self.asked += 1
        if self.asked > 1:
            self._kill_at = min(self._kill_at, time.monotonic() + END_S)
        if self._process is None or self._process.poll() is not None:
            return
        if pid := self._noted().get("pid"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
                return
        self._signal_group(signal.SIGTERM)  # nothing has begun that could be finished

    def pause(self, seconds: float) -> None:
        """Wait, but not on after a signal."""
        until = time.monotonic() + seconds
        while not self.asked and time.monotonic() < until:
            time.sleep(POLL_S)

    def _noted(self) -> dict[str, int]:
        try:
            noted: dict[str, int] = json.loads(self.note.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return noted

    def _signal_group(self, number: int) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def supervise(runner: Runner, patience: Patience | None) -> int:
    """Run the job, again as long as `patience` says so (None: once); the last status."""
    while True:
        status = runner.run()
        if patience is None or runner.asked or status == 0:
            return status
        verdict = patience.after(status, runner.commits())
        if isinstance(verdict, GiveUp):
            say(f"the job ended with status {status} and is not started again: {verdict.why}")
            return status
        say(
            f"the job ended with status {status}; it is started again in {verdict.pause_s:g} s "
            f"(failure {patience.failures} of {len(patience.pauses_s)} without a commit in between)"
        )
        runner.pause(verdict.pause_s)
        if runner.asked:
            return status


def say(text: str) -> None:
    """One plain line on stderr."""
    print(f"dgx-spark-submit: {text}", file=sys.stderr, flush=True)


def _die_with_parent() -> None:
    """In the child: be killed when this program is, which is the only way to end it without asking."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main(arguments: list[str]) -> int:
    """Run what follows `--`."""
    options, command = arguments[: arguments.index("--")], arguments[arguments.index("--") + 1 :]
    with tempfile.TemporaryDirectory(prefix="hermes-driver-") as directory:
        runner = Runner(command, Path(directory) / "note.json")
        for number in SIGNALS:
            signal.signal(number, runner.pass_on)
        return supervise(runner, Patience() if "--supervise" in options else None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Named crash points: places where a test makes a process die, stop or raise, at an exact moment.

Code calls `point("journal.after_write")`; nothing happens unless the environment arms that name::

    HERMES_FAULTS="journal.after_write=kill@3,host.after_call=raise"
    HERMES_FAULTS_DIR=/tmp/marks

`kill` sends SIGKILL to this process, `stop` sends SIGSTOP, `raise` raises `InjectedFault`. `@3` means the third time this
process passes the point (default: the first), and `x2` behind it lets it act at two passages from there on. With a directory
given, a fault fires so often over all processes and restarts: each time it creates a file of the point's name there (the
second time with `.2` behind it), and the files prove afterwards that it did.

An unknown name raises wherever it is written, so that a typing error cannot make a crash test pass by doing nothing.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from pathlib import Path
from typing import Literal, NamedTuple, cast

from hermes_spark.errors import SettingsError

Action = Literal["kill", "stop", "raise"]

POINTS = frozenset(
    {
        "ahead.after_taken",
        "journal.before_write",
        "journal.after_write",
        "journal.after_sync",
        "rotation.after_create",
        "rotation.after_mark",
        "snapshot.before_manifest",
        "snapshot.after_manifest",
        "retention.after_mark",
        "retention.after_remove",
        "host.before_intent",
        "host.after_intent",
        "host.after_call",
        "host.after_result",
        "task.after_offer",
        "driver.after_handoff",
        "driver.before_commit",
        "driver.after_commit",
        "driver.after_publish",
    }
)
"""Every crash point of the package. `before_write`, `after_write` and `after_sync` enclose one group commit."""

_ENTRY = re.compile(r"(?P<name>[a-z_.]+)=(?P<action>kill|stop|raise)(?:@(?P<count>[1-9][0-9]*))?(?:x(?P<times>[1-9]))?")


class InjectedFault(BaseException):
    """Raised by a point armed with `raise`. Not an `Exception`, so that no handler takes it for an ordinary failure."""


class _Fault(NamedTuple):
    """What is armed at one point."""

    name: str
    action: Action
    first: int
    times: int
    marks: Path | None


class _Armed:
    """One armed point: counts how often it is passed, and acts when it is due."""

    def __init__(self, fault: _Fault) -> None:
        self._fault = fault
        self._passed = 0
        self._acted = 0
        self._lock = threading.Lock()

    def reach(self) -> None:
        with self._lock:
            self._passed += 1
            due = self._passed >= self._fault.first and self._acted < self._fault.times and self._claim()
        if due:
            self._act()

    def _claim(self) -> bool:
        """Count one time of acting, skipping those that other processes have had. Called with the lock held."""
        while self._acted < self._fault.times:
            self._acted += 1
            if self._fault.marks is None:
                return True
            mark = self._fault.name if self._acted == 1 else f"{self._fault.name}.{self._acted}"
            try:
                (self._fault.marks / mark).touch(exist_ok=False)
            except FileExistsError:
                continue
            return True
        return False

    def _act(self) -> None:
        if self._fault.action == "raise":
            raise InjectedFault(f"the fault armed at {self._fault.name} fired")
        os.kill(os.getpid(), signal.SIGKILL if self._fault.action == "kill" else signal.SIGSTOP)


_faults: dict[str, _Armed | None] = dict.fromkeys(POINTS)


def point(name: str) -> None:
    """Pass the crash point `name`: one dict look-up unless it is armed.

    Raises `InjectedFault` when it is armed with `raise` and due, `SettingsError` when `POINTS` does not hold the name.
    """
    try:
        fault = _faults[name]
    except KeyError:
        raise _unknown(name) from None
    if fault is not None:
        fault.reach()


def arm(text: str, marks: Path | None = None) -> None:
    """Replace what is armed in this process by `text` (the form of `HERMES_FAULTS`); an empty text disarms everything.

    `marks` is the directory of `HERMES_FAULTS_DIR`; it is created. Raises `SettingsError` for a text that cannot be read.
    """
    faults: dict[str, _Armed | None] = dict.fromkeys(POINTS)
    for entry in filter(None, (part.strip() for part in text.split(","))):
        match = _ENTRY.fullmatch(entry)
        if match is None:
            raise SettingsError(
                f"HERMES_FAULTS holds {entry!r}; write <point>=kill, stop or raise, @<n> for the n-th time, x<m> for m times."
            )
        name = match["name"]
        if name not in POINTS:
            raise _unknown(name)
        action = cast("Action", match["action"])
        faults[name] = _Armed(_Fault(name, action, int(match["count"] or 1), int(match["times"] or 1), marks))
    if marks is not None:
        marks.mkdir(parents=True, exist_ok=True)
    _faults.update(faults)


def _unknown(name: str) -> SettingsError:
    return SettingsError(
        f"There is no crash point {name!r}; hermes_spark.faults.POINTS lists {', '.join(sorted(POINTS))}."
    )


def _arm_from_environment() -> None:
    marks = os.environ.get("HERMES_FAULTS_DIR", "")
    arm(os.environ.get("HERMES_FAULTS", ""), Path(marks) if marks else None)


_arm_from_environment()

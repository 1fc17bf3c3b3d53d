"""The disk under the journals: real files whose calls take time, may be cut short, and may not survive a power cut.

`SimOs` stands in for the module `os` wherever the package uses it. A SIGKILL keeps what was written; a power cut keeps of
every file what was synced, and a part of the rest.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
from pathlib import Path
from typing import Any

from simulation.loop import SimLoop
from simulation.processes import Killed, Process


class Disk:
    """What is known of every file: how much of it is synced."""

    def __init__(self, loop: SimLoop, rng: random.Random, root: Path) -> None:
        self._loop, self._rng, self.root = loop, rng, root
        self._synced: dict[int, int] = {}
        self.full = 0
        """So many writes to come find no space."""
        self.filled = 0

    def pause(self, often: float) -> None:
        """Where another process may come in between: mostly short, seldom very long."""
        thread = self._loop.thread
        if thread is None or self._rng.random() >= often:
            return
        luck = self._rng.random()
        shortest, longest = (0.5, 4.0) if luck < 0.03 else (0.02, 0.4) if luck < 0.3 else (0.0002, 0.02)
        thread.sleep(self._rng.uniform(shortest, longest) * thread.process.slowness)

    def write(self, fd: int, data: Any) -> int:
        self.pause(0.6)
        part = len(data)
        if self.full:
            self.full -= 1
            self.filled += 1
            os.write(fd, data[: part // 2])
            raise OSError(errno.ENOSPC, "no space left on device")
        if part > 1 and self._rng.random() < 0.15:
            part = self._rng.randrange(1, part)
        written = os.write(fd, data[:part])
        self._loop.log("wrote:", written, "of", len(data), "by", self._loop.current().name)
        if part < len(data):
            self.pause(0.8)
        return written

    def sync(self, fd: int) -> None:
        status = os.fstat(fd)
        self.pause(0.8)
        self._synced[status.st_ino] = max(self._synced.get(status.st_ino, 0), status.st_size)
        self.pause(0.2)

    def keep(self, path: Path) -> None:
        """Keep a journal's file for the checks in the end, whatever is pruned meanwhile."""
        kept = self.archive / path.relative_to(self.root)
        kept.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.link(path, kept)

    @property
    def archive(self) -> Path:
        return self.root / "archive"

    def cut_power(self) -> int:
        """Drop unsynced bytes of every journal, leaving a torn tail of any length; how many were dropped."""
        dropped = 0
        for path in sorted((self.root / "journal").rglob("*.log")):
            status = path.stat()
            unsynced = status.st_size - self._synced.get(status.st_ino, 0)
            if unsynced > 0:
                lost = self._rng.randint(0, unsynced)
                os.truncate(path, status.st_size - lost)
                dropped += lost
        return dropped


class SimOs:
    """`os` as a simulated process sees it. Its file descriptors are never used again, so that no leftover closes another's."""

    def __init__(self, loop: SimLoop, disk: Disk) -> None:
        self._loop, self._disk = loop, disk
        self._next = 1_000_000
        self._real: dict[int, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: Any, flags: int, mode: int = 0o777) -> int:
        process = self._living()
        self._next += 1
        fd, self._real[self._next] = self._next, os.open(path, flags, mode)
        process.on_death.append(lambda: self.close(fd))
        if str(path).endswith(".log"):
            self._disk.keep(Path(path))
        return fd

    def write(self, fd: int, data: Any) -> int:
        self._living()
        return self._disk.write(self._real[fd], data)

    def fdatasync(self, fd: int) -> None:
        self._living()
        self._disk.sync(self._real.get(fd, fd))

    fsync = fdatasync

    def fstat(self, fd: int) -> os.stat_result:
        return os.fstat(self._real.get(fd, fd))

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        self._disk.pause(0.03)
        return os.pread(self._real[fd], length, offset)

    def close(self, fd: int) -> None:
        real = self._real.pop(fd, None)
        if real is not None:
            os.close(real)

    def getppid(self) -> int:
        return 1 if self._loop.current().orphan else 2

    def getpid(self) -> int:
        return int(self._loop.current().name.rpartition("-")[2])

    def _exit(self, status: int) -> None:
        self._loop.kill(self._loop.current())
        raise Killed

    def _living(self) -> Process:
        process = self._loop.current()
        if not process.alive:
            raise Killed
        return process

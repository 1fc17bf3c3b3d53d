"""What a driver tells the program that submitted it: which process takes its signals, and whether it makes progress."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

NOTE_VARIABLE = "HERMES_DRIVER_NOTE"
"""Names the file; `scripts/supervise.py` sets it. Without it nothing is told."""


class DriverNote:
    """The file's writer: `{"pid": process id, "commits": batches committed in this life}`, always whole."""

    def __init__(self, path: str) -> None:
        """`path`: empty for none. Made once signals are handled: from then on they are sent here."""
        self._path = Path(path) if path else None
        self._commits = 0
        self._write()

    def committed(self) -> None:
        """A batch was committed. Called once for each, after it is durable."""
        self._commits += 1
        self._write()

    def _write(self) -> None:
        if self._path is None:
            return
        unfinished = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        unfinished.write_bytes(msgspec.json.encode({"pid": os.getpid(), "commits": self._commits}))
        unfinished.replace(self._path)

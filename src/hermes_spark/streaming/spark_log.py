"""Spark's own `offsets/<batch>` file: what a micro-batch is about to read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

import msgspec

from hermes_spark.errors import CheckpointMismatch
from hermes_spark.state.storage import storage_errors


class Reader(Protocol):
    """The part of `state.storage.Storage` that this module needs."""

    def get(self, key: str) -> bytes | None:
        """The bytes, or None."""
        ...


class BatchOffsets(msgspec.Struct, frozen=True):
    """The source lines of an offsets file; the first belongs to the events, a second one to the tick."""

    lines: list[str]

    @property
    def events(self) -> str:
        """The line of the source of events."""
        return self.lines[0]


def read_offsets(checkpoint: Reader, batch: int) -> BatchOffsets | None:
    """The offsets of a batch, or None when Spark has none (before batch 0, or pruned).

    The file is `v1`, a line of metadata (times and confs, which differ between runs), then one line per source. Raises
    `CheckpointMismatch` for another format.
    """
    data = checkpoint.get(f"offsets/{batch}")
    if data is None:
        return None
    lines = data.decode().splitlines()
    if len(lines) < 3 or lines[0] != "v1":
        raise CheckpointMismatch(f"Spark's offsets/{batch} has a format that this version does not know: {lines[:1]}")
    return BatchOffsets(lines[2:])


def settle(checkpoint: Path, batch: int) -> None:
    """Sync what Spark wrote about a batch: its offsets, and the newest file of each source's own log.

    Spark does not sync them itself (Hadoop's local files leave that to the system); after a power cut a commit of ours would
    stand for a batch that Spark knows nothing of. Raises `StateError` when the disk cannot.
    """
    newest = (max(log, key=lambda path: path.stat().st_mtime_ns) for log in _source_logs(checkpoint))
    with storage_errors(checkpoint):
        for path in (checkpoint / "offsets" / str(batch), *newest):
            for which in (path, path.parent):
                fd = os.open(which, os.O_RDONLY)
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)


def _source_logs(checkpoint: Path) -> list[list[Path]]:
    """The files of each source that keeps a log of its own (files do), without Hadoop's hidden checksums beside them."""
    logs = ([path for path in source.glob("[!.]*")] for source in (checkpoint / "sources").glob("*"))
    return [log for log in logs if log]

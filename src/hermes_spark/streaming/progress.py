"""Writes Spark's own account of every micro-batch to a file of JSON lines, for the benchmark and for log collection."""

from __future__ import annotations

from typing import Any

from pyspark.sql.streaming import StreamingQueryListener

from hermes_spark.telemetry import JsonLines


class ProgressLog(StreamingQueryListener):  # type: ignore[misc]
    """A listener that appends `{batch, rows, ms: {part: milliseconds}}` per batch; `ms` is Spark's `durationMs`."""

    def __init__(self, lines: JsonLines) -> None:
        self._lines = lines

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Nothing to write."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Append one line."""
        progress = event.progress
        self._lines.write(batch=progress.batchId, rows=progress.numInputRows, ms=dict(progress.durationMs))

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Nothing to write."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Nothing to write."""

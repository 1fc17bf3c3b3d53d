"""Writes Spark's own account of its micro-batches to a file of JSON lines, for the benchmark and for log collection."""

from __future__ import annotations

from pyspark.sql.streaming import StreamingQuery

from hermes_spark.telemetry import JsonLines


def write_progress(query: StreamingQuery, lines: JsonLines | None) -> None:
    """Append `{batch, rows, ms: {part: milliseconds}}` per batch that Spark still remembers; `ms` is its `durationMs`.

    None: write nothing.

    Called once, when the query has ended: a Python listener would cost the driver a third of its JVM's Java time at five
    batches a second. Spark remembers `spark.sql.streaming.numRecentProgressUpdates` batches.
    """
    if lines is None:
        return
    for progress in query.recentProgress:
        lines.write(batch=progress["batchId"], rows=progress["numInputRows"], ms=dict(progress["durationMs"]))

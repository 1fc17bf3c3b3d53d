"""The streaming query and its life: start everything in order, watch, drain, stop everything in order."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable

import msgspec
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery

from hermes_spark.errors import HermesError, Stopped
from hermes_spark.settings import Settings
from hermes_spark.streaming.ahead import runs_ahead
from hermes_spark.streaming.orchestrator import Orchestrator

log = logging.getLogger(__name__)

POLL_S = 0.2
LAST_BATCH_S = 15.0
"""How long a drain waits for its batch to begin, on top of `stop.drain_s`: a tick comes once a second."""


COMMIT_S = 5.0
"""How long Spark may take to write its commit of the last batch; tens of milliseconds as a rule."""


class Ended(msgspec.Struct, frozen=True):
    """How a query ended."""

    reason: str
    """`available now`, `idle`, `asked to stop`."""


def start(frame: DataFrame, settings: Settings, orchestrator: Orchestrator) -> StreamingQuery:
    """Start the query over a source's frame."""
    writer = (
        frame.writeStream.queryName("hermes-spark")
        .option("checkpointLocation", settings.checkpoint)
        .foreachBatch(orchestrator)
    )
    if settings.trigger.available_now:
        return writer.trigger(availableNow=True).start()
    interval_ms = settings.run_ahead.interval_ms if runs_ahead(settings) else settings.trigger.interval_ms
    return writer.trigger(processingTime=f"{interval_ms} milliseconds").start()


def watch(query: StreamingQuery, settings: Settings, orchestrator: Orchestrator, asked: Callable[[], bool]) -> Ended:
    """Return when the query has ended by itself or been drained; `asked` says whether somebody wants it to stop.

    Raises what ended the query otherwise: our own error if it was one.
    """
    reason = "available now"
    while query.isActive and not orchestrator.drained.is_set():
        if why := _why_stop(settings, orchestrator, asked):
            reason = why
            log.info("stopping (%s): the next batch waits for open turns, commits and publishes", reason)
            orchestrator.drain()
            deadline = time.monotonic() + settings.stop.drain_s + LAST_BATCH_S
            while query.isActive and time.monotonic() < deadline and not orchestrator.drained.wait(POLL_S):
                pass
            _await_spark_commit(query)
            break
        _await_termination(query)
    query.stop()
    _raise_failure(query, orchestrator)
    return Ended(reason)


def _await_spark_commit(query: StreamingQuery) -> None:
    """Let Spark write its own commit of the last batch; stopped before that, it would replay the batch at the next start."""
    deadline = time.monotonic() + COMMIT_S
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
        time.sleep(0.02)


def _await_termination(query: StreamingQuery) -> None:
    # A failed query raises here; `watch` sees that it is no longer active and asks for the reason.
    with contextlib.suppress(StreamingQueryException):
        query.awaitTermination(POLL_S)


def _why_stop(settings: Settings, orchestrator: Orchestrator, asked: Callable[[], bool]) -> str:
    if asked():
        return "asked to stop"
    idle_s, quiet_since = settings.stop.idle_s, orchestrator.quiet_since
    if idle_s and quiet_since is not None and time.monotonic() - quiet_since > idle_s:
        return "idle"
    return ""


def _raise_failure(query: StreamingQuery, orchestrator: Orchestrator) -> None:
    failure = orchestrator.failure
    if isinstance(failure, Stopped):
        return
    if isinstance(failure, HermesError):
        raise failure
    if (error := query.exception()) is not None:
        raise error

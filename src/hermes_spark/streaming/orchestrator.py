"""What `foreachBatch` does with batch N: hand over, positions, commit, publish. Never waits for a turn, unless told to end.

1. N must follow the last commit, or be it; in the second case only step 5 runs.
2. The rows go to the owners of their shards, and are durable in journals when this returns.
3. Every shard is asked for its durable position: the barrier.
4. `commits/<N>` is stored: the commit point. What is stored counts, whatever this driver believes.
5. What lies between the last published positions and N's goes to the sinks, if the commit says so.
Dying between any two of them leaves a batch that Spark replays into the same result.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
from pyspark.sql import DataFrame

from hermes_spark import faults
from hermes_spark.errors import HandoffError, StateError, Stopped
from hermes_spark.host.wire import Barrier, Span
from hermes_spark.settings import Settings
from hermes_spark.state.records import Position
from hermes_spark.streaming.ahead import RunAheadOrders
from hermes_spark.streaming.commit import Commit, CommitLog, check_stored, check_succession, source_digest
from hermes_spark.streaming.driver_note import DriverNote
from hermes_spark.streaming.fleet import Fleet
from hermes_spark.streaming.handoff import Handed, HandoffPlan, hand_over
from hermes_spark.streaming.kafka_source import KafkaTopic
from hermes_spark.streaming.ownership import CommittedView
from hermes_spark.streaming.pruning import Pruner
from hermes_spark.streaming.publishing import Publisher
from hermes_spark.streaming.source import ranges
from hermes_spark.streaming.spark_log import BatchOffsets, Reader, read_offsets
from hermes_spark.telemetry import JsonLines

log = logging.getLogger(__name__)

BARRIER_TIMEOUT_S = 60.0


class BatchParts(msgspec.Struct, frozen=True):
    """What an orchestrator is made of."""

    settings: Settings
    epoch: int
    look: Callable[[], None]
    """Raises `Superseded` when a newer driver is there: asked before every commit and every publish."""
    fleet: Fleet
    commits: CommitLog
    checkpoint: Reader
    """Spark's checkpoint directory."""
    settle: Callable[[int], None]
    """Makes what Spark wrote about a batch durable, so that a power cut leaves no commit of ours without it."""
    publisher: Publisher
    tasks: int
    """Tasks a hand-off may use: slots minus hosts."""
    batch_log: JsonLines | None
    pruner: Pruner
    topic: KafkaTopic | None = None
    """What a kafka source reads."""
    ahead: RunAheadOrders | None = None
    """None where hosts do not run ahead."""
    note: DriverNote = DriverNote("")


class Orchestrator:
    """Called by Spark for each micro-batch, one at a time."""

    def __init__(self, parts: BatchParts) -> None:
        self._parts = parts
        self._last = parts.commits.last()
        self._busy = True
        self.quiet_since: float | None = None
        """Since when (monotonic) batches have seen neither an event nor an open turn; None while they do."""
        self._draining = threading.Event()
        self.drained = threading.Event()
        """Set once a batch has waited for all turns and published them; later batches are not begun."""
        self.failure: BaseException | None = None

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Run batch `batch`; see the module. Raises `HermesError`s, which end the query."""
        try:
            if self.drained.is_set():
                raise Stopped("the job is ending; this batch was not begun and is replayed at the next start")
            self._run(frame, batch)
        except BaseException as exc:
            # Spark passes errors on as text only; the query's owner wants the error itself.
            self.failure = exc
            raise

    def drain(self) -> None:
        """Let the next batch be the last: it waits for open turns, within `stop.drain_s`, and publishes."""
        self._draining.set()

    def _run(self, frame: DataFrame, batch: int) -> None:
        parts = self._parts
        offsets = read_offsets(parts.checkpoint, batch)
        if offsets is None:
            raise StateError(f"Spark runs batch {batch} but its offsets/{batch} is not in the checkpoint directory")
        source = source_digest(offsets.lines)
        check_succession(self._last, batch, source)
        watch = _Stopwatch()
        self._busy = False
        ending = False
        if self._last is None or batch > self._last.batch:
            ending = self._commit(frame, batch, offsets, source, watch)
        assert self._last is not None
        if self._last.publish:
            parts.look()
            with watch.part("publish"):
                parts.publisher.publish(self._last)
            faults.point("driver.after_publish")
        parts.commits.forget(batch)
        self._report(batch, watch)
        self.quiet_since = None if self._busy else self.quiet_since or time.monotonic()
        if ending:
            self.drained.set()

    def _commit(self, frame: DataFrame, batch: int, offsets: BatchOffsets, source: str, watch: _Stopwatch) -> bool:
        """Everything up to the commit point; whether this batch has waited for turns because the job is ending."""
        parts = self._parts
        previous = read_offsets(parts.checkpoint, batch - 1)
        with watch.part("handoff"):
            handed, ends = self._hand_over(frame, batch, offsets, previous)
        faults.point("driver.after_handoff")
        ending = self._is_ending()
        waits = parts.settings.trigger.available_now or ending
        if waits:
            with watch.part("turns"):
                self._wait_for_turns()
        with watch.part("positions"):
            positions = self._positions(batch)
        faults.point("driver.before_commit")
        parts.look()
        with watch.part("commit"):
            parts.settle(batch)
            last, publish = self._last, parts.publisher.is_due() or waits
            commit = Commit(
                batch=batch,
                epoch=parts.epoch,
                source=source,
                ends={**({} if last is None else last.ends), **ends},
                positions=positions,
                published={} if last is None else last.rest(),
                publish=publish,
                settled={} if last is None else last.settles(),
                early=parts.publisher.early and not waits,
                taken=handed.taken,
                skipped=handed.skipped,
                time_ms=time.time_ns() // 1_000_000,
            )
            self._last = parts.commits.put(commit)
            check_stored(self._last, commit)
            parts.fleet.committed(CommittedView(self._last.positions, self._last.ends))
            parts.pruner.committed(self._last)
            parts.note.committed()
        if parts.ahead is not None:
            parts.ahead.committed(parts.fleet.ownership(), self._last.ends)
        faults.point("driver.after_commit")
        return ending

    def _is_ending(self) -> bool:
        """Whether the job is asked to end: then hosts read nothing ahead any more."""
        if not self._draining.is_set():
            return False
        if self._parts.ahead is not None:
            self._parts.ahead.stop(self._parts.fleet.ownership())
        return True

    def _hand_over(
        self, frame: DataFrame, batch: int, offsets: BatchOffsets, previous: BatchOffsets | None
    ) -> tuple[Handed, dict[str, int]]:
        parts = self._parts
        if previous is not None and previous.events == offsets.events:
            return Handed(), {}
        start = None if previous is None else previous.events
        if start is None and parts.topic is not None:
            start = parts.topic.first_offsets
        spans = ranges(parts.settings.source.kind, start, offsets.events) or {}
        if spans and all(start == stop for start, stop in spans.values()):
            return Handed(), {}
        self.quiet_since = None
        if parts.topic is not None:
            parts.topic.check()
        plan = HandoffPlan(
            batch=batch,
            ownership=parts.fleet.ownership(),
            spans={partition: Span(*span) for partition, span in spans.items()},
            shards=parts.settings.state.shards,
            settings=parts.settings,
        )
        if self._is_ahead(plan):
            handed = Handed(skipped=plan.offsets)
        else:
            frame.sparkSession.sparkContext.setJobDescription(f"batch {batch} · hand-off")
            handed = hand_over(frame, plan, parts.fleet, parts.tasks)
        self._busy = bool(handed.taken or handed.skipped)
        return handed, {partition: stop for partition, (_, stop) in spans.items()}

    def _is_ahead(self, plan: HandoffPlan) -> bool:
        """Whether hosts have read the whole batch already, and everything of it is durable."""
        ahead, ends = self._parts.ahead, {} if self._last is None else self._last.ends
        if ahead is None:
            return False
        return ahead.cover(plan.ownership, ends, plan.spans)

    def _positions(self, batch: int) -> dict[int, Position]:
        barriers = self._parts.fleet.barrier(BARRIER_TIMEOUT_S, batch)
        self._busy = self._busy or any(barrier.open_turns for barrier in barriers)
        positions = {at.shard: at.position for barrier in barriers for at in barrier.positions}
        for shard, before in ({} if self._last is None else self._last.positions).items():
            if positions[shard].lsn < before.lsn:
                raise StateError(
                    f"shard {shard} answers position {positions[shard].lsn}, below {before.lsn} of the last commit; its "
                    "journal has lost records: restore the state directory from a backup"
                )
        return positions

    def _wait_for_turns(self) -> None:
        """Return when no turn is open; with availableNow for as long as turns end, else within `stop.drain_s`."""
        settings = self._parts.settings
        since, ended, told = time.monotonic(), -1, False
        while True:
            if self._draining.is_set() and not told:
                since, told = time.monotonic(), True
            patience_s = settings.stop.drain_s if told else settings.intake.handoff_timeout_s
            barriers: list[Barrier] = self._parts.fleet.barrier(BARRIER_TIMEOUT_S)
            if not sum(barrier.open_turns for barrier in barriers):
                return
            now_ended = sum(barrier.ended for barrier in barriers)
            if now_ended != ended and not told:
                since, ended = time.monotonic(), now_ended
            if time.monotonic() - since > patience_s:
                if told:
                    log.warning("turns are still open after %g s; the next start continues them", patience_s)
                    return
                raise HandoffError(f"no open turn has ended for {patience_s:g} s; is the model answering?")
            time.sleep(0.02)

    def _report(self, batch: int, watch: _Stopwatch) -> None:
        assert self._last is not None
        parts_ms = {name: round(seconds * 1000, 1) for name, seconds in watch.parts.items()}
        log.debug("batch %d: taken %d, skipped %d, %s", batch, self._last.taken, self._last.skipped, parts_ms)
        topic, fields = self._parts.topic, {"taken": self._last.taken, "skipped": self._last.skipped}
        if topic is not None and (lag := topic.lag(self._last.ends)) is not None:
            fields["lag"] = lag
        if self._parts.ahead is not None:
            fields["ahead"] = self._parts.ahead.taken
        if self._parts.batch_log is not None:
            self._parts.batch_log.write(batch=batch, **fields, ms=parts_ms)


class _Stopwatch:
    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.parts: dict[str, float] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        start = self._clock()
        try:
            yield
        finally:
            self.parts[name] = self._clock() - start

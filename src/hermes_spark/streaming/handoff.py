"""Hand-off: a micro-batch offers its rows to the owners of their shards. One Spark job of one stage, no shuffle.

Tasks offer the rows, except of a batch whose offsets say that it is small: waking Python workers for it takes longer than to
collect it and offer it here (71 against 34 ms, and 70 ms of CPU, for 20 rows on two cores).

A task waits for a *full* host (for as long as turns end there), and never for an *absent* one: the restarting host may need
the very slot that the task holds. Rows of absent owners come back as untaken, and the driver offers them again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from hermes_spark import faults
from hermes_spark.errors import HandoffError, HermesError
from hermes_spark.events import Coordinates, Row, routing_key, shard_of
from hermes_spark.host.wire import ROWS, OfferHeader, Span, rows_to_batch
from hermes_spark.settings import Settings
from hermes_spark.streaming.connections import connected
from hermes_spark.streaming.fleet import Fleet
from hermes_spark.streaming.ownership import Ownership
from hermes_spark.streaming.rows import decode, from_arrow

log = logging.getLogger(__name__)

OFFER_TIMEOUT_S = 25.0
"""One offer: a host lets it wait 10 s for room, and flushes within milliseconds."""

_COUNTS = [pa.field("taken", pa.int64()), pa.field("skipped", pa.int64())]
RESULT = pa.schema([*(pa.field(field.name, field.type) for field in ROWS), *_COUNTS])
"""What tasks send back: rows that were not taken, and one row of counts per task (`partition` null)."""
RESULT_DDL = (
    "partition string, offset bigint, timestamp_ms bigint, value binary, fault string, taken bigint, skipped bigint"
)


class HandoffPlan(msgspec.Struct, frozen=True):
    """What a batch's tasks need to know."""

    batch: int
    ownership: Ownership
    spans: dict[str, Span]
    shards: int
    settings: Settings

    @property
    def offsets(self) -> int:
        """How many the spans hold together; as a rule as many rows, and never fewer."""
        return sum(span.stop - span.start for span in self.spans.values())


class Handed(msgspec.Struct, frozen=True):
    """What became of offered rows."""

    taken: int = 0
    skipped: int = 0
    untaken: tuple[Row, ...] = ()

    def __add__(self, other: Handed) -> Handed:
        return Handed(self.taken + other.taken, self.skipped + other.skipped, self.untaken + other.untaken)


class HandoffTask:
    """The body of a hand-off task, for `mapInArrow`. Pickled by reference to this module."""

    def __init__(self, plan: HandoffPlan) -> None:
        self._plan = msgspec.msgpack.encode(plan)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Offer all rows; yield what was not taken, and the counts."""
        plan = msgspec.msgpack.decode(self._plan, type=HandoffPlan)
        taken = skipped = 0
        offering = Offering(plan)
        for batch in batches:
            rows = decode(from_arrow(batch), plan.settings.source)
            for chunk in _chunks(rows, plan.settings.intake.chunk_rows):
                handed = offering.offer(chunk)
                faults.point("task.after_offer")
                taken, skipped = taken + handed.taken, skipped + handed.skipped
                if handed.untaken:
                    yield _result(handed.untaken)
        nothing = [pa.nulls(1, field.type) for field in ROWS]
        counts = [pa.array([taken], pa.int64()), pa.array([skipped], pa.int64())]
        yield pa.record_batch([*nothing, *counts], schema=RESULT)


class Offering:
    """Offers rows to the owners named by a plan, in order."""

    def __init__(self, plan: HandoffPlan) -> None:
        self._plan = plan
        self._absent = {""}
        """Owners that did not take a row. They get none of the later ones either: a shard takes a partition's rows in
        order, and one taken out of turn would make it skip those before it."""

    def offer(self, rows: Sequence[Row]) -> Handed:
        """Offer rows; what no owner took comes back. Raises `HandoffError` when a full host ends no turn for too long."""
        by_owner: dict[str, list[tuple[int, Row]]] = {}
        for row in rows:
            shard = shard_of(routing_key(row), self._plan.shards)
            by_owner.setdefault(self._plan.ownership.addresses.get(shard, ""), []).append((shard, row))
        handed = Handed()
        for address in [address for address in by_owner if address in self._absent]:
            handed += Handed(untaken=tuple(row for _, row in by_owner.pop(address)))
        for answer in self._offer_to_all(by_owner):
            handed += answer
        return handed

    def _offer_to_all(self, by_owner: dict[str, list[tuple[int, Row]]]) -> list[Handed]:
        """Offer to all owners at the same time: one that is full must not keep rows from another that has room."""
        answers: dict[str, Handed] = {}
        faults: list[HermesError] = []

        def ask(address: str) -> None:
            try:
                answers[address] = self._offer_to(address, by_owner[address])
            except HermesError as exc:
                faults.append(exc)

        asking = [threading.Thread(target=ask, args=(address,), daemon=True) for address in list(by_owner)[1:]]
        for thread in asking:
            thread.start()
        for address in list(by_owner)[:1]:  # as a rule the only one, and then no thread is needed
            ask(address)
        for thread in asking:
            thread.join()
        if faults:
            raise faults[0]
        if silent := [address for address in by_owner if address not in answers]:
            raise HandoffError(f"offers to {', '.join(silent)} ended without an answer; see the errors before this one")
        return [answers[address] for address in by_owner]

    def _offer_to(self, address: str, routed: list[tuple[int, Row]]) -> Handed:
        handed = Handed()
        patience = _Patience(self._plan.settings.intake.handoff_timeout_s)
        while routed:
            header = OfferHeader(
                self._plan.batch, tuple(shard for shard, _ in routed), self._plan.ownership.terms, self._plan.spans
            )
            try:
                client = connected(address, self._plan.ownership.token, self._plan.settings.host)
                answer = client.offer(header, [row for _, row in routed], OFFER_TIMEOUT_S)
            except HandoffError:
                raise
            except HermesError as exc:
                # Whatever a host's trouble is, the driver sees it better: it watches the host itself.
                log.info("host at %s took nothing: %s", address, exc)
                self._absent.add(address)
                return handed + Handed(untaken=tuple(row for _, row in routed))
            handed += Handed(answer.taken, answer.skipped)
            routed = [routed[number] for number in answer.untaken]
            if routed and not answer.full:
                self._absent.add(address)
                return handed + Handed(untaken=tuple(row for _, row in routed))
            patience.check(address, answer.taken, answer.ended)
        return handed


class _Patience:
    """Waits for a full host for as long as it makes progress."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._since = time.monotonic()
        self._ended = -1

    def check(self, address: str, taken: int, ended: int) -> None:
        now = time.monotonic()
        if taken or ended != self._ended:
            self._since, self._ended = now, ended
        elif now - self._since > self._timeout_s:
            raise HandoffError(
                f"the host at {address} is full and ended no turn for {self._timeout_s:g} s; is the model answering? "
                "(bounds: spark.hermes.host.max_open_turns, spark.hermes.intake.handoff_timeout_s)"
            )


def hand_over(frame: DataFrame, plan: HandoffPlan, fleet: Fleet, tasks: int) -> Handed:
    """Offer all rows of a micro-batch and return when every one of them is durable in a journal.

    The driver offers a batch of up to `intake.driver_rows` itself. `tasks` bounds the tasks of the job (slots minus hosts, so
    that a restarting host always finds a slot). Raises `HandoffError` when rows stay without an owner for
    `host.start_timeout_s`, and whatever lasting fault a host ended with.
    """
    rows = _few(frame, plan)
    handed = _collected(_run_tasks(frame, plan, tasks)) if rows is None else _offer_all(plan, rows)
    deadline = time.monotonic() + plan.settings.host.start_timeout_s
    while handed.untaken:
        log.warning("batch %d: %d rows wait for the owner of their shard", plan.batch, len(handed.untaken))
        if time.monotonic() > deadline:
            raise HandoffError(
                f"batch {plan.batch}: {len(handed.untaken)} rows found no owner in time; see the hosts' errors"
            )
        fleet.wait_ready(max(0.1, deadline - time.monotonic()))
        fleet.end_silent()
        again = msgspec.structs.replace(plan, ownership=fleet.ownership())
        round_ = _offer_all(again, iter(handed.untaken))
        if round_.taken or round_.skipped:
            deadline = time.monotonic() + plan.settings.host.start_timeout_s
        handed = Handed(handed.taken, handed.skipped) + round_
        if handed.untaken:
            time.sleep(0.05)
    return handed


def _run_tasks(frame: DataFrame, plan: HandoffPlan, tasks: int) -> list[Any]:
    try:
        results: list[Any] = frame.coalesce(tasks).mapInArrow(HandoffTask(plan), RESULT_DDL).collect()
        return results
    except PySparkException as exc:
        # A task's error arrives as the text of its traceback.
        mark = f"{HandoffError.__module__}.{HandoffError.__name__}: "
        _, found, rest = str(exc).partition(mark)
        if not found:
            raise
        raise HandoffError(rest.partition("\n")[0]) from None


def _few(frame: DataFrame, plan: HandoffPlan) -> Iterator[Row] | None:
    """The rows of a batch that is known to be small; None when tasks should offer them."""
    total = plan.offsets
    if not 0 < total <= plan.settings.intake.driver_rows:
        return None
    try:
        return decode(frame.collect(), plan.settings.source)
    except (PySparkException, Py4JError) as exc:
        # Few rows can still be too many bytes (spark.driver.maxResultSize); tasks bring none of them here.
        log.warning("batch %d: collecting %d rows failed, so tasks offer them: %s", plan.batch, total, exc)
        return None


def _offer_all(plan: HandoffPlan, rows: Iterator[Row]) -> Handed:
    offering, handed = Offering(plan), Handed()
    for chunk in _chunks(rows, plan.settings.intake.chunk_rows):
        handed += offering.offer(chunk)
    return handed


def _collected(results: list[Any]) -> Handed:
    """The results of all tasks, as Spark's rows; a row of counts has no partition."""
    counts = [row for row in results if row.partition is None]
    untaken = tuple(
        Row(Coordinates(row.partition, row.offset), row.timestamp_ms, bytes(row.value), row.fault)
        for row in results
        if row.partition is not None
    )
    return Handed(sum(row.taken for row in counts), sum(row.skipped for row in counts), untaken)


def _result(rows: Sequence[Row]) -> pa.RecordBatch:
    batch = rows_to_batch(rows)
    nothing = [pa.nulls(len(rows), field.type) for field in _COUNTS]
    return pa.record_batch([*batch.columns, *nothing], schema=RESULT)


def _chunks(rows: Iterator[Row], size: int) -> Iterator[list[Row]]:
    chunk: list[Row] = []
    for row in rows:
        chunk.append(row)
        if len(chunk) >= size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk

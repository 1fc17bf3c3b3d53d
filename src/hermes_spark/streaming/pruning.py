"""Pruning journals beside the batches: what a commit has made superfluous goes in a thread, so that no batch waits for it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from hermes_spark.errors import HermesError
from hermes_spark.state.records import Position
from hermes_spark.state.retention import Retention, floors
from hermes_spark.streaming.commit import Commit

log = logging.getLogger(__name__)


class Pruner:
    """Prunes the journals of all shards. Called by the one thread that runs batches."""

    def __init__(
        self, shards: Mapping[int, Retention], interval_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`interval_s`: the least time between two rounds; later costs a few files, looking for snapshots the disk's time."""
        self._interval_s = interval_s
        self._shards = shards
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="pruning")
        self._commits: tuple[Commit, Commit] | None = None
        self._begun = -interval_s
        self.round: Future[None] | None = None
        """The round under way, or the last one."""

    def committed(self, commit: Commit) -> None:
        """Note commit N. Spark's own commit of N-1 is done by then, so what only N-2 and earlier ones needed may go.

        What is kept: everything after the position of N-2, and after where the unpublished part began at N-1, or that which
        Kafka may lack.
        """
        before, self._commits = self._commits, (commit if self._commits is None else self._commits[1], commit)
        if before is None or (self.round is not None and not self.round.done()):
            return
        if before[0].batch == before[1].batch or self._clock() - self._begun < self._interval_s:
            return
        self._begun = self._clock()
        unsettled = before[1].published if before[1].settled is None else before[1].settled
        self.round = self._thread.submit(self._prune, floors(before[0].positions, before[1].published, unsettled))

    def close(self) -> None:
        """Let the round under way end, within the shard it is at."""
        self._shards = {}
        self._thread.shutdown(wait=True)

    def _prune(self, needed: Mapping[int, Position]) -> None:
        for shard, position in needed.items():
            retention = self._shards.get(shard)
            if retention is None:
                return
            try:
                retention.prune(position)
            except HermesError as exc:
                log.warning("the journal of shard %d is not pruned: %s", shard, exc)

"""One driver at a time for a checkpoint: claimed by number, shown alive by a beat, never decided by a clock.

Objects in the state's storage::

    epochs/<e>.json      the claim of driver e, by put-if-absent; the highest one is the driver
    beats/<e>.json       rewritten once a second while driver e lives; says at last that it ended

A starter refuses while the newest driver's beat changes during `PATIENCE_S` of the starter's own clock. That only spares two
people a surprise: what keeps a driver that was thought dead from doing harm is that it looks for a higher epoch before it
commits and publishes, and that shards under its terms are sealed by the newer one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator

import msgspec

from hermes_spark.errors import HermesError, StartError, StateError, Superseded
from hermes_spark.state.objects import Objects

log = logging.getLogger(__name__)

BEAT_S = 1.0
PATIENCE_S = 4.0
"""Four beats: one that is late on a busy machine is not missed."""
POLL_S = 0.1


class Epoch(msgspec.Struct, frozen=True):
    """One driver's claim."""

    epoch: int
    node: str
    pid: int
    time_ms: int


class Beat(msgspec.Struct, frozen=True):
    """A sign of life. Only whether it changes counts, and whether its driver said that it ended."""

    number: int
    ended: bool = False


class Rival:
    """The driver that was there before: watched from the making of this object, so that other preparations go on meanwhile."""

    def __init__(self, storage: Objects, clock: Callable[[], float] = time.monotonic) -> None:
        self._storage = storage
        self._clock = clock
        self._since = clock()
        self._epoch = newest_epoch(storage)
        self._beat = self._read()

    def check(self, pause: Callable[[float], object] = time.sleep) -> None:
        """Return once the rival has shown no life for `PATIENCE_S`, or has ended. Raises `StartError` while it lives."""
        while self._epoch and not _has_ended(self._beat):
            now = self._read()
            if newest_epoch(self._storage) != self._epoch or (now != self._beat and not _has_ended(now)):
                raise StartError(self._sentence())
            if _has_ended(now) or self._clock() - self._since > PATIENCE_S:
                return
            pause(POLL_S)

    def _read(self) -> bytes | None:
        return self._storage.get(_beat_key(self._epoch)) if self._epoch else None

    def _sentence(self) -> str:
        epoch = newest_epoch(self._storage)
        data = self._storage.get(_epoch_key(epoch))
        try:
            who = msgspec.json.decode(data or b"", type=Epoch)
            where = f"process {who.pid} on {who.node}"
        except msgspec.MsgspecError:
            where = f"epoch {epoch}"
        return (
            f"another driver is running on this checkpoint ({where}); a checkpoint has one job at a time: stop that one "
            "first, or give this job a checkpoint of its own"
        )


class DriverClaim:
    """This driver's epoch. `look` and `end` are for the driver's threads, the beat runs on one of its own."""

    def __init__(self, storage: Objects, epoch: int) -> None:
        self.epoch = epoch
        self._storage = storage
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._number = 0

    @classmethod
    def take(cls, storage: Objects, known: int = 0) -> DriverClaim:
        """Claim the next epoch, and give the first sign of life.

        `known`: an epoch that was claimed according to a commit, even if somebody deleted its claim.
        """
        while True:
            epoch = max(newest_epoch(storage), known) + 1
            claim = Epoch(epoch, socket.gethostname(), os.getpid(), time.time_ns() // 1_000_000)
            if storage.put_if_absent(_epoch_key(epoch), msgspec.json.encode(claim)):
                taken = cls(storage, epoch)
                taken.beat()
                for key in storage.list("beats/"):
                    if key < _beat_key(epoch):
                        storage.delete(key)
                return taken

    def look(self) -> None:
        """Raises `Superseded` when a newer driver has claimed the checkpoint."""
        newest = newest_epoch(self._storage)
        if newest > self.epoch:
            raise Superseded(
                f"driver {newest} has taken this checkpoint over from driver {self.epoch}, which ends here; nothing is lost: "
                "the newer one goes on from the last commit"
            )

    @contextlib.contextmanager
    def explaining(self) -> Iterator[None]:
        """Say `Superseded` where a failure inside means that: Spark's own log of offsets may notice first."""
        try:
            yield
        except Exception:
            self.look()
            raise

    def beat(self) -> None:
        """Give a sign of life."""
        self._number += 1
        self._storage.put(_beat_key(self.epoch), msgspec.json.encode(Beat(self._number)))

    def keep_beating(self, superseded: Callable[[HermesError], None]) -> None:
        """Beat once a second until `end`, on a thread; seeing a newer driver, call `superseded` with the error instead."""
        self._thread = threading.Thread(target=self._keep_beating, args=(superseded,), name="beat", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop beating, and say so: the next driver need not wait."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(PATIENCE_S)
        try:
            self._storage.put(_beat_key(self.epoch), msgspec.json.encode(Beat(self._number + 1, ended=True)))
        except StateError as exc:
            log.warning("the next start waits %g s, as this one's end could not be noted: %s", PATIENCE_S, exc)

    def _keep_beating(self, superseded: Callable[[HermesError], None]) -> None:
        while not self._ended.wait(BEAT_S):
            try:
                self.look()
                self.beat()
            except Superseded as exc:
                superseded(exc)
                return
            except StateError as exc:
                # Beats protect nothing (see the module); the commit will meet the same storage and end the job if it lasts.
                log.warning("no sign of life could be given: %s", exc)


def newest_epoch(storage: Objects) -> int:
    """The highest epoch that was claimed; 0 before the first."""
    keys = storage.list("epochs/")
    return max((int(key.rsplit("/", 1)[1].removesuffix(".json")) for key in keys), default=0)


def _has_ended(beat: bytes | None) -> bool:
    try:
        return beat is not None and msgspec.json.decode(beat, type=Beat).ended
    except msgspec.MsgspecError:
        return False


def _epoch_key(epoch: int) -> str:
    return f"epochs/{epoch:010d}.json"


def _beat_key(epoch: int) -> str:
    return f"beats/{epoch:010d}.json"

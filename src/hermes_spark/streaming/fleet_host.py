"""One host as the driver sees it."""

from __future__ import annotations

import logging
import time

import msgspec

from hermes_spark.errors import HermesError, HostAbsent, HostError, HostSilent
from hermes_spark.host.wire import Barrier, HostExit, Registration, Release, WireClient, pack, unpack
from hermes_spark.host.wire_errors import error_named

log = logging.getLogger(__name__)

LASTING_FAULTS = frozenset(
    {"StorageFull", "JournalCorrupt", "CheckpointMismatch", "SettingsError", "StartError", "ModelContractError"}
)
"""Ends of a host that starting it again does not mend: the query ends with their sentence instead."""
STOP_TIMEOUT_S = 5.0
RELEASE_TIMEOUT_S = 10.0
QUICK_DEATHS = 5
"""A host that dies so often in a row, each time before it was ready for `QUICK_S`, ends the query."""
QUICK_S = 5.0
GONE_S = 5.0
"""How long Spark may take to notice that a host is gone, or to have it back."""
PING_S = 3.0
"""A ping waits for nothing but the host's loop, which never works on one thing for so long."""


class FleetHost(msgspec.Struct):
    """A host's state (`launched`, `registered`, `ready` or `gone`), and the way to it while it is there."""

    index: int
    state: str = "launched"
    registration: Registration | None = None
    client: WireClient | None = None
    since: float = 0.0
    """When it came into this state (monotonic)."""
    quick_deaths: int = 0
    absent_since: float | None = None
    """Since when nobody has been at its address (monotonic)."""

    def registered(self, registration: Registration, client: WireClient) -> None:
        """It is there, without shards yet."""
        self.state, self.registration, self.client = "registered", registration, client
        self.since = time.monotonic()
        self.absent_since = None

    def client_of(self, registration: Registration) -> WireClient | None:
        """The way to the process that registered so; None if it is gone or has a successor."""
        return self.client if self.registration == registration else None

    def ended(self, exit_: HostExit) -> HermesError | None:
        """It is gone. Returns what ends the query, if starting it again would not mend what ended it."""
        was_ready = self.state == "ready" and time.monotonic() - self.since > QUICK_S
        self.quick_deaths = 0 if was_ready else self.quick_deaths + 1
        self.state, self.registration, self.client = "gone", None, None
        self.since = time.monotonic()
        if exit_.error in LASTING_FAULTS:
            return error_named(exit_.error, exit_.message)
        if self.quick_deaths >= QUICK_DEATHS:
            return HostError(
                f"host {self.index} died {QUICK_DEATHS} times in a row right after its start; the last time: "
                f"{exit_.message or 'without a word'}"
            )
        return None

    def barrier(self, timeout_s: float, batch: int | None = None) -> Barrier:
        """Its durable positions; `batch`: everything of this batch is taken.

        Raises `HostError` when it is gone, `HostSilent` when it stands still, and whatever error it is ending with.
        """
        if self.client is None:
            raise HostError(f"host {self.index} is gone")
        asked = time.monotonic()
        try:
            answer = unpack(self.client.act("barrier", b"" if batch is None else b"%d" % batch, timeout_s), Barrier)
        except HostAbsent as exc:
            if time.monotonic() - asked < timeout_s / 2:
                self._note_absence(exc)
            else:
                self._ping(timeout_s)
            raise
        self.absent_since = None
        return answer

    def _note_absence(self, exc: HostAbsent) -> None:
        """It is gone, and as a rule its job ends in a moment. Raise `HostSilent` if the job stays.

        A job outlives its task where Spark starts the task again by itself, and waits for an executor to do so.
        """
        now = time.monotonic()
        self.absent_since = self.absent_since or now
        if now - self.absent_since > GONE_S:
            self.absent_since = None
            raise HostSilent(f"host {self.index} has been gone for {GONE_S:g} s and its job has not ended") from exc

    def release(self, shards: tuple[int, ...]) -> None:
        """Have it let go of shards that get another owner. Whether it does is no matter: the new owner's term seals them."""
        log.info("host %d gives up %d shards: others have fewer", self.index, len(shards))
        try:
            if self.client is not None:
                self.client.act("release", pack(Release(shards)), RELEASE_TIMEOUT_S)
        except HermesError as exc:
            log.info("host %d did not let go, and will find out at its next append: %s", self.index, exc)

    def _ping(self, waited_s: float) -> None:
        """Raise `HostSilent` unless it answers at all: a slow disk delays a barrier, and is no reason to end a host."""
        try:
            if self.client is not None:
                self.client.act("ping", b"", PING_S)
        except HostAbsent as exc:
            raise HostSilent(f"host {self.index} has not answered for {waited_s:g} s") from exc


def tell_to_stop(client: WireClient) -> bool:
    """Ask a host to flush and go; one that is gone already has nothing to flush. Returns whether it has heard."""
    try:
        client.act("stop", b"", STOP_TIMEOUT_S)
    except HermesError as exc:
        log.info("a host was gone before it was told to stop: %s", exc)
        return False
    return True

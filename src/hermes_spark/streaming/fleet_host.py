"""One host as the driver sees it."""

from __future__ import annotations

import logging
import time

import msgspec

from hermes_spark.errors import HermesError, HostAbsent, HostError, HostSilent
from hermes_spark.host.wire import Barrier, Registration, WireClient, unpack

log = logging.getLogger(__name__)

LASTING_FAULTS = frozenset(
    {"StorageFull", "JournalCorrupt", "CheckpointMismatch", "SettingsError", "StartError", "ModelContractError"}
)
"""Ends of a host that starting it again does not mend: the query ends with their sentence instead."""
STOP_TIMEOUT_S = 5.0
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

    def barrier(self, timeout_s: float, batch: int | None = None) -> Barrier:
        """Its durable positions; `batch`: everything of this batch is taken.

        Raises `HostError` when it is gone, `HostSilent` when it stands still, and whatever error it is ending with.
        """
        if self.client is None:
            raise HostError(f"host {self.index} is gone")
        asked = time.monotonic()
        try:
            return unpack(self.client.act("barrier", b"" if batch is None else b"%d" % batch, timeout_s), Barrier)
        except HostAbsent:
            if time.monotonic() - asked < timeout_s / 2:
                raise  # it is gone, which is seen elsewhere
            self._ping(timeout_s)
            raise

    def _ping(self, waited_s: float) -> None:
        """Raise `HostSilent` unless it answers at all: a slow disk delays a barrier, and is no reason to end a host."""
        try:
            if self.client is not None:
                self.client.act("ping", b"", PING_S)
        except HostAbsent as exc:
            raise HostSilent(f"host {self.index} has not answered for {waited_s:g} s") from exc


def tell_to_stop(client: WireClient) -> None:
    """Ask a host to flush and go; one that is gone already has nothing to flush."""
    try:
        client.act("stop", b"", STOP_TIMEOUT_S)
    except HermesError as exc:
        log.info("a host was gone before it was told to stop: %s", exc)

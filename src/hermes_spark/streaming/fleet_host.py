"""One host as the driver sees it."""

from __future__ import annotations

import logging

import msgspec

from hermes_spark.errors import HermesError, HostError
from hermes_spark.host.wire import Barrier, Registration, WireClient, unpack

log = logging.getLogger(__name__)

BARRIER_TIMEOUT_S = 15.0
STOP_TIMEOUT_S = 5.0


class FleetHost(msgspec.Struct):
    """A host's state (`launched`, `registered`, `ready` or `gone`), and the way to it while it is there."""

    index: int
    state: str = "launched"
    registration: Registration | None = None
    client: WireClient | None = None
    since: float = 0.0
    """When it came into this state (monotonic)."""
    quick_deaths: int = 0

    def barrier(self) -> Barrier:
        """Its durable positions. Raises `HostError` when it is gone, and whatever error it is ending with."""
        if self.client is None:
            raise HostError(f"host {self.index} is gone")
        return unpack(self.client.act("barrier", b"", BARRIER_TIMEOUT_S), Barrier)


def tell_to_stop(client: WireClient) -> None:
    """Ask a host to flush and go; one that is gone already has nothing to flush."""
    try:
        client.act("stop", b"", STOP_TIMEOUT_S)
    except HermesError as exc:
        log.info("a host was gone before it was told to stop: %s", exc)

"""Connections to hosts, one per host and process."""

from __future__ import annotations

import functools
import gc

from hermes_spark.host.wire import WireClient
from hermes_spark.settings import HostSettings


@functools.lru_cache(maxsize=64)
def connected(address: str, token: str, settings: HostSettings) -> WireClient:
    """The connection to a host: a worker runs many tasks, and connecting costs more than an offer."""
    # Spark's worker collects garbage after every task; what is loaded by now stays, and need not be walked each time.
    gc.freeze()
    return WireClient(address, token, settings)

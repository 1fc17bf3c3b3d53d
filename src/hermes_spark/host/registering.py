"""How a host makes itself known to its driver."""

from __future__ import annotations

import os
import socket

from hermes_spark.errors import HostAbsent, HostError
from hermes_spark.host.wire import HostPayload, Registration, WireClient, pack
from hermes_spark.settings import HostSettings

ANSWER_S = 10.0


def register(payload: HostPayload, address: str, wire: HostSettings) -> None:
    """Tell the driver that a host serves at `address`. Blocks. Raises `HostError` when the driver cannot be reached."""
    client = WireClient(payload.driver, payload.token, wire)
    me = Registration(payload.index, address, os.getpid(), socket.gethostname())
    try:
        client.act("register", pack(me), ANSWER_S)
    except HostAbsent as exc:
        raise HostError(f"the driver at {payload.driver} cannot be reached from this host: {exc}") from None
    finally:
        client.close()

"""Which machine this is: a journal in files is for the processes of one machine only."""

from __future__ import annotations

import socket
from pathlib import Path

from hermes_spark.errors import StartError

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""One for all containers of a machine, whatever they take for its name."""


def machine_id() -> str:
    """What tells this machine from others until it is started again."""
    return BOOT_ID.read_text(encoding="ascii").strip() if BOOT_ID.exists() else socket.gethostname()


def check_machine(expected: str, state_path: str) -> None:
    """Refuse to be a host elsewhere than where the state's directory is. `expected` empty: anywhere.

    Raises `StartError`.
    """
    if expected and expected != machine_id():
        raise StartError(
            f"an executor runs on {socket.gethostname()}, another machine than the driver's, and the state is kept in a local "
            f"directory ({state_path}); set spark.hermes.state.path to an s3://, gs:// or az:// URL, which all machines reach"
        )

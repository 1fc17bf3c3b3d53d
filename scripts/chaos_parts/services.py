"""What the job leans on fails: the model server, the tool service, the disk."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

from chaos_parts.world import Failed, Scenario, Skipped, World
from stack import free_ports

DISK_BYTES = 8 << 20
FILL_BYTES = 1 << 12


def restart_triton(world: World) -> None:
    """Server and model end at once and come back at the same address, while completions are under way."""
    ports = free_ports(3)
    world.settings["model.url"] = world.stack.triton(ports, first_token_ms=20)
    world.load()
    world.start()
    world.mid_batch()
    facts = json.loads((world.stack.directory / "triton" / "server.json").read_text(encoding="utf-8"))
    os.killpg(facts["pid"], signal.SIGKILL)
    world.hit("SIGKILL of Triton")
    world.stack.triton(ports, first_token_ms=20)
    world.drain()


def restart_tools(world: World) -> None:
    """The tool service dies with calls under way, and comes back with what it had executed."""
    world.load()
    world.start()
    world.mid_batch()
    world.tools.part.signal(signal.SIGKILL)
    world.tools.part.wait(10)
    world.hit("SIGKILL of the tool service")
    world.start_tools(urlsplit(world.tools.url).port or 0)
    world.drain()


def fill_disk(world: World) -> None:
    """No space is left for the journal: the job ends and says so, and goes on once there is some."""
    disk = world.stack.directory / "disk"
    disk.mkdir()
    _mount(disk)
    try:
        world.settings["state.path"] = disk
        world.load()
        world.start()
        world.mid_batch()
        filler = disk / "filler"
        _fill(filler)
        world.hit("disk full")
        if (status := world.wait_end()) == 0 or str(disk) not in world.last_word():
            raise Failed(f"the job ended with status {status} and did not name the full disk: {world.last_word()}")
        filler.unlink()
        world.drain()
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False, timeout=10)


def _mount(disk: Path) -> None:
    if os.geteuid() != 0:
        raise Skipped("only root can mount a small disk to fill")
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(disk)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    if done.returncode != 0:
        raise Skipped(f"a small disk to fill cannot be mounted here: {done.stderr.strip()}")


def _fill(filler: Path) -> None:
    try:
        with filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(FILL_BYTES))
    except OSError as exc:
        if exc.errno != errno.ENOSPC:
            raise


SERVICES = [
    Scenario("Triton is killed and started again", restart_triton),
    Scenario("the tool service is killed in mid-call", restart_tools),
    Scenario("the disk of the journal is full", fill_disk),
]

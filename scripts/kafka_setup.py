"""What a local Kafka broker and Spark's Kafka connector need: jars from Maven Central, pinned by conf/kafka/*.xml.

They lie in `.kafka/broker` and `.kafka/connector` of the checkout, or below the directory that HERMES_KAFKA_JARS names.
Standard library only.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FETCH_ATTEMPTS = 3
FETCH_TIMEOUT_S = 600
STAMP = "pom.sha256"


class KafkaError(Exception):
    """The broker cannot be set up, started or stopped; the text is a sentence for the person at the terminal."""


def jars(kind: str) -> Path:
    """The directory of the jars of `kind` (`broker` or `connector`), fetched if they are not there as the pom wants them.

    Raises `KafkaError` when they cannot be had.
    """
    home = Path(os.environ.get("HERMES_KAFKA_JARS") or ROOT / ".kafka")
    pom = ROOT / "conf" / "kafka" / f"{kind}.xml"
    wanted = hashlib.sha256(pom.read_bytes()).hexdigest()
    directory = home / kind
    home.mkdir(parents=True, exist_ok=True)
    with (home / f"{kind}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released on close; whoever comes second finds them fetched
        stamp = directory / STAMP
        if not stamp.exists() or stamp.read_text() != wanted:
            _fetch(pom, directory)
            stamp.write_text(wanted)
    return directory


def _fetch(pom: Path, directory: Path) -> None:
    command = [_maven(), "--batch-mode", "--quiet", "--file", str(pom), "dependency:copy-dependencies"]
    command += ["-DincludeScope=runtime", f"-DoutputDirectory={directory}"]
    print(f"fetching the jars of {pom.relative_to(ROOT)} from Maven Central", file=sys.stderr, flush=True)
    shutil.rmtree(directory, ignore_errors=True)
    for attempt in range(1, FETCH_ATTEMPTS + 1):
        try:
            status = subprocess.run(command, check=False, timeout=FETCH_TIMEOUT_S, stdout=sys.stderr).returncode
        except subprocess.TimeoutExpired:
            status = None
        if status == 0:
            return
        print(f"mvn failed (attempt {attempt} of {FETCH_ATTEMPTS})", file=sys.stderr, flush=True)
        time.sleep(3 * attempt)
    raise KafkaError(f"mvn could not fetch what {pom} names (its messages are above); check the network and run again")


def _maven() -> str:
    """mvn, installed if it is missing and can be."""
    found = shutil.which("mvn")
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        print("installing maven with apt-get", file=sys.stderr, flush=True)
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["update"], ["install", "-y", "--no-install-recommends", "maven"]):
            subprocess.run(["apt-get", *command], check=False, env=quiet, stdout=sys.stderr)
        found = shutil.which("mvn")
    if found is None:
        raise KafkaError("mvn is missing, which fetches Kafka's jars; run: sudo apt-get install maven")
    return found

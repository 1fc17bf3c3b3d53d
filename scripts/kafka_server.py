"""Starts and stops a local Apache Kafka broker: one node, KRaft, 512 MB of heap, bound to 127.0.0.1.

scripts/kafka start [--port N] [--set message.max.bytes=20000000 ...]   in the background; waits until it answers
scripts/kafka run                                                       in the foreground; ends with its parent
scripts/kafka status | stop                                             what runs; end it
scripts/kafka setup                                                     only fetch the jars, Spark's connector too

Everything of a broker lies in `--state`: its data, log and ports. A later start there has the same ports and topics. Topics
are never created by use. `--listener SASL_SSL` adds a listener on a port of its own, named like its protocol; what it needs
more (key stores, mechanisms) is given with `--set`, users with `--add-scram` at the first start.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path

from background import end, read_facts, started
from kafka_setup import ROOT, KafkaError, jars

HOST = "127.0.0.1"
PLAIN, CONTROLLER = "PLAINTEXT", "CONTROLLER"
HEAP = "512m"
LOG_TAIL_LINES = 25
FORMAT_TIMEOUT_S = 60.0
LOGGING = [
    f"-Dorg.slf4j.simpleLogger.{name}"
    for name in ("defaultLogLevel=warn", "log.kafka.server.KafkaRaftServer=info", "showDateTime=true")
]
PR_SET_PDEATHSIG = 1
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required;"


def setup(_options: argparse.Namespace) -> None:
    """Fetch the jars of broker and connector."""
    print(f"the jars are ready: {jars('broker')}, {jars('connector')}")


def start(options: argparse.Namespace) -> None:
    """Start in the background and wait until the broker answers."""
    state: Path = options.state.resolve()
    running = read_facts(state / "server.json")
    if running is not None:
        print(f"already running: {_described(running)}")
        return
    line = command(options)
    log = state / "log"
    with log.open("ab") as output:
        server = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)
    write_facts(state, server.pid)
    ready = False
    try:
        _await_ready(server, state, options.wait)
        ready = True
    except KafkaError as error:
        raise KafkaError(f"{error}; from the end of {log}:\n{_tail(log)}") from None
    finally:
        if not ready:  # after Ctrl-C too: nothing half-started is left behind
            end(server.pid)
            (state / "server.json").unlink()
    print(f"ready: {_described(json.loads((state / 'server.json').read_text()))}")


def run(options: argparse.Namespace) -> None:
    """Become the broker, in the foreground; when the parent dies, the kernel ends the broker."""
    state: Path = options.state.resolve()
    running = read_facts(state / "server.json")
    if running is not None:
        raise KafkaError(f"already running: {_described(running)}; stop it first or use another --state")
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise KafkaError("the process that started this one has ended")
    line = command(options)
    write_facts(state, os.getpid())
    os.execv(line[0], line)


def stop(options: argparse.Namespace) -> None:
    """End the broker, if it runs, within a bound; its data stay."""
    state: Path = options.state.resolve()
    running = read_facts(state / "server.json")
    if running is None:
        print("not running")
        return
    end(running["pid"])
    (state / "server.json").unlink(missing_ok=True)
    print("stopped")


def status(options: argparse.Namespace) -> None:
    """Say what runs."""
    running = read_facts(options.state.resolve() / "server.json")
    if running is None:
        raise KafkaError("not running")
    print(f"{'ready' if answers(running['ports'][PLAIN]) else 'not ready'}: {_described(running)}")


def command(options: argparse.Namespace) -> list[str]:
    """The broker's command line, after its directory has been made and formatted."""
    state: Path = options.state.resolve()
    state.mkdir(parents=True, exist_ok=True)
    ports = _ports(state, options)
    properties = state / "server.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in _properties(state, ports, options.set)))
    java = [f"{os.environ['JAVA_HOME']}/bin/java" if os.environ.get("JAVA_HOME") else "/usr/bin/java"]
    java += [f"-Xmx{HEAP}", "-XX:+UseSerialGC", "-Djava.awt.headless=true", *LOGGING]
    java += ["-cp", f"{jars('broker')}/*"]
    if not (state / "data" / "meta.properties").exists():
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        line = [*java, "kafka.tools.StorageTool", "format", "--cluster-id", cluster, "--config", str(properties)]
        for user in options.add_scram:
            line += ["--add-scram", user]
        made = subprocess.run(line, capture_output=True, text=True, timeout=FORMAT_TIMEOUT_S, check=False)
        if made.returncode != 0:
            raise KafkaError(f"{state} could not be formatted: {(made.stdout + made.stderr).strip()[-1000:]}")
    return [*java, "kafka.Kafka", str(properties)]


def _properties(state: Path, ports: dict[str, int], given: list[str]) -> list[tuple[str, str]]:
    addresses = {name: f"{name}://{HOST}:{port}" for name, port in ports.items()}
    protocols = {name: PLAIN if name == CONTROLLER else name for name in ports}
    values = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{HOST}:{ports[CONTROLLER]}",
        "controller.listener.names": CONTROLLER,
        "inter.broker.listener.name": PLAIN,
        "listeners": ",".join(addresses.values()),
        "advertised.listeners": ",".join(address for name, address in addresses.items() if name != CONTROLLER),
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
        "log.dirs": str(state / "data"),
        "auto.create.topics.enable": "false",
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
    }
    for name in ports:
        if name.startswith("SASL_"):
            values["sasl.enabled.mechanisms"] = "SCRAM-SHA-512"
            values[f"listener.name.{name.lower()}.scram-sha-512.sasl.jaas.config"] = SCRAM
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise KafkaError(f"--set {text}: expected NAME=VALUE, a property of the broker")
        values[name] = value
    return list(values.items())


def _ports(state: Path, options: argparse.Namespace) -> dict[str, int]:
    """The port of each listener; those that an earlier start had here, else free ones."""
    path = state / "ports.json"
    ports: dict[str, int] = json.loads(path.read_text()) if path.exists() else {}
    if options.port:
        ports[PLAIN] = options.port
    names = [PLAIN, CONTROLLER, *options.listener]
    with contextlib.ExitStack() as held:  # all at once, so that no port is given twice
        chosen = {name: held.enter_context(_bound(name, ports.get(name, 0))).getsockname()[1] for name in names}
    path.write_text(json.dumps(chosen))
    return chosen


def _bound(name: str, port: int) -> socket.socket:
    probe = socket.socket()
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        probe.bind((HOST, port))
    except OSError as error:
        probe.close()
        raise KafkaError(f"port {port} ({name}) is taken: {error.strerror}; choose another --port or --state") from None
    return probe


def write_facts(state: Path, pid: int) -> None:
    """Keep what is known of the broker that runs as `pid`."""
    ports = json.loads((state / "ports.json").read_text())
    facts = {"pid": pid, "started": started(pid), "ports": ports, "log": str(state / "log")}
    (state / "server.json").write_text(json.dumps(facts))


def answers(port: int, timeout_s: float = 2.0) -> bool:
    """Whether a broker on this port answers a metadata request with a broker that takes part in the cluster."""
    body = struct.pack(">hhih", 3, 4, 1, -1) + struct.pack(">ib", 0, 0)  # Metadata v4, no client id, no topics
    try:
        with socket.create_connection((HOST, port), timeout_s) as connection:
            connection.sendall(struct.pack(">i", len(body)) + body)
            head = b""
            while len(head) < 16:  # size, correlation id, throttle time, number of brokers
                part = connection.recv(16 - len(head))
                if not part:
                    return False
                head += part
    except OSError:
        return False
    return bool(struct.unpack(">iiii", head)[3] > 0)


def _await_ready(server: subprocess.Popen[bytes], state: Path, wait: float) -> None:
    port = json.loads((state / "ports.json").read_text())[PLAIN]
    deadline = time.monotonic() + wait
    while not answers(port):
        if server.poll() is not None:
            raise KafkaError(f"the broker ended with status {server.returncode} before it was ready")
        if time.monotonic() > deadline:
            raise KafkaError(f"the broker was not ready within {wait:g} s (--wait)")
        time.sleep(0.1)


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:])


def _described(facts: dict[str, object]) -> str:
    ports = facts["ports"]
    assert isinstance(ports, dict)
    shown = ", ".join(f"{name} {HOST}:{port}" for name, port in ports.items() if name != CONTROLLER)
    return f"pid {facts['pid']}, {shown}, log {facts['log']}"


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/kafka", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=ACTIONS)
    parser.add_argument(
        "--state", type=Path, default=ROOT / ".state" / "kafka", help="where data, ports and log are kept"
    )
    parser.add_argument("--port", type=int, default=0, help="of the plain listener; 0: as before, else any free one")
    parser.add_argument("--listener", action="append", default=[], choices=["SSL", "SASL_PLAINTEXT", "SASL_SSL"])
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a property of the broker")
    parser.add_argument("--add-scram", action="append", default=[], metavar="SCRAM-SHA-512=[name=..,password=..]")
    parser.add_argument(
        "--wait", type=float, default=60.0, metavar="SECONDS", help="how long to wait until it is ready"
    )
    return parser.parse_args(arguments)


ACTIONS = {"setup": setup, "start": start, "run": run, "stop": stop, "status": status}


if __name__ == "__main__":
    chosen = parse(sys.argv[1:])
    try:
        ACTIONS[chosen.action](chosen)
    except KafkaError as error:
        sys.exit(f"scripts/kafka: {error}")

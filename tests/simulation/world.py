"""One seed: a machine with drivers, hosts, tasks, a disk and wires, made from the real code and broken on purpose.

Real: journal, takeover, commit log, orchestrator, hand-off, fleet, host, shard, intake, sessions, takes, effects, flusher,
agent.
Simulated: time, scheduling, threads, the disk's syncing, the network, small objects, Spark, sinks, the model and the tools.
Also real: rotation, snapshots and retention.
Not simulated: Flight, the JVM, RocksDB (a dict), and names in directories that were not synced before a power cut.
"""

from __future__ import annotations

import hashlib
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hermes_spark.app import host as app
from hermes_spark.errors import HermesError
from hermes_spark.host.shard import Capture, Shard
from hermes_spark.host.wire import HostExit, HostPayload, unpack
from hermes_spark.settings import from_json as settings_from_json
from hermes_spark.state.records import Position
from hermes_spark.state.snapshots import ShardSnapshots
from simulation.approver import Approver
from simulation.disk import Disk
from simulation.driver import Driver
from simulation.loop import SimLoop
from simulation.network import Network
from simulation.objects import Objects, SimSink
from simulation.processes import Process
from simulation.seams import machine
from simulation.services import Tools
from simulation.spark import HostTask, SimLauncher, SimSpark
from simulation.trouble import KINDS, Troubles
from simulation.wiring import services, settings_of
from simulation.workload import Workload

LIMIT_S = 900.0
"""Virtual seconds within which a seed must end."""
BACKLOG = 20
"""Events that wait for their outcome; no more are added above it, or a slow machine would never be done."""
MEMORY = Path("/dev/shm")
ANSWERS = ("outcomes", "dead_letters", "controls")
"""The tables that have one row for every event."""


class World:
    """See the module. `run` once."""

    def __init__(self, seed: int, *, kinds: list[str] | None = None, trace: bool = False) -> None:
        self.seed, self._trace = seed, trace
        rng = self.rng = random.Random(f"world {seed}")
        self.loop = SimLoop(random.Random(f"steps {seed}"))
        self.loop.log = self.log
        self.root = Path(tempfile.mkdtemp(prefix="simulation-", dir=MEMORY if MEMORY.is_dir() else None))
        self.disk = Disk(self.loop, random.Random(f"disk {seed}"), self.root)
        self.network = Network(self.loop, random.Random(f"network {seed}"))
        self.workload = Workload(random.Random(f"workload {seed}"), has_offsets=rng.random() < 0.6)
        self.state = Objects(self.loop, random.Random(f"state {seed}"))
        self.checkpoint = Objects(self.loop, random.Random(f"checkpoint {seed}"))
        self.sink = SimSink(self.loop, random.Random(f"sink {seed}"))
        self.spark = SimSpark(self.loop, random.Random(f"spark {seed}"), keeps_order=False)
        self.spark.skew_ms = rng.choice((0, 3000))
        self.tools = Tools(self.loop, random.Random(f"tools {seed}"))
        kinds = rng.choices(KINDS, k=rng.randint(1, 4)) if kinds is None else kinds
        self.settings = settings_of(rng, kinds, root=self.root, has_offsets=self.workload.has_offsets)
        self.drivers: list[Driver] = []
        self._events_left = rng.randint(6, 14)
        self._digest = hashlib.sha256()
        self.troubles = Troubles(self, random.Random(f"troubles {seed}"), kinds)
        self.approver = Approver(self, random.Random(f"approver {seed}"))
        self.sink.asked = self.approver.asked
        self.opened: list[tuple[Process, int, Shard]] = []
        """Every shard that any host has opened, with its number."""

    @property
    def digest(self) -> str:
        """Stands for all that happened: the same seed gives the same."""
        return self._digest.hexdigest()

    def run(self) -> None:
        """Let it all happen. Raises `Stuck`, and any error that no process expected."""
        rng = random.Random(f"chance {self.seed}")
        with machine(self.loop, self.disk, self.network, self.troubles.pass_point, rng), services(self):
            try:
                self._at(0.0, self._feed)
                self._at(0.0, self.ensure_driver)
                self.loop.run(self._is_over, LIMIT_S)
            finally:
                self.loop.end()

    def remove(self) -> None:
        """Delete the journals, and let the loop go if it never ran."""
        self.loop.close()
        shutil.rmtree(self.root)

    def log(self, *words: object) -> None:
        line = f"{self.loop.time():9.4f} {self.loop.steps:7d} " + " ".join(map(str, words))
        line = line.replace(str(self.root), "state")  # the only thing that differs between two runs of a seed
        self._digest.update(line.encode())
        if self._trace:
            print(line, flush=True)

    # ------------------------------------------------------------------ processes

    def ensure_driver(self) -> None:
        """Start a driver unless one is alive and awake."""
        if any(driver.process.alive and not driver.process.paused for driver in self.drivers):
            return
        process = self.spark.process("driver")
        self.log("start", process.name)
        process.on_death.append(lambda: self._buried(process))
        driver = Driver(self, process, SimLauncher(process, self._start_host, self._stop_host))
        self.drivers.append(driver)
        process.thread(driver.main)

    def newest_driver(self) -> Process | None:
        alive = [driver.process for driver in self.drivers if driver.process.alive and not driver.process.paused]
        return alive[-1] if alive else None

    def some_host(self) -> Process | None:
        """A living host of the newest driver."""
        alive = [host.process for host in self._hosts() if host.process is not None and host.process.alive]
        return self.rng.choice(alive) if alive else None

    def kill(self, process: Process) -> None:
        self.log("dies:", process.name)
        self.loop.kill(process)

    def cut_power(self) -> int:
        """Everything on the machine dies, and the disk forgets what was not synced."""
        for process in list(self.loop.processes):
            if process is not self.loop.root:
                self.kill(process)
        return self.disk.cut_power()

    def snapshot_early(self, host: Process) -> None:
        """Store snapshots of a host's shards as they were appended, at positions that are not durable, and may never be."""
        for process, number, shard in self.opened:
            if process is host and shard.journal.dirty:
                position = Position(shard.journal.appended_lsn, shard.journal.position().term)
                scratch = self.root / "early" / str(position.lsn)
                shard.sessions.checkpoint(scratch)
                contents = Capture(position, *shard._look()).contents()
                ShardSnapshots(self.state, number).write(scratch, contents, position, 0)
                self.log("early snapshot of shard", number, "at", position.lsn)

    def report_lost(self, process: Process) -> None:
        """Let the driver believe that a host is gone."""
        for driver in self.drivers:
            for host in driver.launcher.hosts:
                if host.process is process:
                    self.log("reported lost:", process.name)
                    host.report(HostExit("HostError", "executor lost"))

    def is_lost(self, process: Process) -> bool:
        return any(host.process is process and host.reported for d in self.drivers for host in d.launcher.hosts)

    def _hosts(self) -> list[HostTask]:
        return [h for driver in self.drivers[-1:] for h in driver.launcher.hosts]

    def _start_host(self, host: HostTask, payload: bytes) -> None:
        self._at(self.rng.uniform(0.05, 0.5), self._fork, host, payload)

    def _fork(self, host: HostTask, payload: bytes) -> None:
        if not host.driver.alive:
            return
        process = host.process = self.spark.process("host")
        self.log("start", process.name, "as host", host.index, "of", host.driver.name)
        process.on_death.append(lambda: self._host_died(host, process))
        process.context().run(self.loop.create_task, self._be_host(host, process, payload))

    async def _be_host(self, host: HostTask, process: Process, payload_bytes: bytes) -> None:
        payload = unpack(payload_bytes, HostPayload)
        try:
            exit_ = await app._run_host(payload, settings_from_json(payload.settings.decode()))
        except HermesError as exc:
            exit_ = HostExit(type(exc).__name__, str(exc))
        self.log(process.name, "ends:", exit_)
        self._at(self.rng.uniform(0.01, 0.3), host.report, exit_)
        self.loop.kill(process)

    def _host_died(self, host: HostTask, process: Process) -> None:
        self._at(self.rng.uniform(0.05, 1.0), host.report, HostExit("HostError", "the host's task failed"))

    def _stop_host(self, host: HostTask) -> None:
        if host.process is not None and not host.process.paused:
            self._at(self.rng.uniform(0.01, 2.0), self.loop.kill, host.process)

    def _buried(self, process: Process) -> None:
        """A driver is gone: its hosts are killed, notice it themselves, or live on for a while."""
        for driver in self.drivers:
            for host in driver.launcher.hosts if driver.process is process else ():
                if host.process is not None and host.process.alive:
                    end = self.rng.choice((self.loop.kill, _orphan))
                    self._at(self.rng.choice((0.1, self.rng.uniform(0.5, 15))), end, host.process)
        self._at(self.rng.uniform(0.2, 3.0), self.ensure_driver)

    # ------------------------------------------------------------------ inside

    def burst(self) -> None:
        """Some events at once, so that a fault finds work under way."""
        for _ in range(3):
            self._add()

    def _add(self) -> None:
        before = len(self.workload.sent)
        self.workload.add(self.loop.time())
        for sent in self.workload.sent[before:]:
            self.approver.foresee(sent)

    def _feed(self) -> None:
        """Events come until all faults have happened."""
        self._events_left -= 1
        if len(self.workload.sent) - self._published() < BACKLOG:
            self._add()
        if self._events_left > 0 or not self.troubles.over:
            gap = self.rng.uniform(0.05, 1.0) if self._events_left > 0 else self.rng.uniform(1.0, 4.0)
            self._at(gap, self._feed)
        else:
            self._fed = True

    _fed = False

    def _is_over(self) -> bool:
        if not self._fed or self.loop.steps % 50:
            return False
        if self._published() >= len(self.workload.sent):
            return True
        awake = [driver for driver in self.drivers if driver.process.alive and not driver.process.paused]
        return any(driver.is_done(self.workload.end()) for driver in awake)

    def _published(self) -> int:
        return sum(len(rows) for (_, name), rows in self.sink.tables.items() if name in ANSWERS)

    def _at(self, delay_s: float, callback: Callable[..., Any], *args: Any) -> None:
        self.loop.call_later(delay_s, callback, *args, context=self.loop.root.context())


def _orphan(process: Process) -> None:
    process.orphan = True

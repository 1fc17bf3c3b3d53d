"""CPU time and memory of the benchmark's processes, by what they are."""

from __future__ import annotations

import threading
from collections import defaultdict

import psutil

ROLES = (
    ("driver jvm", "SparkSubmit"),
    ("source", "python_streaming_source_runner"),
    ("workers", "pyspark.daemon"),
    ("driver", "stream_agent.py"),
    ("triton", "triton_python_backend_stub"),
    ("triton", "tritonserver"),
    ("tools", "hermes_spark.tools.demo"),
    ("plain", "plain.py"),
    ("kafka", "kafka.Kafka"),
    ("clients", "kafka_clients.py"),
)
"""Role by a word of the command line; the hosts are told from other workers by their pids."""


class Accounting:
    """Samples once a second while it runs; use as a context manager around the measured window."""

    def __init__(self, host_pids: list[int]) -> None:
        self._hosts = set(host_pids)
        self._first: dict[int, tuple[str, float]] = {}
        self._last: dict[int, tuple[str, float]] = {}
        self.peak_mb: dict[str, float] = defaultdict(float)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Accounting:
        self._sample()
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()
        self._sample()

    def cpu_s(self) -> dict[str, float]:
        """Seconds of CPU by role between the first and the last sample; a process that came later counts from its start."""
        spent: dict[str, float] = defaultdict(float)
        for pid, (role, seconds) in self._last.items():
            spent[role] += seconds - self._first.get(pid, (role, 0.0))[1]
        return dict(spent)

    def _run(self) -> None:
        while not self._stop.wait(1.0):
            self._sample()

    def _sample(self) -> None:
        for process in psutil.process_iter():
            try:
                role = self._role(process)
                if not role:
                    continue
                times = process.cpu_times()
                megabytes = process.memory_info().rss / 2**20
            except (psutil.NoSuchProcess, psutil.ZombieProcess):
                continue
            sample = (role, times.user + times.system)
            self._last[process.pid] = sample
            if not self._thread.is_alive() and not self._stop.is_set():
                self._first[process.pid] = sample
            self.peak_mb[role] = max(self.peak_mb[role], round(megabytes, 1))

    def _role(self, process: psutil.Process) -> str:
        if process.pid in self._hosts:
            return "host"
        line = " ".join(process.cmdline())
        return next((role for role, word in ROLES if word in line), "")

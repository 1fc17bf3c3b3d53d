"""The world of one scenario: a checkpoint, a sink and a tool service of its own, the job on them, and the fault's traces."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml

from chaos_parts.counts import Counts, Identity, count
from hermes_spark.streaming.publish import read_table
from jobs import Job, kill_process, question
from stack import ROOT, Stack, StackError, ToolService

SESSIONS = 12
FILES = 4
TOOL_DELAY_MS = 400
"""Long enough that calls are under way at any moment of the load."""
IDLE_S = 2
STARTS = 10
"""So often the job is started until it has ended well."""
RUN_S = 300.0
QUESTIONS = (
    "查一下客户张三的订单状态",
    "What is the status of order A-1002?",
    "What is the status of order A-1003? Also look up the customer 张三 in the CRM.",
    'Create a ticket titled "Parcel arrived damaged" with high priority',
)
"""Each asks for one or two calls, and the shop refuses none of them."""
ENDING_S = 15.0
"""How long the rest of a dead job may live on: the driver's way out of a lost JVM takes some seconds."""
POLL_S = 0.1


class Failed(Exception):
    """A scenario did not get where it should; the sentence says what was missing."""


class Skipped(Exception):
    """A scenario cannot run here; the sentence says why."""


@dataclass(frozen=True)
class Scenario:
    """One line of the matrix."""

    name: str
    act: Callable[[World], None]
    """Loads events, starts the job, does the fault, and returns when all is drained."""
    faults: str = ""
    """`HERMES_FAULTS` of the job; each fault named must have fired at the end."""
    settings: Mapping[str, object] = field(default_factory=dict)
    master: str = "local[3]"


class World:
    """What a scenario acts on."""

    def __init__(self, stack: Stack, triton: str, scenario: Scenario) -> None:
        self.stack = stack
        self.scenario = scenario
        self.tools = self.start_tools()
        self.job = Job(stack, triton, self.tools, **{**_settings(stack.directory), **scenario.settings})
        self.job.master = scenario.master
        self.marks = stack.directory / "fired"
        self.marks.mkdir()
        self.sink = stack.directory / "out"
        self.settings: dict[str, object] = {}
        """Of every start, beside those of the scenario."""
        self.executed_before: dict[str, int] = {}
        """By call id, what an earlier tool service of the same checkpoint executed."""
        self.finished: set[str] | None = None
        """Calls that had finished before the fault, where others may rightly be executed twice; None: none may."""
        self.fired: list[str] = []
        self.starts = 0
        self.events: set[Identity] = set()
        self._fault_s: float | None = None
        self._started_s = 0.0
        self._processes: dict[int, float] = {}
        self._numbers = itertools.count()

    # ------------------------------------------------------------------ acting

    def load(self, files: int = FILES, each: int = SESSIONS) -> None:
        """Put event files where the job reads them; one file is one batch."""
        for _ in range(files):
            numbers = itertools.islice(self._numbers, each)
            self.send(question(f"s{n % SESSIONS}", QUESTIONS[n % len(QUESTIONS)]) for n in numbers)

    def send(self, events: Iterable[dict[str, Any]]) -> None:
        """Put one event file where the job reads it."""
        lines = self.job.drop(events)
        name = max(path.name for path in self.job.events.iterdir())
        self.events |= {(name, line) for line in range(lines)}

    def start(self) -> None:
        """Submit the job, armed as the scenario says; it ends by itself when it is idle."""
        self._processes = {}
        self.starts += 1
        self._started_s = time.time()
        self.job.start({"HERMES_FAULTS": self.scenario.faults, "HERMES_FAULTS_DIR": str(self.marks)}, **self.settings)

    def start_tools(self, port: int = 0) -> ToolService:
        """Start the tool service (again); what it has executed is remembered."""
        self.tools = self.stack.tools("--delay-ms", str(TOOL_DELAY_MS), "--port", str(port))
        return self.tools

    def mid_batch(self) -> None:
        """Wait until calls have been executed and others are under way."""

        def busy() -> bool:
            counters = self.tools.counters()
            return counters["total"] >= SESSIONS // 2 and counters["started"] > counters["total"]

        self.until(busy, "calls under way")

    def until(self, condition: Callable[[], bool], what: str, within_s: float = RUN_S) -> None:
        """Wait for a condition while the job runs."""
        deadline = time.monotonic() + within_s
        while not condition():
            if not self._alive():
                raise Failed(f"the job ended while waiting for {what}: {self.last_word()}")
            if time.monotonic() > deadline:
                raise Failed(f"waited {within_s:g} s in vain for {what}")
            self.note_processes()
            time.sleep(POLL_S)

    def hit(self, what: str) -> None:
        """Note that the scenario's own fault has happened now."""
        self.fired.append(what)
        self._fault_s = self._fault_s or time.time()

    def host(self) -> psutil.Process:
        """The newest agent host."""
        return psutil.Process(self.job.host_pids()[-1])

    def drain(self) -> None:
        """Go on until the job has ended well, starting it again whenever it died."""
        while True:
            if not self._alive():
                if self.starts >= STARTS:
                    raise Failed(f"the job did not end well in {STARTS} starts: {self.last_word()}")
                self.start()
            if self.wait_end() == 0:
                return

    def wait_end(self) -> int:
        """The job's exit status, once all its processes are gone."""
        assert self.job.part is not None
        deadline = time.monotonic() + RUN_S
        while self._alive():
            if time.monotonic() > deadline:
                raise Failed(f"the job has not ended after {RUN_S:g} s: {self.last_word()}")
            self.note_processes()
            time.sleep(POLL_S)
        self._expect_no_survivors()
        return self.job.part.wait(1)

    # ------------------------------------------------------------------ judging

    def rows(self, table: str = "outcomes") -> list[dict[str, Any]]:
        """What was published in a table of the sink."""
        rows: list[dict[str, Any]] = read_table(self.sink, table).to_pylist()
        return rows

    def last_word(self) -> str:
        """What the job said last in its log, in its own name if it did."""
        assert self.job.part is not None
        lines = self.job.part.log.read_text(errors="replace").splitlines()
        return next((line for line in reversed(lines) if line.startswith("hermes-spark: ")), lines[-1] if lines else "")

    def counts(self) -> Counts:
        """What came of it."""
        executions = dict(self.executed_before)
        for call, times in self.tools.counters()["executions"].items():
            executions[call] = executions.get(call, 0) + times
        since_s = self.fault_s
        if since_s is not None and self.starts > 1 and self._started_s > since_s:
            since_s = self._started_s
        return count(self.events, self.sink, executions, since_s, self.finished)

    @property
    def fault_s(self) -> float | None:
        """When the first fault happened, in seconds since the epoch."""
        marked = [path.stat().st_mtime for path in self.marks.iterdir()]
        noted = [] if self._fault_s is None else [self._fault_s]
        return min(marked + noted, default=None)

    def all_fired(self) -> list[str]:
        """Names of the faults that happened."""
        return sorted(path.name for path in self.marks.iterdir()) + self.fired

    def end(self) -> None:
        """End what is left of the job, by the pids that were noted."""
        for pid in self._survivors():
            kill_process(pid)

    # ------------------------------------------------------------------ inside

    def note_processes(self) -> None:
        """Remember the job's processes, to see later that none outlives it."""
        assert self.job.part is not None
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self.job.part.process.pid).children(recursive=True):
                self._processes[child.pid] = child.create_time()

    def _survivors(self) -> list[int]:
        alive = []
        for pid, created in self._processes.items():
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                if process.create_time() == created and process.status() != psutil.STATUS_ZOMBIE:
                    alive.append(pid)
        return alive

    def _expect_no_survivors(self) -> None:
        deadline = time.monotonic() + ENDING_S
        while survivors := self._survivors():
            if time.monotonic() > deadline:
                names = [" ".join(psutil.Process(pid).cmdline())[-60:] for pid in survivors]
                raise Failed(f"{len(survivors)} processes outlived the job for {ENDING_S:g} s: {names}")
            time.sleep(POLL_S)

    def _alive(self) -> bool:
        return self.job.part is not None and self.job.part.alive


def run_scenario(scenario: Scenario, directory: Path, triton: str) -> dict[str, object]:
    """Run one scenario below `directory`; its line of the report. Raises `Skipped`."""
    began = time.monotonic()
    directory.mkdir(parents=True)
    stack = Stack(directory)
    world = None
    problems: list[str] = []
    figures: dict[str, object] = {}
    try:
        world = World(stack, triton, scenario)
        scenario.act(world)
    except (Failed, StackError, OSError, LookupError, psutil.Error) as exc:
        problems.append(f"{type(exc).__name__}: {exc}")
    finally:
        try:
            if world is not None:
                figures = _figures(world, problems)
        finally:
            stack.stop()
            if world is not None:
                world.end()
    seconds = round(time.monotonic() - began, 1)
    return {"scenario": scenario.name, "passed": not problems, **figures, "seconds": seconds, "problems": problems}


def _figures(world: World, problems: list[str]) -> dict[str, object]:
    counts = world.counts()
    fired = world.all_fired()
    if missing := [name for name in _marks_of(world.scenario.faults) if name not in fired]:
        problems.append(f"did not fire: {', '.join(missing)}")
    elif not fired:
        problems.append("no fault fired")
    if not counts.right:
        problems.append("events were lost, published twice, or calls ran again")
    return {**counts.as_json(), "fired": fired, "starts": world.starts}


def _marks_of(faults: str) -> list[str]:
    """The files that the armed faults leave when they have all fired."""
    marks = []
    for entry in filter(None, faults.split(",")):
        point, _, action = entry.partition("=")
        times = int(action.rpartition("x")[2]) if "x" in action else 1
        marks += [point, *(f"{point}.{number}" for number in range(2, times + 1))]
    return marks


def _settings(directory: Path) -> dict[str, object]:
    tool_file = directory / "tools.yaml"
    tools = yaml.safe_load((ROOT / "conf" / "tools.yaml").read_text(encoding="utf-8"))
    for tool in tools["tools"]:
        tool["policy"] = "unknown"
    tool_file.write_text(yaml.safe_dump(tools, allow_unicode=True), encoding="utf-8")
    return {"tools.file": tool_file, "source.max_files_per_trigger": 1, "stop.idle_s": IDLE_S}

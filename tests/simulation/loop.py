"""An event loop of virtual time that runs several simulated processes, and threads that block in it.

Every handle belongs to the process of the context it was scheduled in. A step picks a process with work by the seed and runs
its oldest handle, so order holds within a process, as asyncio promises, and nothing holds between them. A paused process keeps
its handles (SIGSTOP), a killed one loses them (SIGKILL).
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from collections.abc import Callable
from contextvars import Context
from typing import Any

from simulation.processes import PROCESS, Killed, Process, SimThread, Worker

HANDLE_S = 1e-5
"""Virtual seconds that one handle costs, so that a busy loop does not stop the clock."""


class Stuck(AssertionError):
    """Nothing can happen any more, or not within the limits of a seed."""


class SimLoop(asyncio.BaseEventLoop):
    """See the module."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng, self._now, self._order = rng, 0.0, itertools.count()
        self._timers: list[tuple[float, int, asyncio.Handle]] = []
        self.processes: list[Process] = []
        self.thread: SimThread | None = None
        """The thread that has the baton."""
        self.idle_workers: list[Worker] = []
        self._workers: list[Worker] = []
        self.steps = 0
        self.log: Callable[..., None] = lambda *words: None
        """Takes notes of what happens."""
        self.failures: list[BaseException] = []
        self.root = self.process("world")
        self.set_exception_handler(self._failed)

    def process(self, name: str) -> Process:
        process = Process(self, name)
        self.processes.append(process)
        return process

    def current(self) -> Process:
        return PROCESS.get(self.root)

    def kill(self, process: Process) -> None:
        """End a process at once. When it is the one that runs, raise `Killed` afterwards."""
        if not process.alive:
            return
        process.alive = False
        process.ready.clear()
        self.processes.remove(process)
        self.call_soon(self._bury, process, context=self.root.context())

    def worker(self) -> Worker:
        if self.idle_workers:
            return self.idle_workers.pop()
        self._workers.append(Worker())
        return self._workers[-1]

    def run(self, done: Callable[[], bool], limit_s: float, max_steps: int = 2_000_000) -> None:
        """Run until `done`; raises `Stuck` at virtual time `limit_s`, and what any process failed with."""
        asyncio._set_running_loop(self)
        try:
            while not done():
                if self._now > limit_s or self.steps > max_steps:
                    raise Stuck(f"not done after {self._now:.0f} virtual seconds and {self.steps} steps")
                self._step()
                if self.failures:
                    raise self.failures[0]
        finally:
            asyncio._set_running_loop(None)

    def end(self) -> None:
        """Kill all processes and let all threads go."""
        for process in list(self.processes):
            if process is not self.root:
                self.kill(process)
        while self.root.ready:
            self.root.ready.popleft()._run()
        for worker in self._workers:
            worker.end()
        self.close()

    # ------------------------------------------------------------------ asyncio

    def time(self) -> float:
        return self._now

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._enqueue(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._order), timer))
        return timer

    def call_later(
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def create_task(self, coro: Any, **kwargs: Any) -> asyncio.Task[Any]:
        task = super().create_task(coro, **kwargs)
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        self.current().tasks.append(task)
        return task

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        future = self.create_future()

        def run() -> None:
            try:
                result = func(*args)
            except Exception as exc:
                if not future.done():
                    future.set_exception(exc)
            else:
                if not future.done():
                    future.set_result(result)

        self.current().thread(run)
        return future

    def add_signal_handler(self, sig: int, callback: Any, *args: Any) -> None:
        pass

    # ------------------------------------------------------------------ inside

    def _enqueue(self, handle: asyncio.Handle) -> None:
        process = handle._context.get(PROCESS, self.root)
        if process.alive:
            process.ready.append(handle)

    def _step(self) -> None:
        self.steps += 1
        self._now += HANDLE_S
        timers = self._timers
        while timers and timers[0][0] <= self._now:
            self._enqueue(heapq.heappop(timers)[2])
        ready = [process for process in self.processes if process.ready and not process.paused]
        if not ready:
            if not timers:
                raise Stuck("every process waits for ever")
            self._now = max(self._now, timers[0][0])
            return
        process = ready[0] if len(ready) == 1 else ready[int(self._rng.random() * len(ready))]
        handle = process.ready.popleft()
        if not handle._cancelled:
            handle._run()

    def _bury(self, process: Process) -> None:
        for thread in list(process.threads):
            process.context().run(thread.unwind)
        for task in process.tasks:
            if not task.done():
                try:
                    process.context().run(task.get_coro().close)
                except (RuntimeError, Killed):
                    continue  # it wanted to wait while it was dying
        process.threads.clear()
        process.tasks.clear()
        for callback in process.on_death:
            callback()

    def _failed(self, loop: Any, context: dict[str, Any]) -> None:
        error = context.get("exception")
        unread = "never retrieved" in context["message"]  # asyncio says so when garbage is collected
        if error is not None and not isinstance(error, Killed) and not unread:
            self.failures.append(error)

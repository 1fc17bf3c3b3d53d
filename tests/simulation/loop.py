"""An event loop of virtual time that runs several simulated processes, and threads that block in it.

Every handle belongs to the process of the context it was scheduled in. A step picks a process with work by the seed and runs
its oldest handle, so order holds within a process, as asyncio promises, and nothing holds between them. A paused process keeps
its handles (SIGSTOP), a killed one loses them (SIGKILL).

Code that blocks (the driver's, a host's disk thread) runs on a real thread, but only while the loop hands it the baton: it
runs until it sleeps, waits or touches the disk, and then gives the baton back. So one thread runs at a time, and the seed
decides which.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
import threading
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from typing import Any

PROCESS: ContextVar[Process] = ContextVar("process")
HANDLE_S = 1e-5
"""Virtual seconds that one handle costs, so that a busy loop does not stop the clock."""


class Killed(BaseException):
    """Raised in whatever a process was doing when it was killed."""


class Stuck(AssertionError):
    """Nothing can happen any more, or not within the limits of a seed."""


class Process:
    """A simulated process: its handles, tasks and threads."""

    def __init__(self, loop: SimLoop, name: str) -> None:
        self.loop, self.name = loop, name
        self.alive, self.paused, self.orphan = True, False, False
        self.skew_ms = 0
        self.slowness = 1.0
        """How much longer than usual the disk takes for it."""
        self.ready: deque[asyncio.Handle] = deque()
        self.tasks: list[asyncio.Task[Any]] = []
        self.threads: list[SimThread] = []
        self.on_death: list[Callable[[], None]] = []
        self._context = copy_context()
        self._context.run(PROCESS.set, self)

    def context(self) -> Context:
        return self._context.copy()

    def thread(self, target: Callable[..., Any], *args: Any) -> SimThread:
        thread = SimThread(self, target, args)
        thread.start()
        return thread


class SimThread:
    """Blocking code of a process."""

    def __init__(self, process: Process, target: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.process, self._target, self._args = process, target, args
        self._worker: _Worker | None = None
        self.done = self._dying = False
        self.failure: BaseException | None = None

    def start(self) -> None:
        if self.process.alive:
            self.process.threads.append(self)
            self.process.loop.call_soon(self.run_on, context=self.process.context())

    def run_on(self) -> None:
        """Hand the baton over until the thread blocks or ends. On the loop."""
        if self.done:
            return
        loop, before = self.process.loop, self.process.loop.thread
        loop.thread = self
        if self._worker is None:
            self._worker = loop.worker()
            self._worker.begin(self._main)
        else:
            self._worker.go.release()
        self._worker.back.acquire()
        loop.thread = before
        if self.done:
            loop.idle_workers.append(self._worker)
            self.process.threads.remove(self)
            if self.failure is not None:
                raise self.failure

    def unwind(self) -> None:
        """End a thread of a killed process wherever it blocks. On the loop."""
        self._dying = True
        if self._worker is None:
            self.done = True
        else:
            self.run_on()

    def block(self) -> None:
        assert self._worker is not None
        if self._dying:
            raise Killed
        self._worker.back.release()
        self._worker.go.acquire()
        if self._dying:
            raise Killed

    def sleep(self, seconds: float) -> None:
        self.process.loop.call_later(seconds, self.run_on, context=self.process.context())
        self.block()

    def wait(self, future: asyncio.Future[Any], timeout_s: float | None = None) -> bool:
        """Block until the future is done; False after `timeout_s`."""
        if future.done():
            return True
        woken = False

        def wake(*_: object) -> None:
            nonlocal woken
            if not woken:
                woken = True
                self.run_on()

        loop = self.process.loop
        future.add_done_callback(wake, context=self.process.context())
        timer = None if timeout_s is None else loop.call_later(timeout_s, wake, context=self.process.context())
        self.block()
        if timer is not None:
            timer.cancel()
        future.remove_done_callback(wake)
        return future.done()

    def _main(self) -> None:
        try:
            self.process.context().run(self._target, *self._args)
        except Killed:
            pass
        except BaseException as exc:
            self.failure = exc
        self.done = True


class _Worker:
    """A real thread, used by one `SimThread` after the other."""

    def __init__(self) -> None:
        self.go, self.back = threading.Lock(), threading.Lock()
        self.go.acquire()
        self.back.acquire()
        self._main: Callable[[], None] | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def begin(self, main: Callable[[], None] | None) -> None:
        self._main = main
        self.go.release()

    def end(self) -> None:
        self.begin(None)
        self._thread.join(10)

    def _run(self) -> None:
        while True:
            self.go.acquire()
            if self._main is None:
                return
            self._main()
            self.back.release()


class SimLoop(asyncio.BaseEventLoop):
    """See the module."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng, self._now, self._order = rng, 0.0, itertools.count()
        self._timers: list[tuple[float, int, asyncio.Handle]] = []
        self.processes: list[Process] = []
        self.thread: SimThread | None = None
        """The thread that has the baton."""
        self.idle_workers: list[_Worker] = []
        self._workers: list[_Worker] = []
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

    def worker(self) -> _Worker:
        if self.idle_workers:
            return self.idle_workers.pop()
        self._workers.append(_Worker())
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

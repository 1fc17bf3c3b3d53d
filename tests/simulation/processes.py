"""Simulated processes, and threads that block in them.

Code that blocks (the driver's, a host's disk thread) runs on a real thread, but only while the loop hands it the baton: it
runs until it sleeps, waits or touches the disk, and then gives the baton back. So one thread runs at a time, and the seed
decides which.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulation.loop import SimLoop

PROCESS: ContextVar[Process] = ContextVar("process")


class Killed(BaseException):
    """Raised in whatever a process was doing when it was killed."""


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
        self._worker: Worker | None = None
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


class Worker:
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

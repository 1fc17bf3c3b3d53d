"""Puts the simulated machine under the package's modules while a world runs: clock, threads, disk, wire, chance."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import secrets
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import FunctionType
from typing import Any
from unittest import mock

from hermes_spark import faults
from hermes_spark.host import wire as real_wire
from simulation.disk import Disk, SimOs
from simulation.loop import SimLoop
from simulation.network import Network, wire

START_S = 1_764_500_000.0
"""The time of day at which every world begins."""


class SimTime:
    """`time` of a process; clocks of two processes differ."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def time(self) -> float:
        return START_S + self._loop.time() + self._loop.current().skew_ms / 1000

    def time_ns(self) -> int:
        return int(self.time() * 1e9)

    def monotonic(self) -> float:
        return self._loop.time()

    perf_counter = monotonic

    def sleep(self, seconds: float) -> None:
        assert self._loop.thread is not None, "sleeping on the loop"
        self._loop.thread.sleep(seconds)


class SimThreading:
    """`threading` of a process."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        return getattr(threading, name)

    def Thread(self, target: Callable[..., Any], args: tuple[Any, ...] = (), **_: Any) -> SimThreadHandle:
        return SimThreadHandle(self._loop, target, args)

    def Condition(self) -> SimCondition:
        return SimCondition(self._loop)

    def Event(self) -> SimEvent:
        return SimEvent(self._loop)


class SimThreadHandle:
    def __init__(self, loop: SimLoop, target: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._loop, self._target, self._args = loop, target, args
        self._thread: Any = None

    def start(self) -> None:
        self._thread = self._loop.current().thread(self._target, *self._args)

    def is_alive(self) -> bool:
        return self._thread is not None and not self._thread.done

    def join(self, timeout: float | None = None) -> None:
        until = None if timeout is None else self._loop.time() + timeout
        while self.is_alive() and (until is None or self._loop.time() < until):
            self._loop.thread.sleep(0.01)  # type: ignore[union-attr]


class SimCondition:
    """A condition with its lock; only simulated threads use it."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self._owner: Any = None
        self._depth = 0
        self._changed = loop.create_future()

    def __enter__(self) -> SimCondition:
        me = self._loop.thread
        while self._owner not in (None, me):
            me.sleep(0.0005)  # type: ignore[union-attr]
        self._owner, self._depth = me, self._depth + 1
        return self

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None

    def wait(self, timeout: float | None = None) -> bool:
        me, depth = self._loop.thread, self._depth
        self._owner, self._depth = None, 0
        told = me.wait(self._changed, timeout)  # type: ignore[union-attr]
        while self._owner is not None:
            me.sleep(0.0005)  # type: ignore[union-attr]
        self._owner, self._depth = me, depth
        return told

    def notify_all(self) -> None:
        changed, self._changed = self._changed, self._loop.create_future()
        changed.set_result(None)

    notify = notify_all


class SimEvent:
    def __init__(self, loop: SimLoop) -> None:
        self._loop, self._set = loop, loop.create_future()

    def is_set(self) -> bool:
        return self._set.done()

    def set(self) -> None:
        if not self._set.done():
            self._set.set_result(None)

    def clear(self) -> None:
        if self._set.done():
            self._set = self._loop.create_future()

    def wait(self, timeout: float | None = None) -> bool:
        assert self._loop.thread is not None
        return self._loop.thread.wait(self._set, timeout)


class SimExecutor:
    """An executor whose work is done by simulated threads."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def submit(self, function: Callable[..., Any], *args: Any) -> Any:
        return self._loop.run_in_executor(None, function, *args)

    def shutdown(self, wait: bool = True) -> None:
        pass


class SimChance:
    """`secrets` and `uuid`: different every time, and the same for the same seed."""

    def __init__(self, rng: random.Random, real: Any) -> None:
        self._rng, self._real = rng, real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def token_bytes(self, length: int) -> bytes:
        return self._rng.randbytes(length)

    def token_hex(self, length: int) -> str:
        return self._rng.randbytes(length).hex()

    def token_urlsafe(self, length: int) -> str:
        return self._rng.randbytes(length).hex()

    def uuid4(self) -> uuid.UUID:
        return uuid.UUID(bytes=self._rng.randbytes(16), version=4)


class _Answer:
    """What `run_coroutine_threadsafe` gives a simulated thread."""

    def __init__(self, loop: SimLoop, coro: Any) -> None:
        self._loop, self._task = loop, loop.create_task(coro)

    def result(self, timeout: float | None = None) -> Any:
        assert self._loop.thread is not None
        if not self._loop.thread.wait(self._task, timeout):
            self._task.cancel()
            raise TimeoutError
        return self._task.result()


def _clocks_by_default(sim: SimTime) -> Iterator[tuple[FunctionType, tuple[Any, ...]]]:
    """Functions of the package that take a clock which is by default that of `time`, with their defaults on simulated time.

    A default is bound when its module is loaded, long before `time` is replaced there.
    """
    clocks = {time.time: sim.time, time.monotonic: sim.monotonic, time.perf_counter: sim.perf_counter}
    for name, module in list(sys.modules.items()):
        owners = [module, *(value for value in vars(module).values() if isinstance(value, type))]
        for owner in owners if name.startswith("hermes_spark.") else ():
            for function in vars(owner).values():
                if not isinstance(function, FunctionType) or function.__module__ != name:
                    continue
                defaults = function.__defaults__ or ()
                if any(callable(value) and value in clocks for value in defaults):
                    yield function, tuple(clocks.get(value, value) if callable(value) else value for value in defaults)


@contextlib.contextmanager
def machine(
    loop: SimLoop, disk: Disk, network: Network, point: Callable[[str], None], rng: random.Random
) -> Iterator[None]:
    """Let every module of the package that is loaded run on the simulated machine."""
    stand_ins: list[tuple[str, Any, Any]] = [
        ("os", os, SimOs(loop, disk)),
        ("time", time, SimTime(loop)),
        ("threading", threading, SimThreading(loop)),
        ("ThreadPoolExecutor", ThreadPoolExecutor, lambda *_, **__: SimExecutor(loop)),
        ("secrets", secrets, SimChance(rng, secrets)),
        ("uuid", uuid, SimChance(rng, uuid)),
    ]
    stand_ins += [(name, getattr(real_wire, name), value) for name, value in wire(network).items()]
    with contextlib.ExitStack() as patches:
        for module in [module for name, module in sys.modules.items() if name.startswith("hermes_spark.")]:
            if module is faults:
                continue
            for name, real, stand_in in stand_ins:
                if getattr(module, name, None) is real:
                    patches.enter_context(mock.patch.object(module, name, stand_in))
        for function, defaults in _clocks_by_default(SimTime(loop)):
            patches.enter_context(mock.patch.object(function, "__defaults__", defaults))
        patches.enter_context(mock.patch.object(faults, "point", point))
        patches.enter_context(
            mock.patch.object(asyncio, "run_coroutine_threadsafe", lambda coro, _: _Answer(loop, coro))
        )
        yield

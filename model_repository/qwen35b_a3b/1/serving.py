"""Serves requests concurrently: one event loop in one thread, with a bound on what is in flight.

Triton hands batches over in its own thread and gets it back at once; every request then answers for itself, exactly once,
when its generation ends. Knows nothing of Triton's classes, so that it can be tested without one.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from enum import Enum
from typing import Protocol

from engines import Engine, Generation, GenerationRequest, InvalidRequest

logger = logging.getLogger(__name__)

CANCEL_CHECK_S = 0.25
"""How often the requests in flight are asked whether their client has gone. Each question costs a round trip to the
server process, so that short requests are never asked."""
CLOSE_TIMEOUT_S = 10.0


class Refusal(Enum):
    """Why a request got no generation."""

    INVALID = "invalid"
    BUSY = "busy"
    CANCELLED = "cancelled"
    FAILED = "failed"


class Answer(Protocol):
    """Where the answer of one request goes. Exactly one of `send` and `refuse` is called, once."""

    def send(self, generation: Generation) -> None:
        """Answer with a generation."""
        ...

    def refuse(self, refusal: Refusal, reason: str) -> None:
        """Answer with an error; `reason` is one sentence."""
        ...

    def cancelled(self) -> bool:
        """Whether the client has given the request up."""
        ...


class Server:
    """Runs generations on an event loop of its own. `submit` may be called from any thread."""

    def __init__(self, engine: Engine, max_in_flight: int) -> None:
        self._engine = engine
        self._max_in_flight = max_in_flight
        self._flights: dict[asyncio.Task[Generation], Answer] = {}  # touched on the loop only
        self._closing = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="generations", daemon=True)
        self._thread.start()

    def submit(self, request: GenerationRequest, answer: Answer) -> None:
        """Start a generation and return at once."""
        self._loop.call_soon_threadsafe(self._start, request, answer)

    def close(self) -> None:
        """Refuse what is in flight and end the thread, within `CLOSE_TIMEOUT_S`."""
        self._loop.call_soon_threadsafe(self._stop)
        self._thread.join(CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            logger.error("the generations did not end within %g s", CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._watch_clients())
        finally:
            self._loop.close()

    def _start(self, request: GenerationRequest, answer: Answer) -> None:
        if self._closing:
            answer.refuse(Refusal.BUSY, "busy: the model is stopping; try again later")
        elif len(self._flights) >= self._max_in_flight:
            limit = self._max_in_flight
            answer.refuse(Refusal.BUSY, f"busy: {limit} requests are in flight (max_in_flight); try again later")
        else:
            flight = self._loop.create_task(self._engine.generate(request))
            self._flights[flight] = answer
            flight.add_done_callback(self._land)

    def _land(self, flight: asyncio.Task[Generation]) -> None:
        """Answer a request whose generation has ended in whatever way."""
        answer = self._flights.pop(flight)
        if flight.cancelled():
            if self._closing:
                answer.refuse(Refusal.BUSY, "busy: the model is stopping; try again later")
            else:
                answer.refuse(Refusal.CANCELLED, "the client has cancelled the request")
            return
        error = flight.exception()
        if error is None:
            answer.send(flight.result())
        elif isinstance(error, InvalidRequest):
            answer.refuse(Refusal.INVALID, str(error))
        else:
            logger.error("a generation failed", exc_info=error)
            answer.refuse(Refusal.FAILED, f"the engine failed with {type(error).__name__}; see the server's log")

    async def _watch_clients(self) -> None:
        """Give up what nobody waits for, until the model stops; then give up everything."""
        watched: set[asyncio.Task[Generation]] = set()
        while not self._closing:
            await asyncio.sleep(CANCEL_CHECK_S)
            for flight in watched & self._flights.keys():
                if self._flights[flight].cancelled():
                    flight.cancel()
            watched = set(self._flights)
        for flight in tuple(self._flights):
            flight.cancel()
        while self._flights:
            await asyncio.sleep(0)

    def _stop(self) -> None:
        self._closing = True

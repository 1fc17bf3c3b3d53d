"""Messages between driver, hand-off tasks and hosts: delayed, lost, doubled, held back by a partition."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from hermes_spark import errors
from hermes_spark.errors import HermesError, HostAbsent, HostError
from hermes_spark.events import Row
from hermes_spark.host.wire import OfferAnswer, OfferHeader
from simulation.loop import SimLoop
from simulation.processes import Process

Serve = Callable[[Any], bytes]


class Network:
    """All servers by address, and how bad the wires are at the moment."""

    def __init__(self, loop: SimLoop, rng: random.Random) -> None:
        self._loop, self._rng = loop, rng
        self._servers: dict[str, tuple[Process, Any]] = {}
        self._ports = 0
        self.bad = 0
        """Above 0, a quarter of the messages is lost, late or doubled."""
        self.cut: set[frozenset[str]] = set()
        """Pairs of processes that do not reach each other."""
        self.troubled = 0

    def listen(self, address: str, handler: Any) -> str:
        self._ports += 1
        place = f"{address}:{self._ports}"
        self._servers[place] = (self._loop.current(), handler)
        return place

    def hang_up(self, place: str) -> None:
        self._servers.pop(place, None)

    def ask(self, place: str, serve: Callable[[Any], bytes], timeout_s: float) -> bytes:
        """Have `serve` called with the server's handler, in the server's process; its answer. In a simulated thread."""
        loop, thread, sender = self._loop, self._loop.thread, self._loop.current()
        assert thread is not None, "only blocking code talks over the wire"
        answer = loop.create_future()
        receiver = self._servers.get(place, (None, None))[0]
        for delay in self._delays(sender, receiver):
            self._later(delay, self._arrive, place, sender, serve, answer)
        if not thread.wait(answer, timeout_s):
            raise HostAbsent(f"no answer from {place} within {timeout_s:g} s")
        name, value = answer.result()
        if name:
            raise getattr(errors, name, HostError)(value)
        return value

    def _arrive(self, place: str, sender: Process, serve: Serve, answer: Any) -> None:
        process, handler = self._servers.get(place, (None, None))
        if process is None or not process.alive:
            self._settle(answer, ("HostAbsent", f"nobody listens at {place}"))
            return
        process.on_death.append(lambda: self._settle(answer, ("HostAbsent", f"{place} hung up")))
        self._loop.log("message:", sender.name, "to", process.name)
        process.thread(self._serve, process, handler, sender, serve, answer)

    def _serve(self, process: Process, handler: Any, sender: Process, serve: Serve, answer: Any) -> None:
        try:
            result = ("", serve(handler))
        except HermesError as exc:
            result = (type(exc).__name__, str(exc))
        except TimeoutError:
            result = ("HostError", "it did not answer within its bound")
        for delay in self._delays(process, sender)[:1]:
            self._later(delay, self._settle, answer, result)

    def _settle(self, answer: Any, result: tuple[str, Any]) -> None:
        if not answer.done():
            answer.set_result(result)

    def _delays(self, sender: Process, receiver: Process | None) -> list[float]:
        """When the copies of a message arrive; none: it is lost."""
        rng = self._rng
        if receiver is not None and frozenset((sender.name, receiver.name)) in self.cut:
            self.troubled += 1
            return []
        usual = rng.uniform(0.0002, 0.004)
        if not self.bad or rng.random() < 0.75:
            return [usual]
        self.troubled += 1
        return rng.choice(([], [rng.uniform(0.1, 12.0)], [usual, rng.uniform(0.01, 12.0)]))

    def _later(self, delay: float, callback: Any, *args: Any) -> None:
        self._loop.call_later(delay, callback, *args, context=self._loop.root.context())


def wire(network: Network) -> dict[str, Any]:
    """`WireServer`, `WireClient` and `local_address` of `host.wire`, over a simulated network."""

    class SimServer:
        def __init__(self, address: str, token: str, handler: Any, settings: object = None) -> None:
            self.address = network.listen(address, handler)

        def shutdown(self) -> None:
            network.hang_up(self.address)

    class SimClient:
        def __init__(self, address: str, token: str, settings: object = None) -> None:
            self.address = address

        def offer(self, header: OfferHeader, rows: Sequence[Row], timeout_s: float) -> OfferAnswer:
            sent = msgspec.msgpack.encode((header, list(rows)))

            def serve(handler: Any) -> bytes:
                header, rows = msgspec.msgpack.decode(sent, type=tuple[OfferHeader, list[Row]])
                return msgspec.msgpack.encode(handler.offer(header, rows))

            return msgspec.msgpack.decode(network.ask(self.address, serve, timeout_s), type=OfferAnswer)

        def act(self, action: str, body: bytes, timeout_s: float) -> bytes:
            return network.ask(self.address, lambda handler: handler.act(action, body), timeout_s)

        def close(self) -> None:
            pass

    return {"WireServer": SimServer, "WireClient": SimClient, "local_address": lambda toward: "host"}

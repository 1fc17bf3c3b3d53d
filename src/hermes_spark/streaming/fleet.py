"""The fleet: starts agent hosts, sees them die, starts them again, and gives each shard to exactly one of them for a term.

States of a host: launched -> registered (it has called `register`) -> ready (its shards are assigned) -> gone -> launched...
A dead host's shards wait for its successor, which is up in well under a second; if it does not come within
`host.restart_timeout_s` they go to the others. A host that comes late, because its executor does, gets its share of theirs.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Sequence

import msgspec

from hermes_spark.errors import HermesError, HostError, HostSilent, StartError
from hermes_spark.events import Row
from hermes_spark.host.wire import (
    Assignment,
    Barrier,
    HostExit,
    HostPayload,
    OfferAnswer,
    OfferHeader,
    Registration,
    WireClient,
    WireServer,
    pack,
    unpack,
)
from hermes_spark.settings import HostSettings
from hermes_spark.state.records import TermId
from hermes_spark.streaming.balance import inherited, levelled, missing_sentence
from hermes_spark.streaming.fleet_host import LASTING_FAULTS, STOP_TIMEOUT_S, FleetHost, tell_to_stop
from hermes_spark.streaming.launcher import HostLauncher
from hermes_spark.streaming.ownership import CommittedView, DriverPlace, Ownership

log = logging.getLogger(__name__)

ASSIGN_TIMEOUT_S = 80.0


class Fleet:
    """All hosts of one driver. Thread-safe; `start` first, `stop` last."""

    def __init__(
        self, launcher: HostLauncher, payload: HostPayload, settings: HostSettings, place: DriverPlace
    ) -> None:
        self._launcher = launcher
        self._payload = payload
        self._settings = settings
        self._place = place
        self._counter = itertools.count(1)
        self._changed = threading.Condition()
        self._hosts: list[FleetHost] = []
        self._owner: dict[int, int] = {}
        self._terms: dict[int, TermId] = {}
        self._ready: set[int] = set()
        self._committed = CommittedView({}, {})
        self._fault: HermesError | None = None
        self._stopping = False
        self._assign_error = ""
        self._server: WireServer | None = None

    # ------------------------------------------------------------------ life

    def start(self, hosts: int, shards: int, committed: CommittedView, at_first: int = 0) -> None:
        """Start `hosts` hosts, give each its share of `shards`, and return when every shard has an owner.

        `at_first`: how many there is room for, if not for all; shards move to the others when they come.
        Raises what a host ended with if that cannot be mended, and `StartError` when they are not there within
        `host.start_timeout_s`.
        """
        self._committed = committed
        self._server = WireServer(self._place.address, self._payload.token, self, self._settings)
        self._payload = msgspec.structs.replace(self._payload, driver=self._server.address)
        self._hosts = [FleetHost(index, since=time.monotonic()) for index in range(hosts)]
        at_first = at_first or hosts
        self._owner = {shard: shard % at_first for shard in range(shards)}
        for host in self._hosts[:at_first]:
            self._launch(host)
        self.wait_ready(self._settings.start_timeout_s, StartError)
        for host in self._hosts[at_first:]:
            self._launch(host)

    def stop(self) -> None:
        """End all hosts: ask them to flush and go, then take away what is left."""
        with self._changed:
            self._stopping = True
            told = [(host, host.client) for host in self._hosts if host.client is not None]
        for _, client in told:
            tell_to_stop(client)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        with self._changed:
            while any(host.state != "gone" for host, _ in told) and time.monotonic() < deadline:
                self._changed.wait(deadline - time.monotonic())
        self._launcher.kill()
        if self._server is not None:
            self._server.shutdown()

    # ------------------------------------------------------------------ what a batch needs

    def ownership(self) -> Ownership:
        """Who owns what now."""
        with self._changed:
            self._raise_fault()
            ready = {s: self._hosts[o].registration for s, o in self._owner.items() if s in self._ready}
            addresses = {shard: reg.address for shard, reg in ready.items() if reg is not None}
            return Ownership(self._payload.token, addresses, {shard: self._terms[shard] for shard in addresses})

    def wait_ready(self, timeout_s: float, error: type[HermesError] = HostError) -> None:
        """Return when every shard has an owner. Raises `error` after `timeout_s`, or a host's lasting fault at once."""
        deadline = time.monotonic() + timeout_s
        moved = error is StartError
        with self._changed:
            while True:
                self._raise_fault()
                missing = sorted(set(self._owner) - self._ready)
                if not missing:
                    return
                left = deadline - time.monotonic()
                if left <= 0:
                    raise error(missing_sentence(self._hosts, missing, timeout_s, self._assign_error))
                self._changed.wait(min(left, 0.5))
                if not moved:
                    self._move_abandoned()

    def barrier(self, timeout_s: float, batch: int | None = None) -> list[Barrier]:
        """Every host's durable positions, each asked after everything before it was durable; `batch`: all of it is taken.

        A host that dies while being asked is waited for: its successor answers. Raises `HostError` after `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        trouble = "not all of them answered for the shards they were given"
        while time.monotonic() < deadline:
            self.wait_ready(max(0.1, deadline - time.monotonic()))
            try:
                answers = [self._answer_of(host, batch) for host in self._owners()]
            except HermesError as exc:
                # A host that is ending answers with whatever ended it; its end is dealt with where it is seen.
                trouble = str(exc)
            else:
                if self._believable(answers):
                    return answers
            time.sleep(0.05)
        raise HostError(f"no positions from all hosts within {timeout_s:g} s: {trouble}")

    def end_silent(self) -> None:
        """Find hosts that stand still, and end them: their successors take over what they own."""
        for host in self._owners():
            try:
                self._answer_of(host)
            except HermesError as exc:
                log.info("asked whether it is there: %s", exc)

    def committed(self, view: CommittedView) -> None:
        """Note the newest commit, for owners to come."""
        with self._changed:
            self._committed = view

    def fail(self, error: HermesError) -> None:
        """Let everything that waits for hosts end with `error`."""
        with self._changed:
            self._fault = self._fault or error
            self._changed.notify_all()

    # ------------------------------------------------------------------ messages from hosts, on Flight's threads

    def offer(self, header: OfferHeader, rows: Sequence[Row]) -> OfferAnswer:
        """Nobody offers rows to the driver."""
        raise HostError("the driver takes no events; offer them to the owner of their shard")

    def act(self, action: str, body: bytes) -> bytes:
        """A host registers."""
        if action != "register":
            raise HostError(f"the driver knows no action {action!r}")
        registration = unpack(body, Registration)
        with self._changed:
            host = self._hosts[registration.index]
            host.registered(registration, WireClient(registration.address, self._payload.token, self._settings))
            # Spark may have started its task again by itself (spark.task.maxFailures): the host before is gone unannounced.
            self._ready -= {shard for shard, owner in self._owner.items() if owner == host.index}
        log.info("host %d is up: pid %d on %s", registration.index, registration.pid, registration.node)
        threading.Thread(target=self._assign, args=(host, registration), daemon=True).start()
        return b""

    # ------------------------------------------------------------------ inside

    def _launch(self, host: FleetHost) -> None:
        payload = pack(msgspec.structs.replace(self._payload, index=host.index))
        self._launcher.launch(host.index, payload, lambda exit_: self._ended(host, exit_))

    def _ended(self, host: FleetHost, exit_: HostExit) -> None:
        with self._changed:
            fault = host.ended(exit_)
            self._ready -= {shard for shard, owner in self._owner.items() if owner == host.index}
            self._fault = self._fault or fault
            again = not self._stopping and self._fault is None
            pause_s = 0.0 if host.quick_deaths <= 1 else 0.2 * 2**host.quick_deaths
            self._changed.notify_all()
        if again:
            log.warning("host %d is gone (%s); starting it again", host.index, exit_.message or "no reason given")
            time.sleep(pause_s)
            with self._changed:
                if self._stopping:
                    return
                host.state = "launched"
            self._launch(host)

    def _assign(self, host: FleetHost, registration: Registration) -> None:
        """Give a registered host its shards, each for a fresh term. On a thread of its own: opening takes a while."""
        with self._changed:
            shards = [shard for shard, owner in self._owner.items() if owner == host.index and shard not in self._ready]
            terms = {shard: TermId(self._place.epoch, next(self._counter)) for shard in shards}
            view, client = self._committed, host.client
        positions = {shard: view.positions[shard] for shard in shards if shard in view.positions}
        try:
            if client is not None:
                client.act("assign", pack(Assignment(terms, positions, view.ends)), ASSIGN_TIMEOUT_S)
        except HermesError as exc:
            self._assign_failed(host, registration, exc)
            return
        with self._changed:
            if host.registration == registration:
                self._terms.update(
                    {s: term for s, term in terms.items() if s not in self._terms or term > self._terms[s]}
                )
                self._ready |= {shard for shard in shards if self._owner[shard] == host.index}
                host.state, host.since = "ready", time.monotonic()
            self._changed.notify_all()
        self._level()

    def _level(self) -> None:
        """Move shards to hosts that have less than their share: those that came late, or came back after theirs had moved."""
        with self._changed:
            there = [host.index for host in self._hosts if host.state == "ready"]
            owner = {shard: self._owner[shard] for shard in self._ready}
            moves = {} if self._stopping else levelled(owner, there)
            self._owner.update(moves)
            self._ready -= moves.keys()
        for index in {owner[shard] for shard in moves}:
            self._hosts[index].release(tuple(shard for shard in moves if owner[shard] == index))
        for heir in (self._hosts[index] for index in set(moves.values())):
            if heir.registration is not None:
                self._assign(heir, heir.registration)

    def _assign_failed(self, host: FleetHost, registration: Registration, error: HermesError) -> None:
        """A lasting fault ends the query; any other ends the host, which then comes back by itself."""
        log.warning("host %d could not open its shards: %s", host.index, error)
        self._assign_error = str(error)
        if type(error).__name__ in LASTING_FAULTS:
            self.fail(error)
        elif (client := host.client_of(registration)) is not None:
            heard = tell_to_stop(client)
            if not (heard or self._stopping or self._fault):
                # Its job may outlive it, waiting for an executor to start it again on.
                self._launcher.end(host.index)

    def _move_abandoned(self) -> None:
        """Give shards whose host has been gone for long to hosts that are there. Called with the lock held."""
        now = time.monotonic()
        there = [host for host in self._hosts if host.state == "ready"]
        heirs: set[int] = set()
        for host in self._hosts:
            gone = host.state in ("gone", "launched") and now - host.since > self._settings.restart_timeout_s
            abandoned = [
                shard for shard, owner in self._owner.items() if owner == host.index and shard not in self._ready
            ]
            if gone and there and abandoned:
                log.warning("host %d did not come back; its %d shards move", host.index, len(abandoned))
                self._owner.update(inherited(abandoned, [heir.index for heir in there]))
                heirs.update(self._owner[shard] for shard in abandoned)
        for heir in (self._hosts[index] for index in heirs):
            if heir.registration is not None:
                threading.Thread(target=self._assign, args=(heir, heir.registration), daemon=True).start()

    def _owners(self) -> list[FleetHost]:
        with self._changed:
            return [host for host in self._hosts if host.index in set(self._owner.values())]

    def _answer_of(self, host: FleetHost, batch: int | None = None) -> Barrier:
        try:
            return host.barrier(self._settings.silence_s, batch)
        except HostSilent as exc:
            log.warning("%s; it is ended and started again", exc)
            self._launcher.end(host.index)
            raise

    def _believable(self, answers: list[Barrier]) -> bool:
        """Only answers from the newest term assigned count, and all shards must be among them."""
        with self._changed:
            newest = {p.shard for a in answers for p in a.positions if p.position.term == self._terms.get(p.shard)}
            return newest == set(self._owner)

    def _raise_fault(self) -> None:
        if self._fault is not None:
            raise self._fault

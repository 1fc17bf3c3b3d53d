"""The fleet over hosts that are threads: who owns what, what happens when one dies."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from hermes_spark.errors import Fenced, HandoffError, HermesError, HostAbsent, HostError, StartError, StorageFull
from hermes_spark.events import Row
from hermes_spark.host.wire import (
    Assignment,
    Barrier,
    HostExit,
    HostPayload,
    OfferAnswer,
    OfferHeader,
    Registration,
    Release,
    ShardPosition,
    WireClient,
    WireServer,
    pack,
    unpack,
)
from hermes_spark.settings import HostSettings
from hermes_spark.state.records import Position, TermId
from hermes_spark.streaming import fleet_host
from hermes_spark.streaming.fleet import Fleet
from hermes_spark.streaming.fleet_host import QUICK_DEATHS
from hermes_spark.streaming.ownership import CommittedView, DriverPlace

TOKEN = "run-token"


class ThreadHost:
    """A host without shards' contents: it remembers its terms and answers barriers with them."""

    def __init__(self, payload: HostPayload, ended: Callable[[HostExit], None], launcher: Launcher) -> None:
        launcher.hosts.append(self)
        self.payload = payload
        self.index = payload.index
        self.terms: dict[int, TermId] = {}
        self.released: list[int] = []
        self.deaf, launcher.deaf = launcher.deaf, False
        self.seen: list[Assignment] = []
        self.opens = launcher.opens
        self.launcher = launcher
        self.barrier_error: HermesError | None = None
        self.slow = 0.0
        self.answers = threading.Event()
        self.answers.set()
        self._ended = ended
        self.server = WireServer("127.0.0.1", TOKEN, self)
        client = WireClient(payload.driver, TOKEN)
        client.act("register", pack(Registration(self.index, self.server.address, 1, "here")), 5)
        client.close()

    def offer(self, header: OfferHeader, rows: Sequence[Row]) -> OfferAnswer:
        return OfferAnswer(len(rows), 0)

    def act(self, action: str, body: bytes) -> bytes:
        if self.deaf:
            raise HostAbsent("nobody is there")
        if action == "assign":
            self._assign(unpack(body, Assignment))
        if action == "release":
            if not self.launcher.lets_go:
                raise HostError("busy")
            self.released += unpack(body, Release).shards
            for shard in unpack(body, Release).shards:
                del self.terms[shard]
        self.answers.wait(30)
        if action == "barrier":
            pause, self.slow = self.slow, 0.0
            time.sleep(pause)
        if action == "barrier" and self.barrier_error is not None:
            raise self.barrier_error
        if action == "stop":
            threading.Timer(0.05, self.die).start()
        positions = tuple(ShardPosition(s, Position(5, t, "")) for s, t in sorted(self.terms.items()))
        return pack(Barrier(positions, 0, 0))

    def _assign(self, assignment: Assignment) -> None:
        if trouble := self.launcher.take_trouble():
            raise trouble
        if not self.opens:
            raise StorageFull("no space at /state; free some")
        self.seen.append(assignment)
        self.terms.update(assignment.terms)

    def die(self, error: str = "", message: str = "gone") -> None:
        self.server.shutdown()
        self._ended(HostExit(error, message))


class Launcher:
    def __init__(self) -> None:
        self.hosts: list[ThreadHost] = []
        self.refuses: set[int] = set()
        self.waiting: dict[int, tuple[bytes, Callable[[HostExit], None]]] = {}
        self.dies_at_once = False
        self.opens = True
        self.lets_go = True
        self.deaf = False
        self.trouble: HermesError | None = None
        self.ended: list[int] = []

    def take_trouble(self) -> HermesError | None:
        trouble, self.trouble = self.trouble, None
        return trouble

    def launch(self, index: int, payload: bytes, ended: Callable[[HostExit], None]) -> None:
        if index in self.refuses:
            self.waiting[index] = (payload, ended)
            return
        if self.dies_at_once:
            threading.Thread(target=ended, args=(HostExit("", "segmentation fault"),), daemon=True).start()
            return
        threading.Thread(target=self._start, args=(payload, ended), daemon=True).start()

    def admit(self, index: int) -> ThreadHost:
        """There is room for a host that was launched in vain."""
        until(lambda: index in self.waiting)
        payload, ended = self.waiting.pop(index)
        return ThreadHost(unpack(payload, HostPayload), ended, self)

    def _start(self, payload: bytes, ended: Callable[[HostExit], None]) -> None:
        ThreadHost(unpack(payload, HostPayload), ended, self)

    def end(self, index: int) -> None:
        self.ended.append(index)
        self.of(index).answers.set()
        self.of(index).die()

    def kill(self) -> None:
        pass

    def of(self, index: int) -> ThreadHost:
        return [host for host in self.hosts if host.index == index][-1]


@pytest.fixture
def launcher() -> Launcher:
    return Launcher()


@pytest.fixture
def fleet(launcher: Launcher) -> Iterator[Fleet]:
    payload = HostPayload(0, TOKEN, "", "", "q", "/state", b"{}")
    settings = HostSettings(start_timeout_s=5, restart_timeout_s=0.3, silence_s=0.5)
    fleet = Fleet(launcher, payload, settings, DriverPlace(7, "127.0.0.1"))
    yield fleet
    fleet.stop()


def test_every_shard_has_one_owner_under_a_term_of_this_driver(fleet: Fleet, launcher: Launcher) -> None:
    fleet.start(2, 5, CommittedView({3: Position(9, TermId(6, 1), "ab")}, {"p": 4}))
    ownership = fleet.ownership()
    assert set(ownership.addresses) == {0, 1, 2, 3, 4}
    assert {term.epoch for term in ownership.terms.values()} == {7}
    assert len(set(ownership.terms.values())) == 5
    told = launcher.of(1).seen[0]
    assert told.committed == {3: Position(9, TermId(6, 1), "ab")}
    assert told.ends == {"p": 4}
    assert [p.shard for barrier in fleet.barrier(5) for p in barrier.positions] == [0, 2, 4, 1, 3]


def test_a_dead_host_comes_back_with_fresh_terms(fleet: Fleet, launcher: Launcher) -> None:
    fleet.start(2, 4, CommittedView({}, {}))
    before = fleet.ownership().terms
    launcher.of(0).die()
    fleet.wait_ready(5)
    after = fleet.ownership().terms
    assert all(after[shard] > before[shard] for shard in (0, 2))
    assert all(after[shard] == before[shard] for shard in (1, 3))


def test_a_host_that_spark_itself_started_again_gets_its_shards_again(fleet: Fleet, launcher: Launcher) -> None:
    fleet.start(2, 4, CommittedView({}, {}))
    before = fleet.ownership().terms
    ThreadHost(launcher.of(0).payload, lambda _: None, launcher)
    fleet.wait_ready(5)
    after = fleet.ownership()
    assert {after.addresses[shard] for shard in (0, 2)} == {launcher.of(0).server.address}
    assert all(after.terms[shard] > before[shard] for shard in (0, 2))


def test_while_a_host_is_gone_its_shards_have_no_owner(fleet: Fleet, launcher: Launcher) -> None:
    fleet.start(2, 4, CommittedView({}, {}))
    launcher.refuses = {0}
    launcher.of(0).die()
    assert set(fleet.ownership().addresses) == {1, 3}


def test_shards_move_when_their_host_does_not_come_back(fleet: Fleet, launcher: Launcher) -> None:
    fleet.start(2, 4, CommittedView({}, {}))
    launcher.refuses = {0}
    launcher.of(0).die()
    fleet.wait_ready(10)
    assert set(fleet.ownership().addresses.values()) == {launcher.of(1).server.address}


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_host_that_has_no_room_at_the_start_gets_its_share_when_it_comes(fleet: Fleet, launcher: Launcher) -> None:
    launcher.refuses = {1}
    fleet.start(2, 5, CommittedView({}, {}), at_first=1)
    before = fleet.ownership()
    assert set(before.addresses.values()) == {launcher.of(0).server.address}
    late = launcher.admit(1)
    until(lambda: len(late.terms) == 2)
    fleet.wait_ready(5)
    after = fleet.ownership()
    moved = [shard for shard, address in after.addresses.items() if address == late.server.address]
    assert sorted(launcher.of(0).released) == sorted(moved)
    assert len(moved) == 2
    assert {shard for shard, term in after.terms.items() if term > before.terms[shard]} == set(moved)
    assert sum(len(barrier.positions) for barrier in fleet.barrier(5)) == 5


def test_a_host_that_comes_back_after_its_shards_moved_gets_its_share_again(fleet: Fleet, launcher: Launcher) -> None:
    fleet.start(2, 4, CommittedView({}, {}))
    launcher.refuses = {1}
    launcher.of(1).die()
    fleet.wait_ready(10)
    assert set(fleet.ownership().addresses.values()) == {launcher.of(0).server.address}
    back = launcher.admit(1)
    until(lambda: len(back.terms) == 2)
    fleet.wait_ready(5)
    assert len(set(fleet.ownership().addresses.values())) == 2


def test_shards_move_from_a_host_that_does_not_let_go(fleet: Fleet, launcher: Launcher) -> None:
    launcher.refuses = {1}
    fleet.start(2, 4, CommittedView({}, {}), at_first=1)
    launcher.lets_go = False
    late = launcher.admit(1)
    until(lambda: len(late.terms) == 2)
    fleet.wait_ready(5)
    assert launcher.of(0).released == []
    assert len(set(fleet.ownership().addresses.values())) == 2


def test_a_fault_that_a_restart_does_not_mend_ends_the_query(fleet: Fleet, launcher: Launcher) -> None:
    fleet.start(1, 2, CommittedView({}, {}))
    launcher.of(0).die("StorageFull", "no space at /state; free some")
    with pytest.raises(StorageFull, match="no space at /state"):
        fleet.wait_ready(5)
    assert len(launcher.hosts) == 1


def test_a_shard_that_cannot_be_opened_says_why(fleet: Fleet, launcher: Launcher) -> None:
    launcher.opens = False
    with pytest.raises(StorageFull, match="no space at /state"):
        fleet.start(1, 2, CommittedView({}, {}))


def test_a_host_that_dies_again_and_again_is_given_up(
    fleet: Fleet, launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hermes_spark.streaming.fleet.time.sleep", lambda seconds: None)
    launcher.dies_at_once = True
    with pytest.raises(HostError, match=f"died {QUICK_DEATHS} times in a row.*segmentation fault"):
        fleet.start(1, 2, CommittedView({}, {}))


def test_hosts_that_never_register_are_named(launcher: Launcher) -> None:
    launcher.refuses = {1}
    settings = HostSettings(start_timeout_s=1)
    fleet = Fleet(launcher, HostPayload(0, TOKEN, "", "", "q", "/state", b"{}"), settings, DriverPlace(7, "127.0.0.1"))
    with pytest.raises(StartError, match=r"1 shards have no owner after 1 s .*host 1 is launched"):
        fleet.start(2, 2, CommittedView({}, {}))
    fleet.stop()


def test_an_answer_of_an_older_term_is_not_believed(fleet: Fleet, launcher: Launcher) -> None:
    fleet.start(1, 2, CommittedView({}, {}))
    launcher.of(0).terms[1] = TermId(6, 99)
    with pytest.raises(HostError, match=r"no positions from all hosts within 0\.3 s"):
        fleet.barrier(0.3)


def test_nobody_without_the_runs_token_gets_in(fleet: Fleet, launcher: Launcher) -> None:
    fleet.start(1, 2, CommittedView({}, {}))
    stranger = WireClient(launcher.of(0).server.address, "guess")
    with pytest.raises(HostError, match="refused the token"):
        stranger.act("stop", b"", 5)


def test_errors_keep_their_class_over_the_wire(fleet: Fleet, launcher: Launcher) -> None:
    class Refusing:
        def offer(self, header: OfferHeader, rows: Sequence[Row]) -> OfferAnswer:
            raise HandoffError("batch 3 was offered after batch 4")

        def act(self, action: str, body: bytes) -> bytes:
            raise StorageFull("no space")

    server = WireServer("127.0.0.1", TOKEN, Refusing())
    client = WireClient(server.address, TOKEN)
    with pytest.raises(HandoffError, match="batch 3 was offered after batch 4"):
        client.offer(OfferHeader(3, (), {}), [], 5)
    with pytest.raises(StorageFull, match="no space"):
        client.act("x", b"", 5)
    server.shutdown()


def test_a_host_that_cannot_open_its_shards_is_started_again(fleet: Fleet, launcher: Launcher) -> None:
    launcher.trouble = HostError("the cache cannot be made")
    fleet.start(1, 2, CommittedView({}, {}))
    assert len(launcher.hosts) == 2
    assert set(fleet.ownership().addresses) == {0, 1}


def test_a_host_that_is_gone_before_it_has_its_shards_is_ended_and_started_again(
    fleet: Fleet, launcher: Launcher
) -> None:
    launcher.deaf = True
    fleet.start(1, 2, CommittedView({}, {}))
    assert launcher.ended == [0]
    assert len(launcher.hosts) == 2
    assert set(fleet.ownership().addresses.values()) == {launcher.of(0).server.address}


def test_what_ends_a_host_while_it_is_asked_does_not_end_the_query(fleet: Fleet, launcher: Launcher) -> None:
    fleet.start(1, 2, CommittedView({}, {}))
    host = launcher.of(0)
    host.barrier_error = Fenced("the shard was closed")
    threading.Timer(0.2, host.die).start()
    assert len(fleet.barrier(10)) == 1


def test_a_host_that_stands_still_is_ended_and_its_successor_owns_its_shards(
    fleet: Fleet, launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_host, "PING_S", 0.2)
    fleet.start(2, 4, CommittedView({}, {}))
    before = fleet.ownership().terms
    launcher.of(1).answers.clear()
    barriers = fleet.barrier(10)
    assert launcher.ended == [1]
    assert {p.shard: p.position.term > before[p.shard] for b in barriers for p in b.positions} == {
        0: False, 1: True, 2: False, 3: True
    }  # fmt: skip


def test_a_host_that_is_gone_while_its_job_waits_for_an_executor_is_ended(
    fleet: Fleet, launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_host, "GONE_S", 0.2)
    fleet.start(2, 4, CommittedView({}, {}))
    host = launcher.of(1)
    host.server.shutdown()
    launcher.refuses = {1}
    assert {p.shard for barrier in fleet.barrier(10) for p in barrier.positions} == {0, 1, 2, 3}
    assert launcher.ended == [1]
    assert set(fleet.ownership().addresses.values()) == {launcher.of(0).server.address}


def test_a_host_that_comes_back_by_itself_is_not_ended(
    fleet: Fleet, launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_host, "GONE_S", 1.0)
    fleet.start(1, 2, CommittedView({}, {}))
    host = launcher.of(0)
    host.server.shutdown()
    threading.Timer(0.3, lambda: ThreadHost(host.payload, host._ended, launcher)).start()
    assert len(fleet.barrier(10)) == 1
    assert launcher.ended == []


def test_a_host_whose_disk_is_slow_is_left_alone(fleet: Fleet, launcher: Launcher) -> None:
    fleet.start(1, 2, CommittedView({}, {}))
    launcher.of(0).slow = 1.0
    assert len(fleet.barrier(10)) == 1
    assert launcher.ended == []


def test_hosts_that_answer_are_left_alone_when_asked_whether_they_are_there(
    fleet: Fleet, launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_host, "PING_S", 0.2)
    fleet.start(2, 4, CommittedView({}, {}))
    fleet.end_silent()
    assert launcher.ended == []
    launcher.of(0).answers.clear()
    fleet.end_silent()
    assert launcher.ended == [0]


def test_an_error_without_words_is_still_one(launcher: Launcher) -> None:
    server = WireServer("127.0.0.1", TOKEN, _Wordless())
    client = WireClient(server.address, TOKEN)
    with pytest.raises(HostError, match="failed"):
        client.act("barrier", b"", 5)
    client.close()
    server.shutdown()


class _Wordless:
    def offer(self, header: OfferHeader, rows: Sequence[Row]) -> OfferAnswer:
        raise TimeoutError

    def act(self, action: str, body: bytes) -> bytes:
        raise TimeoutError

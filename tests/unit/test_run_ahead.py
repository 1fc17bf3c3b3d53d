"""A host's reading ahead: what it tells its reader, puts to owners, and answers to the driver."""

from __future__ import annotations

import asyncio
import dataclasses
import threading

import msgspec
import pytest

from hermes_spark.events import Coordinates, Row, shard_of
from hermes_spark.host import ahead
from hermes_spark.host.ahead import RunAhead
from hermes_spark.host.ahead_wire import AheadOrder
from hermes_spark.host.cursors import NOBODY, TAKEN, Put
from hermes_spark.settings import RunAheadSettings, Settings

P = "t-0"
HERE, THERE = "grpc://here", "grpc://there"
SETTINGS = Settings(run_ahead=RunAheadSettings(max_records=10))
SHARDS = SETTINGS.state.shards


@dataclasses.dataclass
class ScriptedReader:
    """Notes what it is told, newest last."""

    told: list[tuple]

    def read(self, partition, offset, generation):
        self.told.append(("read", partition, offset, generation))

    def drop(self, partition):
        self.told.append(("drop", partition))

    def hold(self, partition, *, held):
        self.told.append(("hold" if held else "go on", partition))

    def close(self):
        self.told.append(("close",))


class ScriptedLanes:
    """Keeps what is put; the test answers."""

    def __init__(self) -> None:
        self.puts: list[tuple[str, Put]] = []
        self.closed: list[str] = []
        self.answered = None

    def to(self, address, answered):
        self.answered = answered
        return ScriptedLane(address, self)

    def answer(self, wanted, number=0):
        self.answered(self.puts.pop(number)[1], wanted)

    def close(self):
        self.closed.append("all")


class ScriptedLane:
    def __init__(self, address: str, lanes: ScriptedLanes) -> None:
        self.address = address
        self.lanes = lanes
        self.terms = {}

    def add(self, put):
        self.lanes.puts.append((self.address, put))

    async def run(self):
        await asyncio.Event().wait()

    async def close(self):
        self.lanes.closed.append(self.address)
        mine = [put for address, put in self.lanes.puts if address == self.address]
        self.lanes.puts = [(address, put) for address, put in self.lanes.puts if address != self.address]
        for put in mine:
            self.lanes.answered(put, NOBODY)


class Stage:
    def __init__(self, settings: Settings = SETTINGS) -> None:
        self.reader = ScriptedReader([])
        self.lanes = ScriptedLanes()
        self.ahead = RunAhead(settings, self.lanes, lambda deliver: self.reader)

    async def order(self, end=0, *, owner=HERE, partition=P, **fields):
        owners = {shard: owner for shard in range(SHARDS)} if owner else {}
        return await self.ahead.order(AheadOrder({partition: end}, owners, {}, **fields))

    async def deliver(self, start, stop, generation=0):
        """As the reader's thread does; one session."""
        await asyncio.to_thread(self.ahead.deliver, P, (start, stop), generation, rows(start, stop))


def rows(start, stop, session="s"):
    value = msgspec.json.encode({"session_id": session})
    return [Row(Coordinates(P, offset), 0, value) for offset in range(start, stop)]


@pytest.fixture
async def stage():
    stage = Stage()
    yield stage
    await stage.ahead.close()


async def until(condition):
    deadline = asyncio.get_running_loop().time() + 10
    while not condition():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.005)


async def test_reading_begins_where_the_commit_ends_and_events_go_to_their_owner(stage):
    report = await stage.order(7)
    assert stage.reader.told == [("read", P, 7, 0)]
    assert report.covered == {P: 7}
    await stage.deliver(7, 10)
    [(address, put)] = stage.lanes.puts
    assert (address, put.shard, put.start, put.stop) == (HERE, shard_of("s", SHARDS), 7, 10)
    assert [row.coordinates.offset for row in put.rows] == [7, 8, 9]
    assert (await stage.order(7)).covered == {P: 7}
    stage.lanes.answer(TAKEN)
    report = await stage.order(7)
    assert (report.covered, report.taken) == ({P: 10}, 3)


async def test_an_order_waits_a_little_for_what_is_wanted(stage):
    await stage.order()
    await stage.deliver(0, 4)
    waiting = asyncio.ensure_future(stage.order(wanted={P: 4}, wait_s=20.0))
    await asyncio.sleep(0)
    assert not waiting.done()
    stage.lanes.answer(TAKEN)
    assert (await asyncio.wait_for(waiting, 10)).covered == {P: 4}
    assert (await stage.order(wanted={P: 9}, wait_s=0.01)).covered == {P: 4}


async def test_what_nobody_takes_is_read_again_and_the_order_is_kept(stage):
    await stage.order()
    await stage.deliver(0, 3)
    await stage.deliver(3, 5)
    stage.lanes.answer(NOBODY)
    stage.lanes.answer(0)  # the second leaves a gap
    assert (await stage.order()).covered == {P: 0}
    await until(lambda: stage.reader.told[-1] == ("read", P, 0, 1))
    await stage.deliver(5, 6, generation=0)  # still of the first reading
    assert stage.lanes.puts == []
    await stage.deliver(0, 6, generation=1)
    [(_, put)] = stage.lanes.puts
    assert (put.start, put.stop, len(put.rows)) == (0, 6, 6)


async def test_an_event_without_an_owner_is_read_again(stage):
    await stage.order(owner="")
    await stage.deliver(0, 1)
    assert stage.lanes.puts == []
    await until(lambda: stage.reader.told[-1] == ("read", P, 0, 1))


async def test_reading_stands_still_at_its_bound_and_goes_on_after_a_commit(stage):
    await stage.order()
    await stage.deliver(0, 10)
    assert stage.reader.told[-1] == ("hold", P)
    stage.lanes.answer(TAKEN)
    await stage.order(4)
    assert stage.reader.told[-1] == ("go on", P)


async def test_a_commit_ahead_of_the_reading_moves_it(stage):
    await stage.order()
    await stage.order(50)
    assert stage.reader.told[-1] == ("read", P, 50, 1)
    assert (await stage.order(50)).covered == {P: 50}


async def test_a_partition_that_is_another_hosts_now_is_dropped(stage):
    await stage.order()
    await stage.deliver(0, 2)
    report = await stage.order(partition="t-1")
    assert ("drop", P) in stage.reader.told
    assert list(report.covered) == ["t-1"]
    stage.lanes.answer(TAKEN)  # comes late, and changes nothing
    await stage.deliver(2, 3)
    assert stage.lanes.puts == []


async def test_the_way_to_an_owner_that_is_gone_is_closed_and_its_events_are_read_again(stage):
    await stage.order()
    await stage.deliver(0, 2)
    await stage.order(owner=THERE)
    assert stage.lanes.closed == [HERE]
    await until(lambda: stage.reader.told[-1] == ("read", P, 0, 1))
    await stage.deliver(0, 2, generation=1)
    assert [address for address, _ in stage.lanes.puts] == [THERE]


async def test_the_reader_waits_while_too_much_is_unanswered(stage, monkeypatch):
    monkeypatch.setattr(ahead, "MAX_OPEN_BYTES", 10)
    await stage.order()
    await stage.deliver(0, 2)
    second = asyncio.ensure_future(stage.deliver(2, 4))
    await asyncio.sleep(0.05)
    assert not second.done()
    assert len(stage.lanes.puts) == 1
    stage.lanes.answer(TAKEN)
    await asyncio.wait_for(second, 10)
    assert stage.lanes.puts[0][1].start == 2


async def test_a_host_that_ends_lets_its_reader_go(monkeypatch):
    monkeypatch.setattr(ahead, "MAX_OPEN_BYTES", 10)
    stage = Stage()
    await stage.order()
    await stage.deliver(0, 2)
    blocked = threading.Thread(target=stage.ahead.deliver, args=(P, (2, 4), 0, rows(2, 4)))
    blocked.start()
    await asyncio.wait_for(stage.ahead.close(), 10)
    await asyncio.to_thread(blocked.join, 10)
    assert not blocked.is_alive()
    assert stage.reader.told[-1] == ("close",)
    assert stage.lanes.closed == [HERE, "all"]

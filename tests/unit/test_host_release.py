"""A host lets go of a shard that gets another owner: nothing appended is lost, and the host lives on with its other shards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hermes_spark.events import Coordinates, Row, shard_of
from hermes_spark.host.effects import Services
from hermes_spark.host.host import AgentHost
from hermes_spark.host.intake import Intake
from hermes_spark.host.sessions import Sessions
from hermes_spark.host.shard import Shard, ShardRules
from hermes_spark.host.wire import (
    Assignment,
    Barrier,
    HostPayload,
    OfferAnswer,
    OfferHeader,
    Release,
    WireServer,
    pack,
    unpack,
)
from hermes_spark.settings import Settings, StateSettings
from hermes_spark.state.journal import ShardJournal, read
from hermes_spark.state.memory import MemoryStore
from hermes_spark.state.records import Outcome, Position, Record, Returned, Taken, TermId
from hermes_spark.tools.registry import Registry
from hosting import LOOKUP, ScriptedModel, ScriptedTools, one_call_then_answer

TERMS = {0: TermId(1, 1), 1: TermId(1, 2)}
SESSIONS = {shard_of(name, 2): name for name in (f"s{number}" for number in range(20))}
"""A session of each shard."""


class Driver:
    def __init__(self, registered: asyncio.Event) -> None:
        self._registered = registered
        self._loop = asyncio.get_running_loop()

    def offer(self, header: OfferHeader, rows: object) -> OfferAnswer:
        raise AssertionError("nobody offers rows to the driver")

    def act(self, action: str, body: bytes) -> bytes:
        self._loop.call_soon_threadsafe(self._registered.set)
        return b""


class TwoShards:
    """A host that owns two shards, and the scripted tools that its turns call."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tools = ScriptedTools()
        self.registered = asyncio.Event()
        self.server = WireServer("127.0.0.1", "secret", Driver(self.registered))
        self.settings = Settings(state=StateSettings(shards=2))
        self.registry = Registry([LOOKUP])
        payload = HostPayload(0, "secret", self.server.address, "127.0.0.1", "q", str(root), b"")
        self.host = AgentHost(payload, self._services, self._open)
        self.running = asyncio.create_task(self.host.run())

    def _services(self, host: AgentHost) -> Services:
        model = ScriptedModel(one_call_then_answer)
        slots = asyncio.Semaphore(8)
        return Services(self.settings, model, self.tools, self.registry, slots, host.turn_ended, host.failed)

    def _open(self, number: int, term: TermId, committed: Position, ends: dict[str, int]) -> Shard:
        journal, past = ShardJournal.open(self.root, number, term, now_ms=1_000_000)
        rules = ShardRules("q", self.settings, self.registry, lambda: 1_000_000)
        shard = Shard(rules, journal, Sessions(MemoryStore(), 1 << 20), Intake(None))
        shard.fold(past)
        return shard

    async def act(self, action: str, message: msgspec.Struct | None = None) -> bytes:
        body = b"" if message is None else pack(message)
        return await asyncio.wait_for(asyncio.to_thread(self.host.act, action, body), 10)

    async def say(self, shard: int, offset: int) -> OfferAnswer:
        event = {"session_id": SESSIONS[shard], "messages": [{"role": "user", "content": "hi"}]}
        row = Row(Coordinates("p", offset), 1, msgspec.json.encode(event))
        offer = asyncio.to_thread(self.host.offer, OfferHeader(offset, (shard,), TERMS), [row])
        return await asyncio.wait_for(offer, 10)

    async def until(self, condition: Any) -> None:
        async def wait() -> None:
            while not condition():
                assert not self.running.done(), self.running.result()
                await asyncio.sleep(0.005)

        await asyncio.wait_for(wait(), 10)

    def journal(self, shard: int) -> list[Record]:
        return [record for _, record in read(self.root, shard, Position(), None)]


@pytest.fixture
async def owner(tmp_path: Path) -> AsyncIterator[TwoShards]:
    owner = TwoShards(tmp_path)
    await asyncio.wait_for(owner.registered.wait(), 10)
    await owner.act("assign", Assignment(TERMS, {}, {}))
    yield owner
    if not owner.running.done():
        await owner.act("stop")
    await asyncio.wait_for(owner.running, 10)
    owner.server.shutdown()


async def test_the_next_owner_opens_it_and_this_one_keeps_the_rest(owner: TwoShards) -> None:
    owner.tools.gate.clear()
    await owner.say(0, 0)
    await owner.say(1, 0)
    await owner.until(lambda: owner.tools.under_way == 2)
    await owner.act("release", Release((0,)))
    ShardJournal.open(owner.root, 0, TermId(1, 3), now_ms=1_000_000)
    owner.tools.gate.set()
    await owner.until(lambda: any(isinstance(record, Outcome) for record in owner.journal(1)))
    assert [at.shard for at in unpack(await owner.act("barrier"), Barrier).positions] == [1]
    assert not any(isinstance(record, Returned) for record in owner.journal(0))
    assert (await owner.say(0, 1)).untaken == (0,)
    assert (await owner.say(1, 1)).taken == 1
    assert not owner.running.done()


async def test_what_was_appended_is_durable_before_the_next_owner_reads(owner: TwoShards) -> None:
    held = owner.host.owned(0, TERMS[0])
    assert held is not None
    event = msgspec.json.encode({"session_id": SESSIONS[0], "messages": [{"role": "user", "content": "hi"}]})
    held[0].take(Row(Coordinates("p", 0), 1, event), 0, None)
    await owner.host._release((0,))  # in the same pass of the loop: no round of the flusher's own has begun
    assert any(isinstance(record, Taken) for record in owner.journal(0))


async def test_letting_go_of_what_it_does_not_own_is_nothing(owner: TwoShards) -> None:
    await owner.act("release", Release((0, 7)))
    await owner.act("release", Release((0,)))
    assert [at.shard for at in unpack(await owner.act("barrier"), Barrier).positions] == [1]


async def test_a_host_that_ends_meanwhile_has_let_go(owner: TwoShards) -> None:
    async with owner.host._flusher.exclusive():
        releasing = asyncio.create_task(owner.host._release((0,)))
        await asyncio.sleep(0)
        ending = asyncio.create_task(owner.host._let_go())  # behind it in the queue for the flusher, and first to drop
        await asyncio.sleep(0)
    await asyncio.wait_for(asyncio.gather(releasing, ending), 10)
    assert owner.host._shards() == []

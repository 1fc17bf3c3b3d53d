"""A whole agent host forgets idle sessions by its own timer, on a stream where nothing comes but barriers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from hermes_spark.events import Coordinates, Row
from hermes_spark.host import expiry
from hermes_spark.host.effects import Services
from hermes_spark.host.host import AgentHost
from hermes_spark.host.intake import Intake
from hermes_spark.host.sessions import Sessions
from hermes_spark.host.shard import Shard, ShardRules
from hermes_spark.host.wire import (
    Assignment,
    Barrier,
    HostExit,
    HostPayload,
    OfferAnswer,
    OfferHeader,
    WireServer,
    pack,
    unpack,
)
from hermes_spark.settings import Settings, StateSettings
from hermes_spark.state.journal import ShardJournal, read
from hermes_spark.state.memory import MemoryStore
from hermes_spark.state.records import Expired, Position, Record, TermId
from hermes_spark.tools.registry import Registry
from hosting import LOOKUP, ScriptedModel, ScriptedTools, one_call_then_answer

TERM = TermId(1, 1)


class Driver:
    """Hears that the host has registered."""

    def __init__(self) -> None:
        self.registered = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def offer(self, header: OfferHeader, rows: object) -> OfferAnswer:
        raise AssertionError("nobody offers rows to the driver")

    def act(self, action: str, body: bytes) -> bytes:
        self._loop.call_soon_threadsafe(self.registered.set)
        return b""


class WholeHost:
    def __init__(self, root: Path, settings: Settings) -> None:
        self.root = root
        self.now_ms = 1_000_000
        self.store = MemoryStore()
        self.driver = Driver()
        self.server = WireServer("127.0.0.1", "secret", self.driver)
        payload = HostPayload(0, "secret", self.server.address, "127.0.0.1", "q", str(root), b"")
        registry = Registry([LOOKUP])

        def services(host: AgentHost) -> Services:
            model, tools = ScriptedModel(one_call_then_answer), ScriptedTools()
            return Services(settings, model, tools, registry, asyncio.Semaphore(8), host.turn_ended, host.failed)

        def open_shard(number: int, term: TermId, committed: Position, ends: dict[str, int]) -> Shard:
            journal, past = ShardJournal.open(root, number, term, now_ms=self.now_ms)
            rules = ShardRules("q", settings, registry, lambda: self.now_ms)
            shard = Shard(rules, journal, Sessions(self.store, 1 << 20), Intake(None))
            shard.fold(past)
            return shard

        self.host = AgentHost(payload, services, open_shard)
        self.running = asyncio.create_task(self.host.run())

    async def start(self) -> None:
        await asyncio.wait_for(self.driver.registered.wait(), 10)
        await self.act("assign", pack(Assignment({0: TERM}, {}, {})))

    async def act(self, action: str, body: bytes = b"") -> bytes:
        return await asyncio.wait_for(asyncio.to_thread(self.host.act, action, body), 10)

    async def say(self, session: str) -> None:
        value = msgspec.json.encode({"session_id": session, "messages": [{"role": "user", "content": "hi"}]})
        header = OfferHeader(0, (0,), {0: TERM})
        row = Row(Coordinates("p", 0), 1, value)
        answer = await asyncio.wait_for(asyncio.to_thread(self.host.offer, header, [row]), 10)
        assert answer.taken == 1

    async def until(self, condition: Callable[[], bool]) -> None:
        async def wait() -> None:
            while not condition():
                assert not self.running.done(), self.running.result()
                await asyncio.sleep(0.005)

        await asyncio.wait_for(wait(), 10)

    async def stop(self) -> HostExit:
        await self.act("stop")
        exit_ = await asyncio.wait_for(self.running, 10)
        self.server.shutdown()
        return exit_

    def journal(self) -> list[Record]:
        return [record for _, record in read(self.root, 0, Position(), None)]


async def test_a_host_expires_idle_sessions_by_itself_once_barriers_have_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "IDLE_S", 0.01)
    whole = WholeHost(tmp_path, Settings(state=StateSettings(ttl_s=60, shards=1)))
    await whole.start()
    await whole.say("s")
    await whole.until(lambda: whole.store.get("s") is not None)
    whole.now_ms += 60_000
    assert unpack(await whole.act("barrier", b"7"), Barrier).open_turns == 0
    for _ in range(2):
        await whole.act("barrier", b"7")  # the same batch again, as after an answer that was lost
        await whole.act("barrier")  # or only to see whether the host is there
    await asyncio.sleep(0.05)
    assert whole.store.get("s") is not None
    await whole.act("barrier", b"8")
    await whole.until(lambda: whole.store.get("s") is None)
    last = whole.journal()[-1]
    assert isinstance(last, Expired)
    assert (last.session_id, last.time_ms, last.turns) == ("s", whole.now_ms, 1)
    assert await whole.stop() == HostExit()


async def test_a_host_whose_index_fails_ends_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "IDLE_S", 0.01)
    whole = WholeHost(tmp_path, Settings(state=StateSettings(shards=1)))
    await whole.start()
    whole.store.close()
    exit_ = await asyncio.wait_for(whole.running, 10)
    assert (exit_.error, "is closed" in exit_.message) == ("StateError", True)
    whole.server.shutdown()

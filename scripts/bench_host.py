"""A whole agent host in the benchmark's process: real journals, RocksDB, snapshots and wire; model and tools are made up.

Beside it stands what a driver does to a host: it hands batches over, asks for positions, commits and prunes. So what depends
on how much state a host holds is measured without Spark.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Iterable
from pathlib import Path

from hermes_spark.events import Coordinates, Row, shard_of
from hermes_spark.host.effects import Services
from hermes_spark.host.host import AgentHost
from hermes_spark.host.opening import ShardOpener
from hermes_spark.host.shard import ShardRules
from hermes_spark.host.wire import (
    Assignment,
    Barrier,
    HostPayload,
    OfferAnswer,
    OfferHeader,
    Registration,
    WireClient,
    WireServer,
    pack,
    unpack,
)
from hermes_spark.llm.client import Completion, CompletionRequest
from hermes_spark.messages import ParsedCall, Reply, Usage
from hermes_spark.settings import Settings, to_json
from hermes_spark.state.journal_store import FileJournals
from hermes_spark.state.records import Outcome, TermId
from hermes_spark.state.retention import Retention
from hermes_spark.state.rocksdb import RocksMemory, RocksStore
from hermes_spark.state.storage import Storage
from hermes_spark.streaming.commit import Commit, CommitLog
from hermes_spark.streaming.pruning import Pruner
from hermes_spark.tools.registry import Registry, Tool, ToolRequest, ToolResult

TOKEN = "bench"
TIMEOUT_S = 120.0
LOOKUP = Tool("lookup", "Look something up", {"type": "object", "properties": {"q": {"type": "string"}}}, "http://x/y")


class Texts:
    """Texts that do not compress well, from a seed: slices of one long random text."""

    def __init__(self, seed: int = 0) -> None:
        chance = random.Random(seed)
        self._pool = "".join(chance.choices("abcdefghijklmnopqrstuvwxyz0123456789 ", k=1 << 20))
        self._chance = chance

    def text(self, characters: int) -> str:
        """The next one."""
        start = self._chance.randrange(len(self._pool) - characters)
        return self._pool[start : start + characters]


class MadeUpModel:
    """Asks for `calls` tool calls, one a step, and answers then; every message has `characters` characters."""

    def __init__(self, texts: Texts, *, calls: int, characters: int) -> None:
        self._texts = texts
        self.calls = calls
        self.characters = characters

    async def complete(self, request: CompletionRequest) -> Completion:
        """The next completion of a turn: what it has called so far lies behind its last user message."""
        since = next(n for n, message in enumerate(reversed(request.messages)) if message.role == "user")
        called = sum(message.role == "tool" for message in request.messages[len(request.messages) - since :])
        text = self._texts.text(self.characters)
        calls = (ParsedCall("lookup", {"q": f"order {called}"}),) if called < self.calls else ()
        return Completion(Reply(content=text, calls=calls), Usage(100, 100), "stop")

    async def check(self) -> None:
        """There is nothing to check."""

    async def close(self) -> None:
        """There is nothing to close."""


class MadeUpTools:
    """Answers every call at once with `characters` characters."""

    def __init__(self, texts: Texts, characters: int) -> None:
        self._texts = texts
        self._characters = characters

    async def call(self, tool: Tool, request: ToolRequest) -> ToolResult:
        """The result of a call."""
        return ToolResult("ok", self._texts.text(self._characters), 1)

    async def reconcile(self, tool: Tool, request: ToolRequest) -> ToolResult:
        """No call here is ever in doubt."""
        raise NotImplementedError

    async def close(self) -> None:
        """There is nothing to close."""


class Clock:
    """Real time, put forward by `ahead_ms`."""

    ahead_ms = 0

    def __call__(self) -> int:
        """Milliseconds since the epoch."""
        return time.time_ns() // 1_000_000 + self.ahead_ms


class BenchHost:
    """One host that owns all shards below `root`, until `stop`. `local` is where it keeps RocksDB, as a cache."""

    def __init__(self, root: Path, local: Path, settings: Settings, model: MadeUpModel, tools: MadeUpTools) -> None:
        self.root = root
        self.settings = settings
        self.clock = Clock()
        self.turn_ms: list[float] = []
        """From handing an event over to its outcome being durable; of the batches that asked for it."""
        self._since: dict[int, float] = {}
        self._noting: set[asyncio.Task[None]] = set()
        self._storage = Storage.at(str(root))
        self._commits = CommitLog(self._storage)
        query_id = self._commits.meta(settings.state.shards).query_id
        self._last = self._commits.last()
        self.epoch = 1 if self._last is None else self._last.epoch + 1
        retained = {shard: Retention(root, shard, self._storage) for shard in range(settings.state.shards)}
        self._pruner = Pruner(retained, settings.snapshot.prune_interval_s)
        self._registered = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._server = WireServer("127.0.0.1", TOKEN, self)
        self._offsets = itertools.count(1_000_000 * self.epoch)
        self._client: WireClient | None = None
        self.host = self._made(query_id, local, model, tools)
        self._running = self._loop.create_task(self.host.run())

    async def start(self) -> float:
        """Give it all shards; seconds until every one of them was open."""
        await asyncio.wait_for(self._registered.wait(), TIMEOUT_S)
        terms = {shard: TermId(self.epoch, 1) for shard in range(self.settings.state.shards)}
        positions = {} if self._last is None else self._last.positions
        began = time.perf_counter()
        await self._act("assign", pack(Assignment(terms, positions, {})))
        return time.perf_counter() - began

    async def batch(self, values: Iterable[tuple[str, bytes]], *, timed: bool = False) -> float:
        """Hand a batch of (session id, event) over and commit it; seconds it took. `timed`: note its turns' latencies."""
        number = 0 if self._last is None else self._last.batch + 1
        rows, shards = [], []
        now = self.clock()
        for session_id, value in values:
            rows.append(Row(Coordinates("bench", next(self._offsets)), now, value))
            shards.append(shard_of(session_id, self.settings.state.shards))
        began = time.perf_counter()
        if timed:
            self._since |= {row.coordinates.offset: began for row in rows}
        if rows:
            await self._offer(number, rows, shards)
        barrier = unpack(await self._act("barrier"), Barrier)
        await asyncio.to_thread(self._commit, number, len(rows), barrier)
        return time.perf_counter() - began

    async def settled(self) -> None:
        """Return when no turn is open."""
        deadline = time.monotonic() + TIMEOUT_S
        while self.host.open_turns or self._noting:
            if time.monotonic() > deadline or self._running.done():
                raise TimeoutError(f"{self.host.open_turns} turns are still open after {TIMEOUT_S:g} s")
            await asyncio.sleep(0.005)

    async def stop(self) -> None:
        """End the host as a driver does."""
        await self._act("stop")
        await asyncio.wait_for(self._running, TIMEOUT_S)
        self._pruner.close()
        self._server.shutdown()

    # ------------------------------------------------------------------ the driver's side of the wire

    def offer(self, header: OfferHeader, rows: object) -> OfferAnswer:
        """Nobody offers rows to the driver."""
        raise NotImplementedError

    def act(self, action: str, body: bytes) -> bytes:
        """The host registers."""
        self._client = WireClient(unpack(body, Registration).address, TOKEN)
        self._loop.call_soon_threadsafe(self._registered.set)
        return b""

    # ------------------------------------------------------------------ inside

    def _made(self, query_id: str, local: Path, model: MadeUpModel, tools: MadeUpTools) -> AgentHost:
        settings, state = self.settings, self.settings.state
        memory = RocksMemory(state.block_cache_bytes, state.write_buffer_bytes)
        registry = Registry([LOOKUP])

        def open_store(path: Path) -> RocksStore:
            return RocksStore(path, shared=memory, shards=state.shards, max_open_files=state.max_open_files)

        def services(host: AgentHost) -> Services:
            slots = asyncio.Semaphore(settings.tools.max_in_flight)
            return Services(settings, model, tools, registry, slots, self._ended, host.failed)

        journals = FileJournals(self.root, state.journal_file_bytes)
        rules = ShardRules(query_id, settings, registry, self.clock)
        opener = ShardOpener(journals, local, rules, open_store, self._storage)
        address, config = self._server.address, to_json(settings).encode()
        payload = HostPayload(0, TOKEN, address, "127.0.0.1", query_id, str(self.root), config)
        return AgentHost(payload, services, opener)

    async def _act(self, action: str, body: bytes = b"") -> bytes:
        return await asyncio.to_thread(self._to_host().act, action, body, TIMEOUT_S)

    async def _offer(self, batch: int, rows: list[Row], shards: list[int]) -> None:
        terms = {shard: TermId(self.epoch, 1) for shard in set(shards)}
        header = OfferHeader(batch, tuple(shards), terms)
        answer = await asyncio.to_thread(self._to_host().offer, header, rows, TIMEOUT_S)
        if answer.taken != len(rows):
            raise RuntimeError(f"{answer.taken} of {len(rows)} events were taken")

    def _to_host(self) -> WireClient:
        if self._client is None or self._running.done():
            raise RuntimeError(f"the host has ended: {self._running.result()}")
        return self._client

    def _commit(self, batch: int, taken: int, barrier: Barrier) -> None:
        positions = {at.shard: at.position for at in barrier.positions}
        self._last = self._commits.put(
            Commit(
                batch=batch,
                epoch=self.epoch,
                source="",
                ends={},
                positions=positions,
                published={} if self._last is None else self._last.positions,
                publish=True,
                taken=taken,
                skipped=0,
                time_ms=self.clock(),
            )
        )
        self._commits.forget(batch)
        self._pruner.committed(self._last)

    def _ended(self, outcome: Outcome) -> None:
        self.host.turn_ended(outcome)
        if outcome.status != "completed":
            self.host.failed(RuntimeError(outcome.reason))
        since = self._since.pop(outcome.coordinates.offset, None)
        if since is not None:
            task = self._loop.create_task(self._note(outcome, since))
            self._noting.add(task)
            task.add_done_callback(self._noting.discard)

    async def _note(self, outcome: Outcome, since: float) -> None:
        number = shard_of(outcome.session_id, self.settings.state.shards)
        owned = self.host.owned(number, TermId(self.epoch, 1))
        if owned is not None:
            await owned[0].durable()
            self.turn_ms.append((time.perf_counter() - since) * 1000)

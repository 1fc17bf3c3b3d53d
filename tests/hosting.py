"""A shard with real journal and runner on the test's own loop, a scripted model and scripted tools."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from hermes_spark.errors import HermesError
from hermes_spark.events import Coordinates, Row
from hermes_spark.host.effects import EffectRunner, Services
from hermes_spark.host.flusher import Flusher
from hermes_spark.host.intake import Intake
from hermes_spark.host.sessions import Sessions
from hermes_spark.host.shard import Shard, ShardRules
from hermes_spark.llm.client import Completion, CompletionRequest
from hermes_spark.messages import ParsedCall, Reply, Usage
from hermes_spark.settings import Settings
from hermes_spark.state.journal import ShardJournal, read
from hermes_spark.state.memory import MemoryStore
from hermes_spark.state.records import Outcome, Position, Record, TermId
from hermes_spark.tools.registry import Registry, Tool, ToolRequest, ToolResult

LOOKUP = Tool("lookup", "Look something up", {"type": "object", "properties": {"q": {"type": "string"}}}, "http://x/y")

Answer = Callable[[CompletionRequest], Awaitable[Completion]]


def says(text: str) -> Completion:
    return Completion(Reply(content=text), Usage(10, 5), "stop")


def calls(*names: str, **arguments: Any) -> Completion:
    return Completion(Reply(calls=tuple(ParsedCall(name, arguments) for name in names)), Usage(10, 5), "stop")


async def one_call_then_answer(request: CompletionRequest) -> Completion:
    """Asks for one lookup, then answers with its result."""
    last = request.messages[-1]
    return says(f"found: {last.content}") if last.role == "tool" else calls("lookup", q=last.content)


class ScriptedModel:
    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.requests: list[CompletionRequest] = []

    async def complete(self, request: CompletionRequest) -> Completion:
        self.requests.append(request)
        return await self.answer(request)

    async def check(self) -> None:
        pass

    async def close(self) -> None:
        pass


class ScriptedTools:
    """Counts executions by call id; `gate` holds every call back until it is set."""

    def __init__(self) -> None:
        self.executed: dict[str, int] = {}
        self.reconciled: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.under_way = 0

    async def call(self, tool: Tool, request: ToolRequest) -> ToolResult:
        self.under_way += 1
        await self.gate.wait()
        self.executed[request.call_id] = self.executed.get(request.call_id, 0) + 1
        return ToolResult("ok", f"result of {request.arguments.get('q', '')}", 1)

    async def reconcile(self, tool: Tool, request: ToolRequest) -> ToolResult:
        self.reconciled.append(request.call_id)
        return ToolResult("not_run", "it did not happen", 1)

    async def close(self) -> None:
        pass


class HostedShard:
    """Opens the shard for a new term on the same journal each time it is made: a restart."""

    def __init__(
        self,
        root: Path,
        term: int,
        model: ScriptedModel,
        tools: ScriptedTools,
        settings: Settings,
        registered: tuple[Tool, ...] = (LOOKUP,),
    ) -> None:
        self.root = root
        self.now_ms = 1_000_000 + term
        self.outcomes: list[Outcome] = []
        self.errors: list[BaseException] = []
        self.broken: list[BaseException] = []
        self.on_outcome: Callable[[Outcome], None] = lambda outcome: None
        self.on_wait: Callable[[], None] = lambda: None
        registry = Registry(registered)
        journal, past = ShardJournal.open(root, 0, TermId(1, term), now_ms=self.now_ms)
        self.store = MemoryStore()
        self.rules = rules = ShardRules("q", settings, registry, lambda: self.now_ms)
        self.shard = Shard(rules, journal, Sessions(self.store, 1 << 20), Intake(None))
        self.shard.fold(past)
        self.flusher = Flusher(lambda: [self.shard], self._broken)
        self.runner = EffectRunner(
            self.shard,
            Services(
                settings=settings,
                model=model,
                tools=tools,
                registry=registry,
                tool_slots=asyncio.Semaphore(8),
                ended=self._ended,
                failed=self.errors.append,
                waits=self._waits,
            ),
        )
        self.flushing = asyncio.get_running_loop().create_task(self.flusher.run())
        self.shard.appended = self.flusher.wake

    def _broken(self, shard: Shard, error: BaseException) -> None:
        shard.fail(error if isinstance(error, HermesError) else HermesError(str(error)))
        self.broken.append(error)

    def resume(self) -> None:
        self.runner.resume()

    def _waits(self) -> None:
        self.on_wait()

    def _ended(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self.on_outcome(outcome)

    def say(self, session: str, text: str, offset: int, **fields: Any) -> Record | None:
        event = {"session_id": session, "messages": [{"role": "user", "content": text}], **fields}
        return self.offer(msgspec.json.encode(event), offset)

    def offer(self, value: bytes, offset: int, batch: int = 0) -> Record | None:
        record = self.shard.take(Row(Coordinates("p", offset), 1, value), batch, None)
        if record is not None and hasattr(record, "event"):
            self.runner.drive(record.session_id)
        return record

    async def until(self, condition: Callable[[], bool]) -> None:
        async def wait() -> None:
            while not condition():
                if self.errors:
                    raise self.errors[0]
                await asyncio.sleep(0.001)

        await asyncio.wait_for(wait(), 10)

    async def crash(self) -> None:
        """Stop without a last flush; what is not durable is lost."""
        self.runner.close()
        self.flusher.stop()
        await self.flushing
        self.flusher.close()
        self.shard.close()

    def journal(self) -> list[Record]:
        return [record for _, record in read(self.root, 0, Position(), None)]

"""The model and the tools: scripts whose answers show what they were told, and a count of what was executed."""

from __future__ import annotations

import asyncio
import random
import re

from hermes_spark.llm.client import Completion, CompletionRequest
from hermes_spark.messages import ParsedCall, Reply, Usage
from hermes_spark.tools.registry import Registry, Tool, ToolRequest, ToolResult
from simulation.loop import SimLoop

LOOKUP = Tool("lookup", "Look something up", {"type": "object", "properties": {"q": {"type": "string"}}}, "http://x/y")
_STEPS = re.compile(r"e\d+ steps=([\d,]*)$")


class Tools:
    """The tool service: one for the whole world, and never killed."""

    def __init__(self, loop: SimLoop, rng: random.Random) -> None:
        self.loop, self.rng = loop, rng
        self.executed: dict[str, list[float]] = {}
        """When each call id was executed."""

    def execute(self, request: ToolRequest, answer: asyncio.Future[str], back_s: float) -> None:
        self.executed.setdefault(request.call_id, []).append(self.loop.time())
        self.loop.log("executed:", request.call_id, request.arguments["q"])
        content = f"result of {request.arguments['q']}"
        self.loop.call_later(back_s, _settle, answer, content, context=self.loop.root.context())


def _settle(answer: asyncio.Future[str], content: str) -> None:
    if not answer.done():
        answer.set_result(content)


class SimToolCaller:
    """One host's way to the tools."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    async def call(self, tool: Tool, request: ToolRequest) -> ToolResult:
        tools, rng = self._tools, self._tools.rng
        await asyncio.sleep(rng.uniform(0.001, 0.02))  # from here on the request is on its way, whatever becomes of us
        answer: asyncio.Future[str] = tools.loop.create_future()
        there, back = rng.uniform(0.001, 0.1), rng.uniform(0.001, 0.3)
        tools.loop.call_later(there, tools.execute, request, answer, back, context=tools.loop.root.context())
        return ToolResult("ok", await answer, 1)

    async def close(self) -> None:
        pass


class SimModel:
    """Asks for as many lookups in each step as the user's text says, then answers with all it was told."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    async def complete(self, request: CompletionRequest) -> Completion:
        await asyncio.sleep(self._rng.uniform(0.02, 0.6))
        said = [message.content for message in request.messages if message.role == "user"]
        last = max(i for i, message in enumerate(request.messages) if message.role == "user")
        since = request.messages[last + 1 :]
        step = sum(message.role == "assistant" for message in since)
        wanted = lookups(said[-1])
        if step < len(wanted) and request.tools:
            name = said[-1].split()[0]
            calls = tuple(ParsedCall("lookup", {"q": f"{name}/{step}/{i}"}) for i in range(wanted[step]))
            return Completion(Reply(calls=calls), Usage(10, 5), "stop")
        results = [message.content for message in since if message.role == "tool"]
        return Completion(Reply(content=answer_of(said, results)), Usage(10, 5), "stop")

    async def check(self) -> None:
        pass

    async def close(self) -> None:
        pass


def answer_of(said: list[str], results: list[str]) -> str:
    """What the model answers: the user's messages it was shown, and this turn's results."""
    return f"heard {' + '.join(text.split()[0] for text in said)}; found {' + '.join(results)}"


def lookups(text: str) -> list[int]:
    """How many lookups a user's text asks for, by step."""
    match = _STEPS.search(text)
    assert match is not None, text
    return [int(n) for n in match[1].split(",") if n]


def registry() -> Registry:
    return Registry([LOOKUP])

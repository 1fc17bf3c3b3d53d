"""The model and the tools: scripts whose answers show what they were told, and a count of what was executed.

The tools are those that the rules tell apart: `lookup` (policy unknown), `again` (idempotent), `checked` (reconcile),
`guarded` (needs an approval) and `book` (has an undo, `unbook`). A user's text says what the model asks for: in
`e7 steps=lg,b fail` one step with a lookup and a guarded call, then one with a booking, and then the model fails, so that the
turn does.
"""

from __future__ import annotations

import asyncio
import random
import re

from hermes_spark.errors import ModelUnavailable
from hermes_spark.llm.client import Completion, CompletionRequest
from hermes_spark.messages import ParsedCall, Reply, Usage
from hermes_spark.tools.reconcile import NOT_RUN
from hermes_spark.tools.registry import Policy, Registry, Tool, ToolRequest, ToolResult, UndoRule
from simulation.loop import SimLoop

APPROVAL_S = 6.0
"""How long somebody has to approve a guarded call."""
LETTERS = {"l": "lookup", "i": "again", "r": "checked", "g": "guarded", "b": "book"}
"""Tools by their letter in a user's text."""
UNDO = "unbook"
_POLICIES: dict[str, Policy] = {"again": "idempotent", "checked": "reconcile", UNDO: "idempotent"}
_STEPS = re.compile(r"(e\d+) steps=([a-z,]*)( fail)?$")
_ERRORS, _LOST, _MUTE = 0.05, 0.03, 0.1
"""How often a tool refuses, its answer is lost, and a question what became of a call stays unanswered."""
PATIENCE_S = 5.0
"""Until a lost answer is given up."""


class Tools:
    """The tool service: one for the whole world, and never killed."""

    def __init__(self, loop: SimLoop, rng: random.Random) -> None:
        self.loop, self.rng = loop, rng
        self.executed: dict[str, list[float]] = {}
        """When each call id was executed; a repeat under the same key is answered as before, where the tool is idempotent."""
        self.requests: dict[str, int] = {}
        """How often each call id was asked for."""
        self.answers: dict[str, tuple[str, str]] = {}
        self.keys: dict[tuple[str, str], set[str]] = {}
        """Under which call ids each (tool, question) was executed; every question is asked once."""
        self.blocked: set[str] = set()
        """Never executed any more, because somebody was told that they were not."""
        self.finished: set[str] = set()
        """Calls whose result is durable."""
        self.reruns: list[str] = []
        """Calls that were sent although their result was durable."""

    def execute(self, tool: Tool, request: ToolRequest, answer: asyncio.Future[tuple[str, str]], back_s: float) -> None:
        call, rng = request.call_id, self.rng
        self.requests[call] = self.requests.get(call, 0) + 1
        if call not in self.blocked and not (call in self.answers and tool.policy == "idempotent"):
            self.executed.setdefault(call, []).append(self.loop.time())
            self.loop.log("executed:", call, tool.name, request.arguments["q"])
            question = request.arguments["q"]
            self.keys.setdefault((tool.name, question), set()).add(call)
            self.answers[call] = ("error", "refused") if rng.random() < _ERRORS else ("ok", result_of(question))
        content = self.answers.get(call, ("error", "blocked"))
        self.loop.call_later(back_s, _settle, answer, content, context=self.loop.root.context())

    def tell(self, call: str) -> ToolResult:
        """What became of a call; one that was never seen is blocked."""
        if call not in self.answers:
            self.blocked.add(call)
            self.loop.log("blocked:", call)
            return ToolResult("not_run", NOT_RUN, 1)
        status, content = self.answers[call]
        return ToolResult("ok" if status == "ok" else "error", content, 1)


def _settle(answer: asyncio.Future[tuple[str, str]], content: tuple[str, str]) -> None:
    if not answer.done():
        answer.set_result(content)


class SimToolCaller:
    """One host's way to the tools."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    async def call(self, tool: Tool, request: ToolRequest) -> ToolResult:
        tools, rng = self._tools, self._tools.rng
        if request.call_id in tools.finished:
            tools.reruns.append(request.call_id)
        await asyncio.sleep(rng.uniform(0.001, 0.02))  # from here on the request is on its way, whatever becomes of us
        answer: asyncio.Future[tuple[str, str]] = tools.loop.create_future()
        there, back = rng.uniform(0.001, 0.1), rng.uniform(0.001, 0.3)
        tools.loop.call_later(there, tools.execute, tool, request, answer, back, context=tools.loop.root.context())
        if rng.random() < _LOST:
            await asyncio.sleep(PATIENCE_S)
            return ToolResult("timeout", "no answer", 1)
        status, content = await answer
        return ToolResult("ok" if status == "ok" else "error", content, 1)

    async def reconcile(self, tool: Tool, request: ToolRequest) -> ToolResult:
        tools, rng = self._tools, self._tools.rng
        await asyncio.sleep(rng.uniform(0.001, 0.1))
        told = tools.tell(request.call_id)
        await asyncio.sleep(rng.uniform(0.001, 0.3))
        return ToolResult("unknown", "nobody knows", 1) if rng.random() < _MUTE else told

    async def close(self) -> None:
        pass


class SimModel:
    """Asks in each step for the calls that the user's text says, then answers with all it was told, or fails."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    async def complete(self, request: CompletionRequest) -> Completion:
        await asyncio.sleep(self._rng.uniform(0.02, 0.6))
        said = [message.content for message in request.messages if message.role == "user"]
        last = max(i for i, message in enumerate(request.messages) if message.role == "user")
        since = request.messages[last + 1 :]
        step = sum(message.role == "assistant" for message in since)
        wanted = wanted_calls(said[-1])
        if step < len(wanted) and request.tools:
            calls = tuple(ParsedCall(name, {"q": q}) for name, q in wanted[step])
            return Completion(Reply(calls=calls), Usage(10, 5), "stop")
        if fails(said[-1]):
            raise ModelUnavailable("as the user wished")
        results = [message.content for message in since if message.role == "tool"]
        return Completion(Reply(content=answer_of(said, results)), Usage(10, 5), "stop")

    async def check(self) -> None:
        pass

    async def close(self) -> None:
        pass


def answer_of(said: list[str], results: list[str]) -> str:
    """What the model answers: the user's messages it was shown, and this turn's results."""
    return f"heard {' + '.join(text.split()[0] for text in said)}; found {' + '.join(results)}"


def result_of(q: str) -> str:
    """What a tool answers to a question."""
    return f"result of {q}"


def wanted_calls(text: str) -> list[list[tuple[str, str]]]:
    """The (tool, question) pairs that a user's text asks for, by step."""
    match = _STEPS.search(text)
    assert match is not None, text
    steps = [letters for letters in match[2].split(",") if letters]
    return [
        [(LETTERS[letter], f"{match[1]}/{step}/{i}") for i, letter in enumerate(letters)]
        for step, letters in enumerate(steps)
    ]


def fails(text: str) -> bool:
    """Whether the turn of a user's text is to fail in the end."""
    return text.endswith(" fail")


def registry() -> Registry:
    def tool(name: str) -> Tool:
        schema = {"type": "object", "properties": {"q": {"type": "string"}}}
        policy = _POLICIES.get(name, "unknown")
        return Tool(
            name,
            f"The tool {name}",
            schema,
            "http://x/y",
            policy=policy,
            reconcile_url="http://x/z" if policy == "reconcile" else "",
            approval=name == "guarded",
            approval_timeout_s=APPROVAL_S,
            undo=UndoRule(UNDO, {"q": "/arguments/q"}) if name == "book" else None,
        )

    return Registry([tool(name) for name in (*LETTERS.values(), UNDO)])

"""The benchmark's yardstick: the same turns with bare asyncio, no Spark, no journal, nothing durable.

Rendering, tokens, parsing, model client, tools and the agent's two functions are the service's own; only what makes a turn
survive is left out. Prints one JSON line per turn that ended: `{"ts", "at_ms", "status"}`.
"""

from __future__ import annotations

import argparse
import asyncio
import time

import msgspec
import uvloop

from hermes_spark.agent import act, context
from hermes_spark.agent.plan import Call, Complete, Effect, Finish, next_effects
from hermes_spark.agent.turn import apply
from hermes_spark.app.host import tokenizer_of
from hermes_spark.events import Coordinates, Row, parse_event
from hermes_spark.llm.client import CompletionRequest
from hermes_spark.llm.triton import TritonModel
from hermes_spark.settings import ModelSettings, Settings, ToolSettings
from hermes_spark.state.agent_state import AgentState
from hermes_spark.state.records import SessionRecord
from hermes_spark.streaming.load_schedule import Schedule
from hermes_spark.tools.demo.messages import one_tool_event
from hermes_spark.tools.http import HttpToolCaller
from hermes_spark.tools.registry import Registry, ToolRequest


class Plain:
    """All sessions in one dict, one task per event."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.registry = Registry.load(settings.tools)
        self.model = TritonModel(settings.model, tokenizer_of(settings.model))
        self.tools = HttpToolCaller(settings.tools)
        self.states: dict[str, AgentState] = {}

    def step(self, record: SessionRecord) -> None:
        self.states[record.session_id] = apply(self.states.get(record.session_id), record)

    async def turn(self, value: bytes, ts_ms: int, number: int) -> str:
        """Take one event and run its session until nothing is open."""
        event = parse_event(Row(Coordinates("plain", number), ts_ms, value), max_bytes=1 << 20)
        state = self.states.get(event.session_id)
        self.step(act.taken(state, event, query_id="plain", settings=self.settings.agent, batch=0, now_ms=_now_ms()))
        while effects := next_effects(self.states[event.session_id]):
            if isinstance(effects[0], Finish):
                self.step(act.outcome(self.states[event.session_id], effects[0], _now_ms()))
                return effects[0].status
            await asyncio.gather(*(self.run(effect) for effect in effects))
        return "queued"

    async def run(self, effect: Effect) -> None:
        if isinstance(effect, Complete):
            await self.complete(effect)
        elif isinstance(effect, Call):
            await self.call(effect)

    async def complete(self, effect: Complete) -> None:
        state = self.states[effect.session_id]
        request = CompletionRequest(
            messages=context.prompt(state, self.settings.agent.system_prompt),
            tools=() if effect.final else self.registry.specs(None),
            max_tokens=effect.max_tokens,
            thinking=effect.thinking,
        )
        completion = await self.model.complete(request)
        self.step(
            act.completed(
                self.states[effect.session_id],
                effect,
                completion,
                check=lambda name, arguments: self.registry.check(name, arguments, None),
                safe_when_cut=lambda name: False,
                now_ms=_now_ms(),
            )
        )

    async def call(self, effect: Call) -> None:
        tool = self.registry.get(effect.call.name)
        assert tool is not None
        self.step(act.intent(effect, tool.policy, 0, _now_ms()))
        request = ToolRequest(effect.call.id, effect.session_id, effect.turn_id, effect.call.arguments)
        result = await self.tools.call(tool, request)
        self.step(act.returned(effect, result.status, result.content, result.attempts, _now_ms()))


async def run(arguments: argparse.Namespace) -> None:
    settings = Settings(
        model=ModelSettings(url=arguments.model_url, max_in_flight=arguments.in_flight),
        tools=ToolSettings(base_url=arguments.tools_url),
    )
    plain = Plain(settings)
    await plain.model.check()
    schedule = Schedule(arguments.rate, 0, arguments.seconds)
    start = time.time()
    lines: list[bytes] = []

    async def one(number: int) -> None:
        ts_ms = round(start * 1000) + schedule.arrival_ms(number)
        value = msgspec.json.encode({**one_tool_event(number, arguments.sessions), "ts": ts_ms})
        status = await plain.turn(value, ts_ms, number)
        lines.append(msgspec.json.encode({"ts": ts_ms, "at_ms": time.time() * 1000, "status": status}))

    tasks: set[asyncio.Task[None]] = set()
    number = 0
    while time.time() - start < arguments.seconds:
        due = schedule.rows_due(round((time.time() - start) * 1000))
        while number < due and len(tasks) < arguments.open:
            task = asyncio.create_task(one(number))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            number += 1
        await asyncio.sleep(0.005)
    if tasks:
        await asyncio.wait(tasks, timeout=60)
    await plain.model.close()
    await plain.tools.close()
    print("\n".join(line.decode() for line in lines))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model-url", required=True)
    parser.add_argument("--tools-url", required=True)
    parser.add_argument("--rate", type=int, required=True)
    parser.add_argument("--seconds", type=int, required=True)
    parser.add_argument("--sessions", type=int, required=True)
    parser.add_argument("--in-flight", type=int, default=256)
    parser.add_argument("--open", type=int, default=1024)
    uvloop.install()
    asyncio.run(run(parser.parse_args()))

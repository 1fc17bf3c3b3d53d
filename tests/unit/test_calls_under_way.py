"""What a new owner does with calls that it finds under way, and with turns that make no progress."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from hermes_spark.agent.calls import RESUMPTIONS
from hermes_spark.host import calls as host_calls
from hermes_spark.host.calls import Calls
from hermes_spark.llm.client import Completion, CompletionRequest
from hermes_spark.settings import AgentSettings, Settings
from hermes_spark.state.records import Intent, Outcome, Resumed, Returned
from hermes_spark.tools.registry import Tool, ToolRequest, ToolResult
from hosting import LOOKUP, HostedShard, ScriptedModel, ScriptedTools, one_call_then_answer
from unit.test_agent_doubles import PureHost, event, look, says

IDEMPOTENT = msgspec.structs.replace(LOOKUP, policy="idempotent")
RECONCILE = msgspec.structs.replace(LOOKUP, policy="reconcile", reconcile_url="http://x/r")


async def crashed_in_a_call(root: Path, tools: ScriptedTools, tool: Tool) -> None:
    """One owner that dies with a call under way; the call never comes back."""
    tools.gate.clear()
    first = HostedShard(root, 1, ScriptedModel(one_call_then_answer), tools, Settings(), (tool,))
    first.say("s", "hello", 0)
    await first.until(lambda: tools.under_way == 1)
    await first.crash()
    tools.gate.set()


async def outcome_of_the_next_owner(root: Path, tools: ScriptedTools, tool: Tool) -> tuple[Outcome, HostedShard]:
    second = HostedShard(root, 2, ScriptedModel(one_call_then_answer), tools, Settings(), (tool,))
    second.resume()
    await second.until(lambda: bool(second.outcomes))
    await second.shard.durable()
    await second.crash()
    return second.outcomes[0], second


@pytest.mark.parametrize(
    ("tool", "today", "status", "executed", "asked"),
    [
        (LOOKUP, IDEMPOTENT, "unknown", 0, 0),
        (IDEMPOTENT, LOOKUP, "ok", 1, 0),
        (RECONCILE, RECONCILE, "not_run", 0, 1),
        (RECONCILE, IDEMPOTENT, "unknown", 0, 0),
    ],
)
async def test_the_recorded_policy_decides_whatever_the_tool_file_says_today(
    tmp_path: Path, tool: Tool, today: Tool, status: str, executed: int, asked: int
) -> None:
    tools = ScriptedTools()
    await crashed_in_a_call(tmp_path, tools, tool)
    outcome, second = await outcome_of_the_next_owner(tmp_path, tools, today)
    (call,) = outcome.calls
    assert (call.status, sum(tools.executed.values()), len(tools.reconciled)) == (status, executed, asked)
    assert set(tools.executed) | set(tools.reconciled) <= {call.id}
    kinds = [type(record) for record in second.journal()]
    assert kinds.count(Resumed) == kinds.count(Returned) == 1
    assert kinds.index(Resumed) < kinds.index(Returned)


@pytest.mark.parametrize("tool", [IDEMPOTENT, RECONCILE])
async def test_a_tool_that_is_gone_leaves_its_call_unknown(tmp_path: Path, tool: Tool) -> None:
    tools = ScriptedTools()
    await crashed_in_a_call(tmp_path, tools, tool)
    outcome, _ = await outcome_of_the_next_owner(tmp_path, tools, msgspec.structs.replace(LOOKUP, name="other"))
    assert [call.status for call in outcome.calls] == ["unknown"]


class Unreachable(ScriptedTools):
    """Answers from the second owner's time on as a service that cannot be reached, until `back` requests were tried."""

    def __init__(self, back: int) -> None:
        super().__init__()
        self.tries = 0
        self.back = back

    async def call(self, tool: Tool, request: ToolRequest) -> ToolResult:
        if not self.gate.is_set():
            return await super().call(tool, request)
        self.tries += 1
        if self.tries <= self.back:
            return ToolResult("error", "the tool could not be reached; the call was not made", 1, sent=False)
        return await super().call(tool, request)


@pytest.mark.parametrize(("back", "status"), [(1, "ok"), (99, "unknown")])
async def test_not_reaching_the_tool_again_says_nothing_about_the_first_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, back: int, status: str
) -> None:
    monkeypatch.setattr(host_calls, "AGAIN_PAUSES_S", (0.0, 0.0))
    tools = Unreachable(back)
    await crashed_in_a_call(tmp_path, tools, IDEMPOTENT)
    outcome, _ = await outcome_of_the_next_owner(tmp_path, tools, IDEMPOTENT)
    assert [call.status for call in outcome.calls] == [status]


async def test_an_old_intent_is_recorded_again_before_its_call_leaves(tmp_path: Path) -> None:
    tools = ScriptedTools()
    hosted = HostedShard(tmp_path, 1, ScriptedModel(one_call_then_answer), tools, Settings())
    stopped = iter([0.0, 5.0, 5.0, 9.0, 9.0, 9.5])  # two intents are old when they are durable, the third is fresh
    hosted.runner._calls = Calls(hosted.shard, tools, hosted.rules.registry, Settings().tools, lambda: next(stopped))
    hosted.say("s", "hello", 0)
    await hosted.until(lambda: bool(hosted.outcomes))
    await hosted.shard.durable()
    assert [type(record) for record in hosted.journal()].count(Intent) == 3
    assert list(tools.executed.values()) == [1]
    await hosted.crash()


async def test_a_call_whose_intents_are_always_old_is_not_sent(tmp_path: Path) -> None:
    tools = ScriptedTools()
    hosted = HostedShard(tmp_path, 1, ScriptedModel(one_call_then_answer), tools, Settings())
    times = iter(range(0, 1000, 2))
    hosted.runner._calls = Calls(hosted.shard, tools, hosted.rules.registry, Settings().tools, lambda: next(times))
    hosted.say("s", "hello", 0)
    await hosted.until(lambda: bool(hosted.outcomes))
    assert [call.status for call in hosted.outcomes[0].calls] == ["error"]
    assert tools.executed == {}
    await hosted.crash()


async def test_a_turn_that_is_resumed_again_and_again_without_progress_fails(tmp_path: Path) -> None:
    never = asyncio.Event()

    async def hangs(request: CompletionRequest) -> Completion:
        await never.wait()
        raise AssertionError

    for term in range(1, RESUMPTIONS + 1):
        model = ScriptedModel(hangs)
        owner = HostedShard(tmp_path, term, model, ScriptedTools(), Settings())
        owner.resume()
        if term == 1:
            owner.say("s", "hello", 0)
        await owner.until(lambda model=model: len(model.requests) == 1)
        await owner.shard.durable()
        resumed = [record.times for record in owner.journal() if isinstance(record, Resumed)]
        assert resumed == list(range(1, term))
        await owner.crash()
    last = HostedShard(tmp_path, 9, ScriptedModel(hangs), ScriptedTools(), Settings())
    last.resume()
    await last.until(lambda: bool(last.outcomes))
    assert last.outcomes[0].status == "failed"
    assert last.outcomes[0].reason.startswith("resumed: the service restarted 3 times")
    await last.crash()


async def test_the_last_resumption_sends_nothing_again(tmp_path: Path) -> None:
    tools = ScriptedTools()
    await crashed_in_a_call(tmp_path, tools, IDEMPOTENT)
    for term in (2, 3):
        tools.gate.clear()
        owner = HostedShard(tmp_path, term, ScriptedModel(one_call_then_answer), tools, Settings(), (IDEMPOTENT,))
        owner.resume()
        await owner.until(lambda term=term: tools.under_way == term)
        await owner.crash()
    tools.gate.set()
    last = HostedShard(tmp_path, 4, ScriptedModel(one_call_then_answer), tools, Settings(), (IDEMPOTENT,))
    last.resume()
    await last.until(lambda: bool(last.outcomes))
    assert (last.outcomes[0].status, [call.status for call in last.outcomes[0].calls]) == ("failed", ["unknown"])
    assert tools.under_way == 3
    await last.crash()


def test_progress_between_resumptions_lets_a_turn_go_on():
    host = PureHost(AgentSettings(max_steps=20))
    host.take(event())
    for _ in range(4):
        for _ in range(RESUMPTIONS - 1):
            host.crash()
        host.answer(says("", look()))
        host.run_calls()
    for _ in range(RESUMPTIONS):
        assert not host.state.turn.stopping
        host.crash()
    assert host.finish().reason.startswith("resumed:")

import asyncio
from pathlib import Path

import msgspec
import pytest

from hermes_spark.errors import ModelUnavailable, StorageFull
from hermes_spark.llm.client import Completion, CompletionRequest
from hermes_spark.settings import AgentSettings, Settings
from hermes_spark.state.records import Completed, Intent, Outcome, Rejected, Returned, Taken
from hosting import HostedShard, ScriptedModel, ScriptedTools, calls, one_call_then_answer, says


@pytest.fixture
def tools() -> ScriptedTools:
    return ScriptedTools()


async def test_a_turn_runs_to_its_outcome_and_every_fact_is_in_the_journal(
    tmp_path: Path, tools: ScriptedTools
) -> None:
    hosted = HostedShard(tmp_path, 1, ScriptedModel(one_call_then_answer), tools, Settings())
    hosted.say("s", "hello", 0)
    await hosted.until(lambda: bool(hosted.outcomes))
    await hosted.shard.durable()
    assert hosted.outcomes[0].reply == "found: result of hello"
    kinds = [type(record) for record in hosted.journal()][1:]
    assert kinds == [Taken, Completed, Intent, Returned, Completed, Outcome]
    assert hosted.store.get("s") is not None
    await hosted.crash()


async def test_a_call_is_sent_only_after_its_intent_is_durable(tmp_path: Path, tools: ScriptedTools) -> None:
    hosted = HostedShard(tmp_path, 1, ScriptedModel(one_call_then_answer), tools, Settings())
    tools.gate.clear()
    hosted.say("s", "hello", 0)
    await hosted.until(lambda: tools.under_way == 1)
    assert Intent in [type(record) for record in hosted.journal()]
    await hosted.crash()


async def test_a_call_under_way_at_a_crash_is_reported_unknown_and_not_sent_again(
    tmp_path: Path, tools: ScriptedTools
) -> None:
    first = HostedShard(tmp_path, 1, ScriptedModel(one_call_then_answer), tools, Settings())
    tools.gate.clear()
    first.say("s", "hello", 0)
    await first.until(lambda: tools.under_way == 1)
    await first.crash()
    tools.gate.set()
    second = HostedShard(tmp_path, 2, ScriptedModel(one_call_then_answer), tools, Settings())
    second.resume()
    await second.until(lambda: bool(second.outcomes))
    assert [call.status for call in second.outcomes[0].calls] == ["unknown"]
    assert tools.executed == {}
    assert tools.under_way == 1
    await second.crash()


async def test_a_finished_call_never_runs_again_and_its_turn_goes_on(tmp_path: Path, tools: ScriptedTools) -> None:
    stuck = asyncio.Event()

    async def stops_after_the_call(request: CompletionRequest) -> Completion:
        if request.messages[-1].role == "tool":
            await stuck.wait()
        return await one_call_then_answer(request)

    first = HostedShard(tmp_path, 1, ScriptedModel(stops_after_the_call), tools, Settings())
    first.say("s", "hello", 0)
    await first.until(lambda: any(isinstance(record, Returned) for record in first.journal()))
    await first.crash()
    second = HostedShard(tmp_path, 2, ScriptedModel(one_call_then_answer), tools, Settings())
    second.resume()
    await second.until(lambda: bool(second.outcomes))
    assert second.outcomes[0].status == "completed"
    assert list(tools.executed.values()) == [1]
    await second.crash()


async def test_a_row_offered_again_is_skipped_also_by_the_next_owner(tmp_path: Path, tools: ScriptedTools) -> None:
    first = HostedShard(tmp_path, 1, ScriptedModel(one_call_then_answer), tools, Settings())
    assert first.say("s", "hello", 0) is not None
    assert first.say("s", "hello", 0) is None
    await first.until(lambda: bool(first.outcomes))
    await first.shard.durable()
    await first.crash()
    second = HostedShard(tmp_path, 2, ScriptedModel(one_call_then_answer), tools, Settings())
    assert second.say("s", "hello", 0) is None
    assert second.say("s", "next", 1) is not None
    await second.crash()


async def test_messages_of_a_session_run_in_order_and_sessions_do_not_wait_for_each_other(
    tmp_path: Path, tools: ScriptedTools
) -> None:
    held = asyncio.Event()

    async def slow_for_a(request: CompletionRequest) -> Completion:
        text = request.messages[-1].content
        if text == "a1":
            await held.wait()
        return says(f"re {text}")

    hosted = HostedShard(tmp_path, 1, ScriptedModel(slow_for_a), tools, Settings())
    for number, (session, text) in enumerate([("a", "a1"), ("a", "a2"), ("b", "b1"), ("b", "b2")]):
        hosted.say(session, text, number)
    await hosted.until(lambda: len(hosted.outcomes) == 2)
    assert [outcome.reply for outcome in hosted.outcomes] == ["re b1", "re b2"]
    held.set()
    await hosted.until(lambda: len(hosted.outcomes) == 4)
    assert [outcome.reply for outcome in hosted.outcomes[2:]] == ["re a1", "re a2"]
    await hosted.crash()


async def test_cancel_gives_up_a_completion_under_way(tmp_path: Path, tools: ScriptedTools) -> None:
    never = asyncio.Event()

    async def hangs(request: CompletionRequest) -> Completion:
        await never.wait()
        return says("too late")

    hosted = HostedShard(tmp_path, 1, ScriptedModel(hangs), tools, Settings())
    for number in range(300):
        hosted.say("s", f"m{number}", number)
    await hosted.until(lambda: True)
    hosted.offer(b'{"session_id": "s", "type": "cancel", "by": "ann"}', 300)
    await hosted.until(lambda: len(hosted.outcomes) == 300)
    assert {outcome.status for outcome in hosted.outcomes} == {"cancelled"}
    await hosted.crash()


async def test_a_turn_that_takes_too_long_fails_and_its_call_is_unknown(tmp_path: Path, tools: ScriptedTools) -> None:
    settings = Settings(agent=AgentSettings(turn_timeout_ms=150))
    hosted = HostedShard(tmp_path, 1, ScriptedModel(one_call_then_answer), tools, settings)
    tools.gate.clear()
    hosted.say("s", "hello", 0)
    await hosted.until(lambda: bool(hosted.outcomes))
    outcome = hosted.outcomes[0]
    assert outcome.status == "failed"
    assert outcome.reason.startswith("deadline:")
    assert [call.status for call in outcome.calls] == ["unknown"]
    await hosted.crash()


async def test_a_model_that_is_gone_fails_the_turn_with_its_sentence(tmp_path: Path, tools: ScriptedTools) -> None:
    async def gone(request: CompletionRequest) -> Completion:
        raise ModelUnavailable("nothing answers at 127.0.0.1:1")

    hosted = HostedShard(tmp_path, 1, ScriptedModel(gone), tools, Settings())
    hosted.say("s", "hello", 0)
    await hosted.until(lambda: bool(hosted.outcomes))
    assert hosted.outcomes[0].reason == "model_unavailable: nothing answers at 127.0.0.1:1"
    await hosted.crash()


async def test_a_fault_of_ours_ends_one_turn_and_quotes_nobody(
    tmp_path: Path, tools: ScriptedTools, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(request: CompletionRequest) -> Completion:
        raise ValueError(f"cannot render {request.messages[-1].content}")

    hosted = HostedShard(tmp_path, 1, ScriptedModel(broken), tools, Settings())
    hosted.say("s", "my secret", 0)
    await hosted.until(lambda: bool(hosted.outcomes))
    assert hosted.outcomes[0].reason.startswith("internal: ValueError")
    assert "my secret" not in hosted.outcomes[0].reason + caplog.text
    await hosted.crash()


async def test_rows_that_are_no_events_are_rejected_once(tmp_path: Path, tools: ScriptedTools) -> None:
    hosted = HostedShard(tmp_path, 1, ScriptedModel(one_call_then_answer), tools, Settings())
    rejected = hosted.offer(b"not json", 0)
    assert isinstance(rejected, Rejected)
    assert rejected.raw == b"not json"
    assert hosted.offer(b"not json", 0) is None
    unknown = msgspec.json.encode(
        {"session_id": "s", "messages": [{"role": "user", "content": "x"}], "tools": ["no_such_tool"]}
    )
    refused = hosted.offer(unknown, 1)
    assert isinstance(refused, Rejected)
    assert "no_such_tool" in refused.reason
    await hosted.crash()


async def test_a_loop_of_calls_is_cut_off_with_a_forced_answer(tmp_path: Path, tools: ScriptedTools) -> None:
    async def always_calls(request: CompletionRequest) -> Completion:
        return calls("lookup", q="again") if request.tools else says("enough")

    model = ScriptedModel(always_calls)
    hosted = HostedShard(tmp_path, 1, model, tools, Settings())
    hosted.say("s", "hello", 0)
    await hosted.until(lambda: bool(hosted.outcomes))
    assert [bool(request.tools) for request in model.requests] == [True, True, False]
    assert hosted.outcomes[0].reply == "enough"
    await hosted.crash()


async def test_a_store_that_cannot_be_written_ends_the_shard_and_nobody_waits_for_ever(
    tmp_path: Path, tools: ScriptedTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosted = HostedShard(tmp_path, 1, ScriptedModel(one_call_then_answer), tools, Settings())

    def full(changes: object, position: object, deadlines: object) -> None:
        raise StorageFull("no space at /cache")

    monkeypatch.setattr(hosted.store, "write", full)
    hosted.say("a", "hi", 1)
    await hosted.until(lambda: bool(hosted.broken))
    assert isinstance(hosted.broken[0], StorageFull)
    assert not hosted.flushing.done()
    with pytest.raises(StorageFull):
        await asyncio.wait_for(hosted.shard.durable(), 10)

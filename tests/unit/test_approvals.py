"""Calls that need an approval: they wait without a slot or a clock, the first decision counts, a deadline denies."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from hermes_spark.agent.approvals import ENDED_TURNS, KEPT_DECISIONS, time_left_ms
from hermes_spark.agent.plan import Call, Complete, Wait
from hermes_spark.events import call_id_of, turn_id_of
from hermes_spark.host.pressure import Pressure
from hermes_spark.host.takes import Offers
from hermes_spark.host.timers import Timers
from hermes_spark.messages import ParsedCall
from hermes_spark.settings import AgentSettings, HostSettings, Settings
from hermes_spark.state.records import Lapsed, Resumed
from hosting import LOOKUP, HostedShard, ScriptedModel, ScriptedTools, one_call_then_answer
from unit.test_agent_doubles import APPROVE_WITHIN_MS, PureHost, event, look, says
from unit.test_takes import OneShard, header, message, rows

SIGN = ParsedCall("sign", {"n": 1})


def waiting_host(*others: ParsedCall) -> tuple[PureHost, str]:
    """A turn whose first call waits, and the id of that call."""
    host = PureHost(AgentSettings(max_steps=6))
    host.take(event())
    host.answer(says("", SIGN, *others))
    return host, host.state.turn.calls[0].id


# --- the rules


def test_a_call_waits_until_somebody_approves_it():
    host, call_id = waiting_host()
    (wait,) = host.effects
    assert isinstance(wait, Wait)
    assert wait.call.approve_by_ms == host.now_ms + APPROVE_WITHIN_MS
    assert host.state.waiting
    assert host.decide(call_id) == "taken"
    assert [type(effect) for effect in host.effects] == [Call]
    assert not host.state.waiting
    host.run_calls()
    host.answer(says("done"))
    assert [call.status for call in host.finish().calls] == ["ok"]


def test_a_denied_call_is_told_to_the_model_with_who_and_why():
    host, call_id = waiting_host()
    assert host.decide(call_id, decision="deny", by="ann", reason="too much") == "taken"
    assert host.state.messages[-1].content == "error (denied): not run: the call was denied by ann: too much"
    assert isinstance(host.effects[0], Complete)


def test_a_turn_waits_only_when_nothing_else_of_it_can_go_on():
    host, call_id = waiting_host(look())
    assert not host.state.waiting
    assert [type(effect) for effect in host.effects] == [Wait, Call]
    host.run_calls()
    assert host.state.waiting
    host.decide(call_id, decision="deny")
    assert [message.role for message in host.state.messages][-2:] == ["tool", "tool"]


def test_the_deadline_denies():
    host, _ = waiting_host()
    host.lapse()
    assert "denied: nobody decided in time" in host.state.messages[-1].content


def test_the_first_decision_counts_and_later_ones_are_stale():
    host, call_id = waiting_host(look())
    assert host.decide(call_id, decision="approve") == "taken"
    assert host.decide(call_id, decision="deny") == "stale"
    assert host.decide(host.state.turn.calls[1].id, decision="deny") == "stale", "it needs no approval"
    host.run_calls()
    assert host.decide(call_id, decision="deny") == "stale"
    turn_id = host.state.turn.id
    host.answer(says("done"))
    assert host.finish().status == "completed"
    assert host.decide(call_id, turn_id) == "stale"
    assert host.state.decisions == ()


def test_an_approval_of_a_turn_that_is_being_stopped_is_stale():
    host, call_id = waiting_host()
    host.take(event("cancel"))
    assert host.decide(call_id) == "stale"
    outcome = host.finish()
    assert (outcome.status, [call.status for call in outcome.calls]) == ("cancelled", ["refused"])


def test_an_early_decision_is_kept_until_its_call_waits_and_only_the_first():
    host = PureHost()
    first = host.take(event())
    turn_id = turn_id_of("q1", "s1", msgspec.structs.replace(first.event.coordinates, offset=4))
    call_id = call_id_of(turn_id, 0, 0)
    assert host.decide(call_id, turn_id, decision="deny", by="ann") == "kept"
    assert host.decide(call_id, turn_id, decision="approve") == "stale"
    assert host.decide("another", turn_id) == "kept"
    assert host.take(event()).turn_id == turn_id
    host.answer(says("first"))
    host.finish()
    host.answer(says("", SIGN))
    assert "denied by ann" in host.state.messages[-1].content
    host.answer(says("done"))
    host.finish()
    assert host.state.decisions == ()


def test_what_is_kept_is_bounded_and_the_oldest_goes():
    host = PureHost()
    host.take(event())
    for number in range(KEPT_DECISIONS + 3):
        assert host.decide(f"c{number}", "t") == "kept"
    assert [decision.call_id for decision in host.state.decisions] == [f"c{n}" for n in range(3, KEPT_DECISIONS + 3)]
    assert len(host.state.ended_turns) <= ENDED_TURNS


def test_a_repeat_of_an_approval_does_nothing():
    host, call_id = waiting_host()
    host.decide(call_id, event_id="a1")
    assert host.take(event("approval", turn_id="t", call_id=call_id, decision="deny", event_id="a1")).repeat


def test_the_wall_clock_leaves_out_waiting_and_downtime():
    host, call_id = waiting_host()
    limit, began = host.state.turn.limits.turn_timeout_ms, host.state.turn.began_ms
    used = host.now_ms - began
    host.now_ms += 50_000_000
    host.decide(call_id)
    assert time_left_ms(host.state.turn, host.now_ms) == limit - used
    last = host.now_ms
    host.now_ms += 90_000_000  # nobody owns it
    host.crash()
    down = next(record.time_ms for record in host.records if isinstance(record, Resumed)) - last
    assert host.state.turn.paused_ms == 50_000_000 + 7 + down
    assert time_left_ms(host.state.turn, host.now_ms) == limit - used


def test_a_waiting_turn_is_not_resumed_by_new_owners():
    host, call_id = waiting_host()
    for _ in range(5):
        host.crash()
    assert not [record for record in host.records if isinstance(record, Resumed)]
    assert host.decide(call_id) == "taken"


# --- the host


async def test_a_turn_that_is_being_stopped_has_no_timers_that_could_fire_again_and_again():
    host, _ = waiting_host(ParsedCall("book", {"n": 1}))
    fired: list[str] = []
    timers = Timers(lambda session, turn: fired.append("overdue"), lambda session, turn: fired.append("lapsing"))
    host.run_calls()
    timers.set(host.state, host.now_ms)
    assert len(timers._waiting) == 1
    host.take(event("cancel"))
    timers.set(host.state, host.now_ms + 10 * APPROVE_WITHIN_MS)
    await asyncio.sleep(0)
    assert (timers._waiting, timers._running, fired) == ({}, {}, [])


PLAIN = Settings()
SIGNED = msgspec.structs.replace(LOOKUP, approval=True, approval_timeout_s=60)


@pytest.fixture
def tools() -> ScriptedTools:
    return ScriptedTools()


def hosted_shard(root: Path, tools: ScriptedTools, term: int = 1, settings: Settings = PLAIN) -> HostedShard:
    return HostedShard(root, term, ScriptedModel(one_call_then_answer), tools, settings, (SIGNED,))


def waits(hosted: HostedShard) -> bool:
    return any(state.waiting for state in hosted.shard.sessions.live.values())


def approve(hosted: HostedShard, offset: int) -> None:
    turn = hosted.shard.sessions.live["s"].turn
    fields = {"type": "approval", "turn_id": turn.id, "call_id": turn.calls[0].id, "decision": "approve"}
    hosted.offer(msgspec.json.encode({"session_id": "s", **fields}), offset)


async def test_a_waiting_turn_survives_its_owner_holds_nothing_and_goes_on_when_approved(
    tmp_path: Path, tools: ScriptedTools
) -> None:
    settings = Settings(agent=AgentSettings(turn_timeout_ms=50))
    first = hosted_shard(tmp_path, tools, 1, settings)
    first.say("s", "hello", 0)
    await first.until(lambda: waits(first))
    assert (first.shard.open_turns, first.shard.held_bytes, len(first.runner._running)) == (0, 0, 0)
    first.now_ms += 10_000  # longer than a turn may run
    await first.shard.durable()
    await first.crash()
    second = hosted_shard(tmp_path, tools, 2, settings)
    second.resume()
    assert waits(second)
    assert (second.shard.open_turns, second.shard.held_bytes) == (0, 0)
    approve(second, 1)
    assert second.shard.open_turns == 1
    await second.until(lambda: bool(second.outcomes))
    assert second.outcomes[0].status == "completed"
    assert list(tools.executed.values()) == [1]
    assert (second.shard.open_turns, second.shard.held_bytes) == (0, 0)
    await second.crash()


async def test_a_deadline_that_passed_while_nobody_owned_the_turn_denies_at_once(
    tmp_path: Path, tools: ScriptedTools
) -> None:
    first = hosted_shard(tmp_path, tools)
    first.say("s", "hello", 0)
    await first.until(lambda: waits(first))
    await first.shard.durable()
    await first.crash()
    second = hosted_shard(tmp_path, tools, 2)
    second.now_ms += 61_000
    second.resume()
    await second.until(lambda: bool(second.outcomes))
    await second.shard.durable()
    assert [call.status for call in second.outcomes[0].calls] == ["denied"]
    assert [type(record) for record in second.journal()].count(Lapsed) == 1
    assert tools.executed == {}
    await second.crash()


async def test_waiting_turns_make_room_for_others(tmp_path: Path, tools: ScriptedTools) -> None:
    hosted = hosted_shard(tmp_path, tools)
    offers = Offers(OneShard(hosted), HostSettings(max_open_turns=1))
    hosted.on_wait = offers.room_made
    answer = await offers.take(header(3), rows(message("a"), message("b"), message("c")))
    assert (answer.taken, answer.untaken) == (3, ())
    await hosted.crash()


def test_the_books_of_pressure_balance():
    pressure = Pressure()
    pressure.hold("s", "t1", 10)
    pressure.hold("r", "t9", 1)
    pressure.note("s", waiting=True)
    pressure.hold("s", "t2", 5)
    assert (pressure.held_bytes, pressure.waiting) == (1, 1)
    pressure.note("s", waiting=False)
    assert (pressure.held_bytes, pressure.waiting) == (16, 0)
    pressure.release("s", "t1")
    pressure.release("s", "t1")
    pressure.release("s", "t2")
    assert pressure.held_bytes == 1

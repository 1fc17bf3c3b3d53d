"""What waits for its turn: order, repeats, resets, cancels, deadlines."""

from __future__ import annotations

import msgspec
import pytest

from hermes_spark.agent.plan import Call, Complete, Finish
from hermes_spark.agent.turn import SEEN_EVENT_IDS, apply
from hermes_spark.messages import Message, ToolSpec
from hermes_spark.settings import AgentSettings
from unit.test_agent_doubles import SESSION, PureHost, event, look, says

USER, ANSWER = "user", "assistant"


def texts(host: PureHost) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in host.state.messages]


def drain(host: PureHost) -> list[tuple[str, str]]:
    """Answer every turn; (reply or status) of each outcome with its event's offset."""
    while host.effects:
        if isinstance(host.effects[0], Complete):
            host.answer(says(f"answer to {host.state.messages[-1].content}"))
        host.finish()
    return [(outcome.coordinates.offset, outcome.reply or outcome.status) for outcome in host.outcomes]


def test_messages_of_a_session_run_one_after_the_other():
    host = PureHost()
    for text in "abc":
        host.take(event(text=text))
    assert texts(host) == [(USER, "a")]
    assert [queued.taken.event.messages[0].content for queued in host.state.queue] == ["b", "c"]
    assert drain(host) == [(0, "answer to a"), (1, "answer to b"), (2, "answer to c")]
    assert texts(host)[-2:] == [(USER, "c"), (ANSWER, "answer to c")]
    assert host.state.turns == 3


def test_the_turn_keeps_what_its_own_event_asked_for():
    tool = ToolSpec("t", "", {"type": "object"})
    host = PureHost(AgentSettings(max_tokens=500))
    host.take(event(tools=("look", tool), max_tokens=40, metadata={"k": [1]}, event_id="e1", ts_ms=5))
    host.take(event(max_tokens=9_000))
    turn = host.state.turn
    assert (turn.tools, host.state.tools, turn.limits.max_tokens) == (("look", tool), ("look", tool), 40)
    assert turn.taken_ms == host.records[0].time_ms
    host.answer(says("ok"))
    outcome = host.finish()
    assert (outcome.metadata, outcome.event_id, outcome.event_ts_ms) == ({"k": [1]}, "e1", 5)
    assert (host.state.turn.tools, host.state.tools, host.state.turn.limits.max_tokens) == (None, None, 500)


def test_a_repeat_of_the_producer_is_recorded_without_effect():
    host = PureHost()
    host.take(event(event_id="e1"))
    before = host.state
    record = host.take(event(event_id="e1", text="other"))
    assert record.repeat
    assert host.state == msgspec.structs.replace(before, updated_ms=record.time_ms)
    assert drain(host) == [(0, "answer to hello")]
    assert host.take(event(event_id="e1")).repeat, "remembered after the turn, too"
    assert not host.take(event()).repeat, "events without an id are never repeats"


@pytest.mark.parametrize("type_", ["reset", "cancel"])
def test_a_repeated_control_does_not_hit_what_came_after_it(type_):
    host = PureHost()
    host.take(event(type_, event_id="c1"))
    host.take(event(text="a"))
    assert host.take(event(type_, event_id="c1")).repeat
    assert drain(host) == [(1, "answer to a")]
    assert texts(host) == [(USER, "a"), (ANSWER, "answer to a")]


def test_only_the_newest_event_ids_are_remembered():
    host = PureHost()
    host.take(event("reset", event_id="first"))
    for i in range(SEEN_EVENT_IDS):
        host.take(event("reset", event_id=f"e{i}"))
    assert len(host.state.seen_event_ids) == SEEN_EVENT_IDS
    assert not host.take(event("reset", event_id="first")).repeat


def test_a_reset_clears_at_once_when_nothing_is_open():
    host = PureHost()
    host.take(event(text="a"))
    drain(host)
    host.state = msgspec.structs.replace(host.state, memory={"k": 1})
    host.take(event("reset"))
    assert (host.state.messages, host.state.memory, host.state.idle) == ((), {}, True)
    assert len(host.outcomes) == 1


def test_a_reset_waits_for_its_place():
    host = PureHost()
    host.take(event(text="a"))
    host.take(event("reset"))
    host.take(event("reset"))
    host.take(event(text="b"))
    assert texts(host) == [(USER, "a")]
    host.answer(says("A"))
    host.finish()
    assert texts(host) == [(USER, "b")]
    assert drain(host) == [(0, "A"), (3, "answer to b")]


def test_a_cancel_stops_the_open_turn_and_the_messages_before_it_but_no_reset():
    host = PureHost()
    host.take(event(text="a"))
    host.take(event(text="b"))
    host.take(event("reset"))
    host.take(event(text="c"))
    host.take(event("cancel", by="kim", reason="wrong customer"))
    host.take(event(text="d"))
    reason = "cancelled: asked for by kim: wrong customer"
    assert [queued.stopping for queued in host.state.queue] == [reason, "", reason, ""]
    assert host.effects == (Finish(SESSION, host.state.turn.id, "cancelled", reason),)
    assert drain(host) == [(0, "cancelled"), (1, "cancelled"), (3, "cancelled"), (5, "answer to d")]
    assert {outcome.reason for outcome in host.outcomes} == {reason, ""}
    gone = (ANSWER, "(No answer: the turn was cancelled.)")
    assert texts(host) == [(USER, "c"), gone, (USER, "d"), (ANSWER, "answer to d")]


@pytest.mark.parametrize("victim", [0, 1, 2, None])
def test_a_cancel_with_a_turn_id_stops_that_turn_only(victim):
    host = PureHost()
    turns = [host.take(event(text=text)).turn_id for text in "abc"]
    host.take(event("cancel", turn_id="0" * 32 if victim is None else turns[victim]))
    ends = [end for _, end in drain(host)]
    expected = [f"answer to {text}" for text in "abc"]
    if victim is not None:
        expected[victim] = "cancelled"
        assert host.outcomes[victim].reason == "cancelled: asked for"
    assert ends == expected


def test_a_cancelled_turn_waits_for_the_calls_that_were_sent_and_for_no_other():
    host = PureHost()
    host.take(event())
    host.answer(says("", look(1), look(2)))
    sent, _ = host.effects
    host.send(sent)
    host.take(event("cancel"))
    assert [effect.call.id for effect in host.effects if isinstance(effect, Call)] == [sent.call.id]
    host.land(sent.call.id)
    assert [call.status for call in host.finish().calls] == ["ok", "refused"]


def test_a_cancelled_turn_whose_calls_all_came_back_closes_its_step():
    host = PureHost()
    host.take(event())
    host.answer(says("", look(1)))
    host.send(host.effects[0])
    host.take(event("cancel"))
    host.land(host.state.turn.calls[0].id)
    assert host.state.messages[-1].role == "tool"
    assert isinstance(host.effects[0], Finish)


def test_the_completion_of_a_stopped_turn_counts_only_its_tokens():
    host = PureHost()
    host.take(event())
    asked = host.effects[0]
    host.take(event("cancel"))
    messages = host.state.messages
    host.answer(says("late", look(1)), asked)
    assert (host.state.messages, host.state.turn.calls, host.state.turn.reply) == (messages, (), None)
    outcome = host.finish()
    assert (outcome.status, outcome.usage.prompt_tokens, outcome.steps) == ("cancelled", 10, 1)


def test_the_first_reason_to_stop_wins():
    host = PureHost()
    host.take(event())
    host.overdue()
    host.take(event("cancel"))
    assert (host.finish().status, host.outcomes[0].reason) == ("failed", "deadline: the turn took longer than 120 s")


@pytest.mark.parametrize("late", ["cancel", "overdue"])
def test_a_turn_that_has_its_answer_is_not_stopped_any_more(late):
    host = PureHost()
    host.take(event())
    host.answer(says("Done."))
    host.overdue() if late == "overdue" else host.take(event("cancel"))
    assert host.finish().status == "completed"


def test_an_approval_in_a_journal_of_before_approvals_has_no_effect():
    host = PureHost()
    host.take(event())
    before = host.state
    record = host.take(event("approval", turn_id=before.turn.id, call_id="c", decision="approve"))
    host.state = apply(before, msgspec.structs.replace(record, effect=""))
    assert host.state == msgspec.structs.replace(before, updated_ms=record.time_ms)


@pytest.mark.parametrize("type_", ["reset", "cancel", "approval"])
def test_a_control_for_an_unknown_session_makes_an_empty_one(type_):
    host = PureHost()
    record = host.take(event(type_))
    assert (record.turn_id, host.state.idle, host.state.messages) == ("", True, ())
    assert host.state.created_ms == record.time_ms


def test_an_event_may_bring_a_history_and_neighbours_of_one_role_become_one_message():
    host = PureHost()
    brought = [(USER, "1"), (USER, "2"), (ANSWER, "3"), (ANSWER, "4"), (USER, "5"), (USER, "6")]
    host.take(event(messages=tuple(Message(*pair) for pair in brought)))
    assert texts(host) == [(USER, "1\n\n2"), (ANSWER, "3\n\n4"), (USER, "5\n\n6")]
    drain(host)
    host.take(event(messages=(Message(ANSWER, "by the way"), Message(USER, "well?"))))
    assert texts(host)[-2:] == [(ANSWER, "answer to 5\n\n6\n\nby the way"), (USER, "well?")]


def test_an_event_whose_last_message_is_not_from_the_user_fails_without_a_completion():
    host = PureHost()
    host.take(event(messages=(Message(USER, "q"), Message(ANSWER, "a"))))
    outcome = host.finish()
    assert (outcome.status, outcome.steps, outcome.reason.partition(":")[0]) == ("failed", 0, "invalid")
    assert texts(host) == [(USER, "q"), (ANSWER, "a\n\n(No answer: the turn failed.)")]

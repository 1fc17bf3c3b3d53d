"""The rules of one turn: what each completion and each result does to it."""

from __future__ import annotations

import msgspec
import pytest

from hermes_spark.agent import act
from hermes_spark.agent.plan import Call, Complete, Finish
from hermes_spark.agent.turn import apply
from hermes_spark.messages import Message, ParsedCall, Usage
from hermes_spark.settings import AgentSettings
from hermes_spark.state.agent_state import DONE, NEW, SENT
from unit.test_agent_doubles import SESSION, PureHost, event, look, says

BOOK = ParsedCall("book", {"n": 1})
GHOST = ParsedCall("ghost", {"n": 1})


@pytest.fixture
def host() -> PureHost:
    host = PureHost()
    host.take(event(text="what is it?"))
    return host


def test_a_message_opens_a_turn_that_asks_the_model(host):
    (effect,) = host.effects
    assert effect == Complete(SESSION, host.state.turn.id, 0, final=False, max_tokens=1024, thinking=True)
    assert host.state.messages == (Message("user", "what is it?"),)


def test_an_answer_ends_the_turn(host):
    host.answer(says("It is 7.", reasoning="hm"))
    assert host.effects == (Finish(SESSION, host.state.turn.id, "completed"),)
    outcome = host.finish()
    assert (outcome.status, outcome.reply, outcome.reason, outcome.steps) == ("completed", "It is 7.", "", 1)
    assert outcome.usage == Usage(10, 10)
    assert host.state.messages == (Message("user", "what is it?"), Message("assistant", "It is 7."))
    assert host.state.idle
    assert (host.state.turns, host.state.calls) == (1, 0)
    assert host.effects == ()


def test_calls_run_and_their_results_are_shown_in_call_order_whatever_order_they_come_in(host):
    host.answer(says("Let me look.", look(1), look(2), BOOK, reasoning="three things"))
    calls = [effect.call for effect in host.effects]
    assert [call.status for call in calls] == [NEW, NEW, NEW]
    for effect in host.effects:
        host.send(effect)
    assert [effect.call.status for effect in host.effects] == [SENT, SENT, SENT]
    assert [effect.key for effect in host.effects] == [(host.state.turn.id, call.id) for call in calls]
    for call in reversed(calls):
        assert any(isinstance(effect, Call) for effect in host.effects)
        host.land(call.id)
    spoken = Message(
        "assistant",
        "Let me look.",
        "three things",
        tuple(ParsedCall(call.name, call.arguments, call.id) for call in calls),
    )
    results = tuple(Message("tool", f"ok of {call.id}") for call in calls)
    assert host.state.messages == (Message("user", "what is it?"), spoken, *results)
    assert isinstance(host.effects[0], Complete)
    host.answer(says("Done."))
    outcome = host.finish()
    assert [(c.id, c.status, c.step, c.attempts) for c in outcome.calls] == [(c.id, "ok", 0, 1) for c in calls]
    assert all(0 < c.sent_ms < c.done_ms for c in outcome.calls)
    assert not any(message.reasoning for message in host.state.messages)
    assert host.state.calls == 3


@pytest.mark.parametrize(
    ("status", "shown"),
    [("error", "error: error of "), ("timeout", "error (timeout): "), ("unknown", "error (unknown outcome): ")],
)
def test_a_result_that_is_no_success_says_so_and_counts(host, status, shown):
    host.answer(says("", look(1), look(2)))
    host.run_calls(status)
    failed, fine = host.state.messages[-2:]
    assert failed.content.startswith(shown)
    assert fine.content.startswith("ok of")
    assert host.state.turn.errors == 1


def test_a_refused_call_is_answered_and_the_others_run(host):
    host.answer(says("", GHOST, look(1), look("one")))
    assert [effect.call.name for effect in host.effects] == ["look"]
    host.run_calls()
    assert [message.content[:15] for message in host.state.messages[-3:]] == [
        "error: there is",
        "ok of " + host.state.turn.past_calls[1].id[:9],
        "error: n: expec",
    ]
    assert host.state.turn.errors == 2
    host.answer(says("Done."))
    assert [call.status for call in host.finish().calls] == ["refused", "ok", "refused"]
    assert host.state.calls == 1, "only calls that were sent count"


def test_when_every_call_is_refused_the_model_is_asked_again_at_once(host):
    host.answer(says("", GHOST))
    (effect,) = host.effects
    assert (type(effect), effect.step) == (Complete, 1)
    assert host.state.messages[-1] == Message("tool", "error: there is no tool 'ghost'")


def test_what_could_not_be_read_is_told_after_the_results(host):
    host.answer(says("", look(1), errors=["a call had no name", "junk"]))
    host.run_calls()
    assert [message.content for message in host.state.messages[-2:]] == ["error: a call had no name", "error: junk"]
    assert host.state.messages[-3].content.startswith("ok of")
    assert host.state.turn.errors == 2
    assert host.state.turn.notes == ()


@pytest.mark.parametrize(
    ("completion", "told"),
    [
        (says("I call.", errors=["a call was not closed"]), "error: a call was not closed"),
        (says(""), "error: your reply was empty; answer the user, or call a tool"),
        (says(" \n"), "error: your reply was empty; answer the user, or call a tool"),
    ],
)
def test_a_reply_without_calls_or_answer_is_never_final(host, completion, told):
    host.answer(completion)
    assert isinstance(host.effects[0], Complete)
    assert host.state.messages[-2:] == (Message("assistant", completion.reply.content), Message("tool", told))
    assert host.state.turn.errors == 1


@pytest.mark.parametrize(
    ("completion", "thinking"),
    [
        (says("The ans", truncated=True), True),
        (says("", reasoning="Option one is", truncated=True), False),
        (says("The", reasoning="long", truncated=True), True),
        (says("", errors=["half a call"], truncated=True), True),
        (says("", BOOK, truncated=True), True),
        (says("", look(1), BOOK, truncated=True), True),
    ],
)
def test_a_cut_reply_leaves_no_trace_and_is_asked_for_again_with_more_room(host, completion, thinking):
    before = host.state.messages
    host.answer(completion)
    assert host.state.messages == before
    (effect,) = host.effects
    assert (effect.step, effect.max_tokens, effect.thinking, effect.final) == (1, 2048, thinking, False)
    assert host.state.turn.errors == 0


def test_calls_of_a_cut_reply_run_when_all_of_them_are_safe(host):
    record = host.answer(says("", look(1), look(2), errors=["the last call was cut"], truncated=True))
    assert record.truncated
    assert [effect.call.name for effect in host.effects] == ["look", "look"]
    host.run_calls()
    assert host.state.messages[-1].content == "error: the last call was cut"


def test_thinking_stays_off_once_it_used_up_a_reply():
    host = PureHost(AgentSettings(max_steps=4))
    host.take(event())
    host.answer(says("", reasoning="so", truncated=True))
    host.answer(says("A", truncated=True))
    assert host.effects[0].thinking is False
    assert host.effects[0].max_tokens == 4096


@pytest.mark.parametrize(
    ("completion", "status", "reply", "reason"),
    [
        (says("So it is.", look(1)), "completed", "So it is.", ""),
        (says("So it", truncated=True), "completed", "So it", ""),
        (says("Answer.", errors=["junk"]), "completed", "Answer.", ""),
        (says("", look(1)), "failed", "", "no_answer: the last completion held no text"),
        (says("", errors=["junk"]), "failed", "", "no_answer: the last completion held no text"),
        (
            says("", reasoning="and", truncated=True),
            "failed",
            "",
            "no_answer: the last completion was cut before its thinking ended",
        ),
    ],
)
def test_the_last_completion_answers_or_the_turn_fails(completion, status, reply, reason):
    host = PureHost(AgentSettings(max_steps=1))
    host.take(event())
    assert host.effects[0].final
    host.answer(completion)
    outcome = host.finish()
    assert (outcome.status, outcome.reply, outcome.reason) == (status, reply, reason)
    assert outcome.truncated == (completion.reply.truncated and status == "completed")
    assert outcome.calls == ()
    last = Message("assistant", reply or "(No answer: the turn failed.)")
    assert host.state.messages == (Message("user", "hello"), last)


def test_a_completion_that_failed_ends_the_turn(host):
    effect = host.effects[0]
    host.append(act.completion_failed(effect, "model_timeout", "no completion within 60 s", host.tick()))
    assert host.effects == (Finish(SESSION, effect.turn_id, "failed", "model_timeout: no completion within 60 s"),)
    assert host.finish().steps == 0


def test_records_that_do_not_fit_change_nothing(host):
    first = host.effects[0]
    host.answer(says("", look(1), look(2)))
    completed = host.records[-1]
    one, two = host.effects
    host.send(one)
    returned = host.land(one.call.id)
    host.send(two)
    strays = [
        completed,
        msgspec.structs.replace(completed, step=1),
        msgspec.structs.replace(completed, turn_id="other"),
        returned,
        msgspec.structs.replace(returned, status="error"),
        msgspec.structs.replace(returned, call_id="other"),
        act.intent(one, "unknown", 0, host.tick()),
        act.intent(two, "later", 0, host.tick()),
        act.overdue(SESSION, "other", host.tick()),
        act.outcome(host.state, Finish(SESSION, first.turn_id, "failed"), host.tick()),
    ]
    strays[-1] = msgspec.structs.replace(strays[-1], turn_id="other")
    for stray in strays:
        after = apply(host.state, stray)
        assert msgspec.structs.replace(after, updated_ms=0) == msgspec.structs.replace(host.state, updated_ms=0)
        assert after.updated_ms == stray.time_ms


def test_a_completion_of_another_step_changes_nothing(host):
    host.answer(says("", look(1)))
    old = host.records[-1]
    host.run_calls()
    for stray in (old, msgspec.structs.replace(old, step=2)):
        assert apply(host.state, stray).turn == host.state.turn


def test_an_outcome_over_open_calls_leaves_none_open(host):
    host.answer(says("", look(1), look(2), look(3)))
    done, sent, _ = host.effects
    host.send(done)
    host.land(done.call.id)
    host.send(sent)
    ending = Finish(SESSION, host.state.turn.id, "failed", "internal: over")
    outcome = act.outcome(host.state, ending, host.tick())
    assert [(call.status, call.content[:7]) for call in outcome.calls] == [
        ("ok", "ok of " + done.call.id[0]),
        ("unknown", "the tur"),
        ("refused", "not run"),
    ]
    host.append(outcome)
    assert [message.role for message in host.state.messages] == ["user", "assistant", *["tool"] * 3, "assistant"]
    assert host.state.messages[-2].content == "error: not run: the turn ended first"


def test_the_policy_and_times_of_a_call_are_kept(host):
    host.answer(says("", look(1)))
    host.append(act.intent(host.effects[0], "unknown", 99, 5_000))
    (call,) = host.state.turn.calls
    assert (call.status, call.policy, call.sent_ms) == (SENT, "unknown", 5_000)
    host.append(act.returned(host.effects[0], "ok", "7", 2, 5_600))
    (call,) = host.state.turn.past_calls
    assert (call.status, call.result, call.content, call.attempts, call.done_ms) == (DONE, "ok", "7", 2, 5_600)

"""Bounds: which completion is the last, what fits into a prompt, what a record can hold."""

from __future__ import annotations

import itertools

import pytest

from hermes_spark.agent import act, context
from hermes_spark.agent.limits import is_final, limits_of, max_tokens
from hermes_spark.agent.plan import Complete, Finish, next_effects
from hermes_spark.agent.turn import apply
from hermes_spark.events import call_id_of, turn_id_of
from hermes_spark.messages import Message, ParsedCall
from hermes_spark.settings import AgentSettings
from hermes_spark.state.records import decode, encode
from unit.test_agent_doubles import PureHost, check, event, look, says, unreadable


def open_turn(**settings: int) -> PureHost:
    host = PureHost(AgentSettings(**settings))
    host.take(event())
    return host


# --- the last completion


def test_the_limits_of_a_turn_are_the_settings_and_the_event_can_only_lower_them():
    settings = AgentSettings(
        max_steps=2, max_tokens=9, token_budget=3, turn_timeout_ms=4, max_errors=5, max_calls=6, history_chars=7
    )
    limits = limits_of(settings, event())
    assert all(getattr(limits, name) == getattr(settings, name) for name in limits.__struct_fields__)
    assert limits_of(settings, event(max_tokens=5)).max_tokens == 5
    assert limits_of(settings, event(max_tokens=50)).max_tokens == 9


@pytest.mark.parametrize("max_steps", [1, 2, 3, 5])
def test_a_turn_makes_at_most_max_steps_completions_and_only_the_last_without_tools(max_steps):
    host = open_turn(max_steps=max_steps)
    finals = []
    while isinstance(host.effects[0], Complete):
        finals.append(host.effects[0].final)
        host.answer(says("", look(len(finals))))
        host.run_calls()
    assert finals == [False] * (max_steps - 1) + [True]
    assert host.finish().status == "failed"


@pytest.mark.parametrize(
    ("settings", "completion", "final"),
    [
        ({"max_errors": 2}, says("", look("x")), False),
        ({"max_errors": 2}, says("", look("x"), look("y")), True),
        ({"max_errors": 1}, says(""), True),
        ({"token_budget": 21}, says("", look("x"), tokens=10), False),
        ({"token_budget": 20}, says("", look("x"), tokens=10), True),
    ],
)
def test_errors_and_tokens_bring_the_last_completion_forward(settings, completion, final):
    host = open_turn(max_steps=9, **settings)
    assert not is_final(host.state.turn)
    host.answer(completion)
    assert host.effects[0].final is final


def test_the_room_doubles_per_cut_reply_up_to_four_times():
    host = open_turn(max_steps=9, max_tokens=100)
    rooms = []
    for _ in range(4):
        rooms.append(max_tokens(host.state.turn))
        host.answer(says("cut", truncated=True))
    assert rooms == [100, 200, 400, 400]


def test_a_turn_without_steps_left_ends():
    host = open_turn(max_steps=0)
    assert host.effects == (
        Finish("s1", host.state.turn.id, "failed", "no_answer: the model gave no answer in 0 completions"),
    )


def test_nothing_is_wanted_without_a_turn():
    host = PureHost()
    host.take(event("reset"))
    assert next_effects(host.state) == ()


# --- prompts and history


def step(tag: str, length: int) -> tuple[Message, ...]:
    asking = Message("assistant", "", "", (ParsedCall("t", {}), ParsedCall("t", {})))
    return (asking, Message("tool", tag.ljust(length)), Message("tool", f"{tag}'".ljust(length)))


def exchange(tag: str, groups: int = 0, length: int = 10) -> tuple[Message, ...]:
    steps = itertools.chain.from_iterable(step(f"{tag}{i}", length) for i in range(groups))
    return (Message("user", tag.ljust(length)), *steps, Message("assistant", tag.upper().ljust(length)))


def first_words(messages: tuple[Message, ...]) -> list[str]:
    return [message.content.strip() for message in messages if message.content]


@pytest.mark.parametrize(
    ("max_chars", "kept"),
    [
        (100, ["a", "A", "b", "b0", "b0'", "B", "c", "C"]),
        (86, ["a", "A", "b", "b0", "b0'", "B", "c", "C"]),
        (85, ["b", "b0", "b0'", "B", "c", "C"]),
        (66, ["b", "b0", "b0'", "B", "c", "C"]),
        (65, ["c", "C"]),
        (0, ["c", "C"]),
    ],
)
def test_the_oldest_exchanges_go_first_and_whole(max_chars, kept):
    history = exchange("a") + exchange("b", groups=1) + exchange("c")
    trimmed = context.trim(history, max_chars)
    assert first_words(trimmed) == kept
    assert not unreadable(trimmed)


@pytest.mark.parametrize(
    ("max_chars", "kept"),
    [(72, ["d", "d0", "d0'", "d1", "d1'", "D"]), (71, ["d", "d1", "d1'", "D"]), (45, ["d", "D"]), (0, ["d", "D"])],
)
def test_of_an_exchange_too_long_the_oldest_steps_go_whole(max_chars, kept):
    trimmed = context.trim(exchange("c") + exchange("d", groups=2), max_chars)
    assert first_words(trimmed) == kept
    assert not unreadable(trimmed)


def test_a_greeting_goes_with_the_first_exchange():
    history = (Message("assistant", "hello"), *exchange("a"), *exchange("b"))
    assert context.trim(history, 45) == history
    assert context.trim(history, 44) == history[1:]
    assert context.trim((), 10) == ()


def test_history_stays_in_its_bound_over_many_turns():
    host = PureHost(AgentSettings(history_chars=200))
    for i in range(20):
        host.take(event(text=f"question {i}"))
        host.answer(says("", look(1), reasoning="x" * 100))
        host.run_calls()
        host.answer(says("y" * 40))
        host.finish()
        assert sum(len(message.content) for message in host.state.messages) <= 200
    assert host.state.messages[-1].content == "y" * 40


def test_a_prompt_leaves_old_exchanges_out_and_shows_the_open_turn_whole():
    host = PureHost(AgentSettings(history_chars=100))
    host.take(event(text="a" * 30))
    host.answer(says("A" * 30))
    host.finish()
    host.take(event(text="b" * 30))
    assert len(context.prompt(host.state, "")) == 3
    host.answer(says("", look(1)))
    host.run_calls()
    prompt = context.prompt(host.state, "sys")
    assert [message.role for message in prompt] == ["system", "user", "assistant", "tool"]
    assert len(host.state.messages) == 5, "only the prompt is shortened while the turn is open"


# --- what a record can hold


def completed(host: PureHost, completion):
    return act.completed(host.state, host.effects[0], completion, check, lambda name: False, 1)


def test_calls_get_stable_ids_and_those_over_the_limit_are_refused():
    host = open_turn(max_calls=2)
    turn_id = host.state.turn.id
    assert turn_id == turn_id_of("q1", "s1", host.state.turn.coordinates)
    calls = completed(host, says("", look(1), look(2), look(3))).calls
    assert [call.id for call in calls] == [call_id_of(turn_id, 0, index) for index in range(3)]
    assert [call.refusal for call in calls] == ["", "", "not run: at most 2 calls are run at once"]


def test_a_later_step_has_ids_of_its_own_and_the_last_step_has_no_calls():
    host = open_turn(max_steps=3)
    host.answer(says("", look(1)))
    host.run_calls()
    assert completed(host, says("", look(1))).calls[0].id == call_id_of(host.state.turn.id, 1, 0)
    host.answer(says("", look(1)))
    host.run_calls()
    record = completed(host, says("A", look(1)))
    assert (record.final, record.calls, record.content) == (True, (), "A")


def nested(levels: int) -> dict[str, object]:
    value: object = 1
    for _ in range(levels):
        value = [value]
    return {"n": value}


@pytest.mark.parametrize(
    ("arguments", "refusal"),
    [
        ({"n": 2**70}, "integer of more than 64 bits"),
        ({"n": 1, "s": "\ud800"}, "surrogate"),
        (nested(900), "levels deep"),
        (nested(act.ARGUMENT_LEVELS), "levels deep"),
    ],
)
def test_arguments_that_no_record_can_hold_are_refused_and_dropped(arguments, refusal):
    record = completed(open_turn(), says("", ParsedCall("look", arguments)))
    (call,) = record.calls
    assert refusal in call.refusal
    assert call.arguments == {}
    assert decode(encode(record)) == record


def test_arguments_a_record_can_hold_are_kept_as_they_are():
    arguments = {"n": 2**63, "deep": nested(act.ARGUMENT_LEVELS - 2)}
    assert completed(open_turn(), says("", ParsedCall("look", arguments))).calls[0].arguments == arguments


def test_text_that_utf8_cannot_hold_is_made_storable():
    host = open_turn()
    odd = "好\ud800"
    record = completed(host, says(odd, ParsedCall(odd, {}), reasoning=odd, errors=[odd]))
    assert (record.content, record.reasoning, record.errors, record.calls[0].name) == ("好?", "好?", ("好?",), "好?")
    assert decode(encode(record)) == record
    assert act.completion_failed(host.effects[0], "kind", odd, 1).failure == "kind: 好?"


def test_unreadable_pieces_are_bounded():
    assert len(completed(open_turn(max_calls=3), says("", errors=["junk"] * 50)).errors) == 3


def test_a_reply_too_long_for_sinks_is_cut_and_says_so():
    host = open_turn()
    host.answer(says("好" * (act.REPLY_CHARS + 1)))
    outcome = host.finish()
    assert (len(outcome.reply), outcome.truncated) == (act.REPLY_CHARS, True)


def test_only_what_is_wanted_can_be_recorded():
    host = open_turn()
    effect = host.effects[0]
    host.answer(says("A"))
    ended = apply(host.state, act.outcome(host.state, host.effects[0], 9))
    with pytest.raises(ValueError, match="ask next_effects again"):
        act.completed(ended, effect, says("B"), check, lambda name: True, 10)

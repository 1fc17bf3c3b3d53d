"""Whatever happens in whatever order: every turn ends, history renders, a fold of the journal is the state lived through."""

from __future__ import annotations

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hermes_spark.agent import act
from hermes_spark.agent.approvals import KEPT_DECISIONS
from hermes_spark.agent.plan import Call, Complete, Finish, Undo, Wait
from hermes_spark.agent.turn import apply
from hermes_spark.events import call_id_of
from hermes_spark.messages import Message, ParsedCall
from hermes_spark.settings import AgentSettings
from hermes_spark.state.agent_state import NEW
from hermes_spark.state.records import Completed, Expired, Outcome, Taken
from unit.test_agent_doubles import PureHost, event, says

BOUNDS = st.builds(
    AgentSettings,
    max_steps=st.integers(1, 4),
    max_tokens=st.just(16),
    token_budget=st.sampled_from([50, 10_000]),
    max_errors=st.integers(1, 4),
    max_calls=st.integers(1, 4),
    history_chars=st.sampled_from([0, 120, 600, 48_000]),
)
TEXTS = st.sampled_from(["", " ", "fine", "</think> <tool_call> 好", "long " * 20, "half \ud800"])
GOOD_CALLS = st.builds(
    ParsedCall, st.sampled_from(["look", "book", "sign"]), st.sampled_from([{"n": 1}, {"n": 2, "k": [None]}])
)
CALLS = st.builds(
    ParsedCall,
    st.sampled_from(["look", "book", "sign", "ghost", "", "\ud800"]),
    st.sampled_from([{"n": 1}, {"n": 2, "more": [None, {"k": 1.5}]}, {"n": "x"}, {}, {"n": 2**70}, {"n": "\udfff"}]),
)
JUNK = st.builds(
    lambda text, calls, fields: says(text, *calls, **fields),
    TEXTS,
    st.lists(CALLS, max_size=4),
    st.fixed_dictionaries(
        {
            "reasoning": TEXTS,
            "errors": st.lists(st.sampled_from(["junk", "\ud800"]), max_size=5),
            "truncated": st.booleans(),
            "tokens": st.integers(0, 30),
        }
    ),
)
COMPLETIONS = st.one_of(
    JUNK, st.builds(lambda calls: says("", *calls), st.lists(GOOD_CALLS, min_size=2, max_size=3)), st.just(says("A."))
)
STATUSES = st.sampled_from(["ok", "ok", "error", "timeout", "unknown"])
POLICIES = st.sampled_from(["unknown", "idempotent", "reconcile"])
EVENT_IDS = st.sampled_from(["", "", "", "e1", "e2"])
CHATS = st.lists(st.builds(Message, st.sampled_from(["user", "assistant"]), TEXTS.filter(str.isprintable)), max_size=3)
PICKS = st.integers(0, 5)

ARGUMENTS = {
    "go_on": st.tuples(PICKS, COMPLETIONS, STATUSES, POLICIES),
    "message": st.tuples(CHATS, EVENT_IDS, st.sampled_from([None, 8, 99])),
    "control": st.tuples(st.sampled_from(["reset", "approval"]), EVENT_IDS),
    "cancel": st.tuples(PICKS, EVENT_IDS),
    "decide": st.tuples(PICKS, st.sampled_from(["approve", "deny"]), EVENT_IDS),
    "decide_early": st.tuples(PICKS, st.sampled_from(["approve", "deny"])),
    "lapse": st.just(()),
    "overdue": st.just(()),
    "expire": st.just(()),
    "crash": st.just(()),
    "fail": st.just(()),
    "answer_too_late": st.tuples(COMPLETIONS),
    "repeat_a_record": st.tuples(st.integers(0, 50)),
}
MOVES = st.sampled_from(
    [*["go_on"] * 24, *["message"] * 4, *["repeat_a_record"] * 3, *["decide"] * 4, *ARGUMENTS]
).flatmap(lambda name: st.tuples(st.just(name), ARGUMENTS[name]))


class Life:
    """A session that is answered, cancelled, reset and killed as a list of moves says. `PureHost` checks every record.

    A move that makes no sense where it stands does nothing.
    """

    def __init__(self, bounds: AgentSettings) -> None:
        self.host = PureHost(bounds)
        self.host.take(event())

    def wants(self, kind: type) -> list:
        return [effect for effect in self.host.effects if isinstance(effect, kind)]

    def go_on(self, pick, completion, status, policy):
        """Let one of the things that are wanted or under way happen."""
        new = [effect for effect in self.host.effects if not isinstance(effect, Call | Wait)]
        new += [effect for effect in self.wants(Call) if effect.call.status == NEW]
        choices = [*new, *sorted(self.host.under_way)]
        choice = choices[pick % len(choices)] if choices else None
        if isinstance(choice, Complete):
            self.host.answer(completion)
        elif isinstance(choice, Call):
            self.host.send(choice, policy)
        elif isinstance(choice, Finish):
            self.host.finish()
        elif isinstance(choice, Undo):
            self.host.undo(status, lost=pick == 0)
        elif isinstance(choice, str):
            self.host.land(choice, status)

    def message(self, chat, event_id, max_tokens):
        """At least one message of an event is from the user, and here the last one."""
        self.host.take(event(messages=(*chat, Message("user", "q")), event_id=event_id, max_tokens=max_tokens))

    def control(self, type_, event_id):
        self.host.take(event(type_, event_id=event_id))

    def cancel(self, pick, event_id):
        turns = [record.turn_id for record in self.host.records if isinstance(record, Taken)]
        target = ["", "", "unknown", *reversed(turns)][pick % (3 + len(turns))]
        self.host.take(event("cancel", event_id=event_id, turn_id=target, by="kim"))

    def decide(self, pick, decision, event_id):
        """About any call that ever needed an approval, the newest first."""
        asked = [
            (record.turn_id, call.id)
            for record in reversed(self.host.records)
            if isinstance(record, Completed)
            for call in record.calls
            if call.approve_by_ms
        ]
        if asked:
            turn_id, call_id = asked[pick % len(asked)]
            self.host.decide(call_id, turn_id, decision=decision, by="kim", event_id=event_id)

    def decide_early(self, pick, decision):
        """About a call that may come to be: of an open, a waiting or an unknown turn."""
        taken = [record.turn_id for record in self.host.records if isinstance(record, Taken) and record.turn_id]
        turns = ["0" * 32, *taken]
        turn_id = turns[-1 - pick % len(turns)]
        self.host.decide(call_id_of(turn_id, 0, pick % 2), turn_id, decision=decision, by="kim")

    def lapse(self):
        self.host.lapse()

    def answer_too_late(self, completion):
        for asked in self.wants(Complete):
            self.host.take(event("cancel"))
            self.host.answer(completion, asked)

    def fail(self):
        for asked in self.wants(Complete):
            self.host.append(act.completion_failed(asked, "model_busy", "too much", self.host.tick()))

    def overdue(self):
        if self.host.state is not None and self.host.state.turn is not None:
            self.host.overdue()

    def expire(self):
        self.host.expire()

    def crash(self):
        self.host.crash()

    def repeat_a_record(self, pick):
        """Appended a second time, no record but a new event, or the end of an idle session, changes anything."""
        old = [record for record in self.host.records if not isinstance(record, Taken | Expired)]
        if old and self.host.state is None:
            assert apply(None, old[-1 - pick % len(old)]) is None
        elif old:
            after = apply(self.host.state, old[-1 - pick % len(old)])
            assert msgspec.structs.replace(after, updated_ms=0) == msgspec.structs.replace(
                self.host.state, updated_ms=0
            )

    def check(self) -> None:
        if self.host.state is None:
            assert not self.host.effects
            return
        assert set(self.host.under_way) <= {call.call.id for call in self.wants(Call)}, "a call sent is forgotten"
        assert bool(self.host.effects) == (self.host.state.turn is not None)
        assert self.host.state.waiting == (bool(self.host.effects) and len(self.wants(Wait)) == len(self.host.effects))
        assert len(self.host.state.decisions) <= KEPT_DECISIONS
        assert self.host.state.turn is not None or not self.host.state.queue

    def exhaust(self) -> None:
        """Let a model that never answers run out: all turns end all the same."""
        for _ in range(20 * (1 + len(self.host.records))):
            effects = self.host.effects
            if not effects:
                return
            if isinstance(effects[0], Complete):
                self.host.answer(says("", ParsedCall("look", {"n": 1}), ParsedCall("ghost", {})))
            elif isinstance(effects[0], Finish):
                self.host.finish()
            elif isinstance(effects[0], Undo):
                self.host.undo("error")
            elif self.host.under_way:
                self.host.land(min(self.host.under_way), "error")
            elif self.host.state.waiting:
                self.host.lapse()
            else:
                self.host.run_calls()
        raise AssertionError("the session goes on for ever")

    def check_books(self) -> None:
        host = self.host
        assert host.state is None or host.state.idle
        messages = [r for r in host.records if isinstance(r, Taken) and r.event.type == "message" and not r.repeat]
        assert [outcome.turn_id for outcome in host.outcomes] == [record.turn_id for record in messages]
        assert host.folded() == host.state
        self._check_steps()
        self._check_undos()
        self._check_calls()

    def _check_steps(self) -> None:
        made = [record for record in self.host.records if isinstance(record, Completed) and not record.failure]
        for outcome in self.host.outcomes:
            own = [record for record in made if record.turn_id == outcome.turn_id]
            assert [record.step for record in own] == list(range(outcome.steps))
            assert outcome.steps <= self.host.settings.max_steps
            assert [record.final for record in own[:-1]] == [False] * len(own[:-1])
            assert outcome.steps < self.host.settings.max_steps or own[-1].final
            assert sum(record.usage.prompt_tokens for record in own) == outcome.usage.prompt_tokens
            assert (outcome.status == "completed") == (not outcome.reason)
            if outcome.status == "completed":
                last = own[-1]
                assert last.final or not (last.calls or last.errors or last.truncated), "no answer, yet taken for one"
                assert outcome.reply == last.content

    def _check_undos(self) -> None:
        """What a turn did that ends without an answer is undone in reverse order, each call once, and nothing else is."""
        undone: set[str] = set()
        for outcome in self.host.outcomes:
            effects = [call for call in outcome.calls if call.name == "book"] if outcome.status != "completed" else []
            made = [undo for undo in outcome.undos if undo.call_id in {c.id for c in effects if c.status == "ok"}]
            assert [undo.call_id for undo in made] == [c.id for c in reversed(effects) if c.status == "ok"]
            unsure = {c.id for c in effects if c.status in ("unknown", "timeout") and c.id in self.host.requests}
            assert {undo.call_id for undo in outcome.undos} - {undo.call_id for undo in made} == unsure
            undone |= {undo.id for undo in made if undo.sent_ms}
            for undo in made:
                assert undo.status == self.host.results.get(undo.id, undo.status)
                assert undo.id in self.host.results or self.host.given_up(outcome.turn_id)
        assert undone == set(self.host.undo_requests)

    def _check_calls(self) -> None:
        """Each call an outcome shows was asked for once, and has the result that was recorded for it."""
        shown = [call for outcome in self.host.outcomes for call in outcome.calls]
        assert len({call.id for call in shown}) == len(shown)
        assert {call.id for call in shown if call.sent_ms} == set(self.host.requests)
        lives = self._lives()
        given_up = {c.id for o in self.host.outcomes for c in o.calls if self.host.given_up(o.turn_id)}
        for call in shown:
            assert call.status in ("ok", "error", "timeout", "unknown", "refused", "denied", "not_run")
            assert (call.status in ("refused", "denied")) == (call.id not in self.host.requests)
            if call.id in self.host.results:
                assert call.content == self.host.results[call.id]
            else:
                assert call.status in ("refused", "denied") or (call.status == "unknown" and call.id in given_up)
            self._check_decision(call, lives[call.id])

    def _lives(self) -> dict[str, list]:
        """By call shown, what the session knew of when the call's turn ended: all records since it last began anew."""
        lives, life, state = {}, [], None
        for record in self.host.records:
            state = apply(state, record)
            life = [] if state is None else [*life, record]
            if isinstance(record, Outcome):
                lives |= {call.id: life for call in record.calls}
        return lives

    def _check_decision(self, call, life) -> None:
        """The first decision about a call counts: what ran was approved, what somebody denied was denied first."""
        decisions = [
            record.event.decision
            for record in life
            if isinstance(record, Taken) and record.event.call_id == call.id and record.effect in ("taken", "kept")
        ]
        assert len(decisions) <= 1
        if call.name == "sign" and call.id in self.host.requests:
            assert decisions == ["approve"]
        if call.status == "denied":
            assert decisions == (["deny"] if "kim" in call.content else [])


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(bounds=BOUNDS, moves=st.lists(MOVES, min_size=20, max_size=60))
def test_every_turn_ends_and_the_books_are_right_whatever_happens(bounds, moves):
    life = Life(bounds)
    for name, arguments in moves:
        getattr(life, name)(*arguments)
        life.check()
    life.exhaust()
    life.check_books()

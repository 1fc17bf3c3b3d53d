"""What the tests of the agent share: events and completions in short, a host without I/O, a strict reader of histories."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from hermes_spark.agent import act, context
from hermes_spark.agent.calls import RESUMPTIONS
from hermes_spark.agent.plan import Call, Complete, Effect, Finish, Undo, Wait, next_effects
from hermes_spark.agent.turn import apply
from hermes_spark.events import Coordinates, Event
from hermes_spark.llm.chat_format import Format, render
from hermes_spark.llm.client import Completion
from hermes_spark.messages import JsonObject, Message, ParsedCall, Reply, Usage
from hermes_spark.settings import AgentSettings
from hermes_spark.state.agent_state import NEW, SENT, AgentState, decode_state, encode_state
from hermes_spark.state.records import (
    Completed,
    Expired,
    Outcome,
    Resumed,
    Returned,
    SessionRecord,
    Taken,
    UndoPlan,
    decode,
    encode,
)

SESSION = "s1"
DEFAULTS = AgentSettings()
APPROVE_WITHIN_MS = 60_000
UNDO = UndoPlan("unbook", {"n": "/arguments/n", "what": "/result"})
"""Of the tool `book`."""
FORMATS: tuple[Format, ...] = ("qwen3.5", "hermes")


def event(type_: str = "message", offset: int = 0, text: str = "hello", **fields: object) -> Event:
    messages = (Message("user", text),) if type_ == "message" else ()
    return msgspec.structs.replace(
        Event(Coordinates("topic-0", offset), SESSION, ts_ms=offset, type=type_, messages=messages), **fields
    )


def look(n: object = 1) -> ParsedCall:
    return ParsedCall("look", {"n": n})


def says(
    content: str = "", *calls: ParsedCall, reasoning: str = "", errors=(), truncated=False, tokens=10
) -> Completion:
    reply = Reply(content=content, reasoning=reasoning, calls=calls, errors=tuple(errors), truncated=truncated)
    return Completion(reply, Usage(tokens, tokens), "length" if truncated else "stop")


def check(name: str, arguments: JsonObject) -> str:
    """Three tools, `look`, `book` and `sign`, that take one integer `n`; `sign` needs an approval."""
    if name not in ("look", "book", "sign"):
        return f"there is no tool {name!r}"
    return "" if isinstance(arguments.get("n"), int) else "n: expected an integer"


def unreadable(messages: tuple[Message, ...], *, open_step: bool = False) -> str:
    """Why a strict chat template would refuse `messages`; empty when it renders. Knows nothing of the code under test.

    `open_step`: the calls of the last message are still under way.
    """
    after: dict[str, tuple[str, ...]] = {
        "user": ("assistant",),
        "assistant": ("user", "tool"),
        "tool": ("tool", "assistant"),
    }
    unanswered = 0
    for i, message in enumerate(messages):
        if i == 0 and message.role not in ("user", "assistant"):
            return f"starts with {message.role}"
        if i and message.role not in after[messages[i - 1].role]:
            return f"message {i}: {message.role} after {messages[i - 1].role}"
        if unanswered and message.role != "tool":
            return f"message {i}: {unanswered} calls have no result"
        if message.calls and message.role != "assistant":
            return f"message {i}: calls of {message.role}"
        unanswered = len(message.calls) if message.role == "assistant" else max(0, unanswered - 1)
    if unanswered and not open_step:
        return f"the last step has {unanswered} calls without results"
    if messages and not any(message.role == "user" for message in messages):
        return "no user message"
    return ""


class PureHost:
    """Drives one session through `apply` and `next_effects` as a host does, and checks what must hold after every record."""

    def __init__(self, settings: AgentSettings = DEFAULTS) -> None:
        self.settings = settings
        self.state: AgentState | None = None
        self.journal: list[bytes] = []
        self.records: list[SessionRecord] = []
        self.under_way: dict[str, Call] = {}
        self.requests: Counter[str] = Counter()
        """Requests that left, by call id."""
        self.undo_requests: Counter[str] = Counter()
        self.results: dict[str, str] = {}
        self.now_ms = 1_000
        self._offset = 0

    @property
    def outcomes(self) -> list[Outcome]:
        return [record for record in self.records if isinstance(record, Outcome)]

    @property
    def effects(self) -> tuple[Effect, ...]:
        return () if self.state is None else next_effects(self.state)

    def append(self, record: SessionRecord) -> None:
        data = encode(record)
        assert decode(data) == record
        self.journal.append(data)
        self.records.append(record)
        self.state = apply(self.state, record)
        if self.state is not None:
            assert decode_state(encode_state(self.state)) == self.state
            self.check()

    def check(self) -> None:
        assert self.state is not None
        turn = self.state.turn
        assert not unreadable(self.state.messages, open_step=bool(turn and turn.calls))
        self._check_results()
        for effect in self.effects:
            if isinstance(effect, Complete):
                prompt = context.prompt(self.state, "You help.")
                assert prompt[0] == Message("system", "You help.")
                assert not unreadable(prompt[1:])
                assert prompt[-1].role in ("user", "tool")
                for format_ in FORMATS:
                    assert render(prompt, (), format=format_, thinking=effect.thinking)

    def _check_results(self) -> None:
        """Every result stands at the place of its call."""
        messages = self.state.messages
        for i, message in enumerate(messages):
            for k, call in enumerate(message.calls):
                if i + 1 + k < len(messages) and call.id in self.results:
                    assert messages[i + 1 + k].content.endswith(self.results[call.id])

    def take(self, new: Event, **fields: object) -> Taken:
        new = msgspec.structs.replace(new, coordinates=Coordinates("topic-0", self._offset), **fields)
        self._offset += 1
        record = act.taken(self.state, new, "q1", self.settings, -1, self.tick())
        self.append(record)
        return record

    def answer(self, completion: Completion, effect: Complete | None = None) -> Completed:
        if effect is None:
            effect = next(e for e in self.effects if isinstance(e, Complete))
        judged = act.completed(self.state, effect, completion, check, lambda name: name == "look", self.tick())
        record = act.with_approvals(judged, lambda name: APPROVE_WITHIN_MS if name == "sign" else 0)
        self.append(record)
        return record

    def send(self, call: Call, policy: str = "unknown") -> None:
        """Record the intent and send the call."""
        assert call.call.status == NEW
        assert not self.state.turn.stopping
        self.append(
            act.intent(call, policy, self.now_ms + 15_000, self.tick(), UNDO if call.call.name == "book" else None)
        )
        self._request(call)

    def _request(self, call: Call) -> None:
        assert call.call.id not in self.results, "a finished call is asked for again"
        assert call.call.id not in self.requests or call.call.policy == "idempotent", "a call is sent twice"
        self.requests[call.call.id] += 1
        self.under_way[call.call.id] = call

    def land(self, call_id: str, status: str = "ok") -> Returned:
        call = self.under_way.pop(call_id)
        self.results[call_id] = f"{status} of {call_id}"
        record = act.returned(call, status, self.results[call_id], 1, self.tick())
        self.append(record)
        return record

    def undo(self, status: str = "ok", *, lost: bool = False) -> None:
        """Make the undo that comes next; `lost`: its owner dies before the answer comes."""
        (effect,) = self.effects
        assert isinstance(effect, Undo)
        assert not self.under_way, "an undo begins while a call is under way"
        assert effect.call.id not in self.results, "a finished undo is asked for again"
        self.append(act.intent(effect, "idempotent", self.now_ms, self.tick()))
        self.undo_requests[effect.call.id] += 1
        if not lost:
            self.results[effect.call.id] = status
            self.append(act.returned(effect, status, status, 1, self.tick()))

    def run_calls(self, *statuses: str) -> None:
        """Send all open calls at once, then let them come back in order."""
        calls = [effect for effect in self.effects if isinstance(effect, Call)]
        for call in calls:
            self.send(call)
        for i, call in enumerate(calls):
            self.land(call.call.id, statuses[i] if i < len(statuses) else "ok")

    def finish(self) -> Outcome:
        (finish,) = self.effects
        assert isinstance(finish, Finish)
        record = act.outcome(self.state, finish, self.tick())
        self.append(record)
        return record

    def decide(self, call_id: str, turn_id: str = "", **fields: object) -> str:
        """Take an approval event for a call; returns what it did."""
        turn_id = turn_id or self.state.turn.id
        return self.take(
            event("approval", turn_id=turn_id, call_id=call_id, **{"decision": "approve", **fields})
        ).effect

    def lapse(self) -> None:
        """The deadlines of all calls that wait pass."""
        for wait in [effect for effect in self.effects if isinstance(effect, Wait)]:
            self.now_ms = max(self.now_ms, wait.call.approve_by_ms)
            self.append(act.lapsed(SESSION, wait.turn_id, wait.call.id, self.tick()))

    def overdue(self) -> None:
        self.append(act.overdue(SESSION, self.state.turn.id, self.tick()))

    def expire(self) -> None:
        """No host records this over an open turn; if one did, it would be void."""
        lived = self.state
        self.append(Expired(SESSION, 0, 1, 0, 0, 0, self.tick()))
        assert self.state == (None if lived is None or lived.idle else lived)

    def crash(self) -> None:
        """Lose everything but the journal, fold it, and settle what was under way as the next owner must."""
        lived = self.state
        self.state = self.folded()
        assert self.state == lived
        self.under_way.clear()
        if any(isinstance(effect, Complete | Call | Undo) for effect in self.effects):
            self.append(act.resumed(self.state, self.effects[0].turn_id, self.tick()))
        for effect in self.effects:
            if isinstance(effect, Call) and effect.call.status == SENT:
                self._settle(effect)

    def _settle(self, effect: Call) -> None:
        """What the recorded policy says about a call that the dead owner had under way."""
        if effect.call.policy == "idempotent":
            self._request(effect)
            return
        self.under_way[effect.call.id] = effect
        self.land(effect.call.id, "not_run" if effect.call.policy == "reconcile" else "unknown")

    def given_up(self, turn_id: str) -> bool:
        """Whether the turn was resumed too often."""
        return sum(isinstance(r, Resumed) and r.turn_id == turn_id for r in self.records) >= RESUMPTIONS

    def folded(self) -> AgentState | None:
        state = None
        for data in self.journal:
            state = apply(state, decode(data))
        return state

    def tick(self) -> int:
        self.now_ms += 7
        return self.now_ms


USER, ANSWER, RESULT = Message("user", "u"), Message("assistant", "a"), Message("tool", "r")
ASKING = Message("assistant", "", "", (look(), look()))


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        ((), ""),
        ((USER,), ""),
        ((USER, ANSWER, USER), ""),
        ((ANSWER, USER), ""),
        ((USER, ASKING, RESULT, RESULT, ANSWER), ""),
        ((USER, ASKING, RESULT, RESULT, RESULT, ANSWER), ""),
        ((USER, USER), "user after user"),
        ((USER, ANSWER, ANSWER), "assistant after assistant"),
        ((RESULT, ANSWER), "starts with tool"),
        ((USER, RESULT), "tool after user"),
        ((USER, ASKING, RESULT, RESULT, USER), "user after tool"),
        ((USER, ASKING, RESULT, ANSWER), "1 calls have no result"),
        ((USER, ASKING, USER), "2 calls have no result"),
        ((USER, ASKING, RESULT), "1 calls without results"),
        ((ANSWER,), "no user message"),
    ],
)
def test_the_reader_of_histories_sees_what_templates_refuse(messages, fault):
    assert (fault in unreadable(messages)) if fault else not unreadable(messages)

"""What a turn did that fails or is cancelled is undone, call by call, through the journal."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from hermes_spark.agent.calls import RESUMPTIONS
from hermes_spark.agent.plan import Finish, Undo
from hermes_spark.errors import SettingsError
from hermes_spark.events import undo_id_of
from hermes_spark.host import calls as host_calls
from hermes_spark.llm.client import Completion, CompletionRequest
from hermes_spark.messages import ParsedCall
from hermes_spark.settings import AgentSettings, Settings
from hermes_spark.state.records import Intent, Returned
from hermes_spark.tools.registry import Registry, Tool, ToolRequest, ToolResult, UndoRule
from hosting import LOOKUP, HostedShard, ScriptedModel, ScriptedTools, calls
from unit.test_agent_doubles import PureHost, event
from unit.test_agent_doubles import says as completion


def book(n: int) -> ParsedCall:
    return ParsedCall("book", {"n": n})


def booked(*statuses: str) -> PureHost:
    """A turn that made two bookings in one step and one in the next, and is cancelled then."""
    host = PureHost(AgentSettings(max_steps=5, max_errors=9))
    host.take(event())
    host.answer(completion("", book(1), book(2)))
    host.run_calls(*statuses)
    host.answer(completion("", book(3)))
    host.run_calls(*statuses[2:])
    host.take(event("cancel"))
    return host


# --- the rules


def test_calls_are_undone_in_reverse_order_and_the_outcome_says_which():
    host = booked("ok", "ok", "ok")
    host.undo("ok")
    host.undo("error")
    host.undo("ok")
    outcome = host.finish()
    assert [undo.arguments["n"] for undo in outcome.undos] == [3, 2, 1]
    assert [undo.status for undo in outcome.undos] == ["ok", "error", "ok"]
    assert [undo.call_id for undo in outcome.undos] == [call.id for call in reversed(outcome.calls)]
    assert [undo.id for undo in outcome.undos] == [undo_id_of(undo.call_id) for undo in outcome.undos]
    assert host.state.messages[-1].content == "(No answer: the turn was cancelled.) What it had changed was undone."


def test_what_is_not_known_to_have_happened_is_not_undone_and_the_outcome_says_so():
    host = booked("error", "unknown", "ok")
    host.undo("ok")
    outcome = host.finish()
    assert [(undo.arguments.get("n"), undo.status) for undo in outcome.undos] == [(3, "ok"), (None, "not_run")]
    assert outcome.undos[1].call_id == outcome.calls[1].id


def test_a_turn_with_an_answer_undoes_nothing():
    host = PureHost()
    host.take(event())
    host.answer(completion("", book(1)))
    host.run_calls()
    host.answer(completion("done"))
    assert host.finish().undos == ()


def test_undos_wait_for_calls_under_way():
    host = PureHost()
    host.take(event())
    host.answer(completion("", book(1), book(2)))
    first, second = host.effects
    host.send(first)
    host.send(second)
    host.land(first.call.id)
    host.take(event("cancel"))
    assert [effect.call.id for effect in host.effects] == [second.call.id]
    host.land(second.call.id)
    assert isinstance(host.effects[0], Undo)
    assert host.effects[0].undoes == second.call.id


def test_an_undo_under_way_at_a_crash_is_made_again_with_the_same_id_and_arguments():
    host = booked("ok", "ok", "ok")
    before = host.effects[0]
    host.undo(lost=True)
    host.crash()
    assert (host.effects[0].call.id, host.effects[0].call.arguments) == (before.call.id, before.call.arguments)
    host.undo()
    assert host.effects[0].call.id != before.call.id


def test_undos_that_kill_their_hosts_are_given_up():
    host = booked("ok", "ok", "ok")
    host.undo()
    for _ in range(RESUMPTIONS):
        host.undo(lost=True)
        host.crash()
    assert isinstance(host.effects[0], Finish)
    assert [undo.status for undo in host.finish().undos] == ["ok", "unknown", "not_run"]


# --- the host

UNDOABLE = Tool(
    "book",
    "Book",
    {"type": "object"},
    "http://x/book",
    undo=UndoRule("unbook", {"what": "/result", "n": "/arguments/n"}),
)
UNBOOK = Tool("unbook", "Unbook", {"type": "object"}, "http://x/unbook", policy="idempotent")


class Bookings(ScriptedTools):
    """Keeps what was asked for, in order; `lost` undos never come back."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[tuple[str, str, dict[str, object]]] = []
        self.lost = 0

    async def call(self, tool: Tool, request: ToolRequest) -> ToolResult:
        self.requests.append((tool.name, request.call_id, request.arguments))
        if tool.name == "unbook" and self.lost:
            self.lost -= 1
            await asyncio.Event().wait()
        return await super().call(tool, request)


async def books_then_hangs(request: CompletionRequest) -> Completion:
    if request.messages[-1].role == "tool":
        await asyncio.Event().wait()
    return calls("book", "book", n=7)


async def undoing(root: Path, term: int, tools: Bookings, undo: Tool = UNBOOK) -> HostedShard:
    hosted = HostedShard(root, term, ScriptedModel(books_then_hangs), tools, Settings(), (UNDOABLE, undo))
    if term == 1:
        hosted.say("s", "hello", 0)
        await hosted.until(lambda: sum(tools.executed.values()) == 2)
        hosted.offer(b'{"session_id": "s", "type": "cancel"}', 1)
    else:
        hosted.resume()
    return hosted


async def test_a_cancelled_turn_undoes_its_calls_through_the_journal(tmp_path: Path) -> None:
    tools = Bookings()
    hosted = await undoing(tmp_path, 1, tools)
    await hosted.until(lambda: bool(hosted.outcomes))
    await hosted.shard.durable()
    outcome = hosted.outcomes[0]
    assert (outcome.status, [undo.status for undo in outcome.undos]) == ("cancelled", ["ok", "ok"])
    assert [name for name, _, _ in tools.requests] == ["book", "book", "unbook", "unbook"]
    assert [key for _, key, _ in tools.requests[2:]] == [undo_id_of(key) for _, key, _ in reversed(tools.requests[:2])]
    assert tools.requests[2][2] == {"what": "result of ", "n": 7}
    undoes = [record.undoes for record in hosted.journal() if isinstance(record, Intent | Returned) and record.undoes]
    assert undoes == [call.id for call in reversed(outcome.calls) for _ in range(2)]
    await hosted.crash()


async def test_a_crash_while_undoing_undoes_no_call_twice_and_leaves_none_out(tmp_path: Path) -> None:
    tools = Bookings()
    tools.lost = 1
    first = await undoing(tmp_path, 1, tools)
    await first.until(lambda: len(tools.requests) == 3)
    await first.crash()
    second = await undoing(tmp_path, 2, tools)
    await second.until(lambda: bool(second.outcomes))
    assert [undo.status for undo in second.outcomes[0].undos] == ["ok", "ok"]
    sent = [key for name, key, _ in tools.requests if name == "unbook"]
    assert [sent[0], sent[0], sent[2]] == sent
    assert set(tools.executed.values()) == {1}
    await second.crash()


async def test_a_finished_undo_is_never_made_again(tmp_path: Path) -> None:
    tools = Bookings()
    first = await undoing(tmp_path, 1, tools)
    await first.until(lambda: sum(isinstance(r, Returned) and bool(r.undoes) for r in first.journal()) >= 1)
    await first.crash()
    done = [record.call_id for record in first.journal() if isinstance(record, Returned) and record.undoes]
    second = await undoing(tmp_path, 2, tools)
    await second.until(lambda: bool(second.outcomes) or bool(first.outcomes))
    sent = [key for name, key, _ in tools.requests if name == "unbook"]
    assert all(sent.count(key) == 1 for key in done)
    await second.crash()


async def test_an_undo_that_cannot_be_made_is_told_and_the_turn_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_calls, "AGAIN_PAUSES_S", ())
    tools = Bookings()
    tool = Tool("book", "", {"type": "object"}, "http://x", undo=UndoRule("unbook", {"id": "/result/id"}))
    hosted = HostedShard(tmp_path, 1, ScriptedModel(books_then_hangs), tools, Settings(), (tool, UNBOOK))
    hosted.say("s", "hello", 0)
    await hosted.until(lambda: sum(tools.executed.values()) == 2)
    hosted.offer(b'{"session_id": "s", "type": "cancel"}', 1)
    await hosted.until(lambda: bool(hosted.outcomes))
    undos = hosted.outcomes[0].undos
    assert [undo.status for undo in undos] == ["error", "error"]
    assert "its argument id is to come from /result/id" in undos[0].content
    assert [name for name, _, _ in tools.requests] == ["book", "book"]
    await hosted.crash()


async def test_undoing_goes_on_after_the_turn_has_run_out_of_time(tmp_path: Path) -> None:
    tools = Bookings()
    settings = Settings(agent=AgentSettings(turn_timeout_ms=300))
    hosted = HostedShard(tmp_path, 1, ScriptedModel(books_then_hangs), tools, settings, (UNDOABLE, UNBOOK))
    hosted.say("s", "hello", 0)
    await hosted.until(lambda: bool(hosted.outcomes))
    assert hosted.outcomes[0].reason.startswith("deadline:")
    assert [undo.status for undo in hosted.outcomes[0].undos] == ["ok", "ok"]
    await hosted.crash()


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (UndoRule("nothing"), 'undo names "nothing", which is no tool'),
        (UndoRule("lookup"), "whose policy is unknown; an undo may be sent again"),
        (UndoRule("unbook", {"n": "/other/n"}), "expected /arguments/... or /result/..."),
    ],
)
def test_an_undo_that_could_never_work_is_refused_at_the_start(rule: UndoRule, expected: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Registry([Tool("t", "", {"type": "object"}, "http://h/x", undo=rule), LOOKUP, UNBOOK])
    assert expected in str(caught.value)

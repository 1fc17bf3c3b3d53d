"""A checkpoint as a job leaves it, made without a job: journals, commits and published tables of a few scripted sessions.

Every record is made by the code that makes it in a host (`agent.act`), appended to real journals, and committed with the
driver's own `CommitLog`.
"""

from __future__ import annotations

import json
from pathlib import Path

from hermes_spark.agent import act
from hermes_spark.agent.plan import Call, Complete, Finish, next_effects
from hermes_spark.agent.turn import apply
from hermes_spark.events import Coordinates, Event, shard_of
from hermes_spark.llm.client import Completion
from hermes_spark.messages import JsonObject, Message, ParsedCall, Reply, Usage
from hermes_spark.settings import AgentSettings
from hermes_spark.state.agent_state import NEW, AgentState
from hermes_spark.state.journal import ShardJournal
from hermes_spark.state.journal_reader import read
from hermes_spark.state.records import Position, Record, Rejected, SessionRecord, TermId
from hermes_spark.state.storage import Storage
from hermes_spark.streaming.commit import Commit, CommitLog
from hermes_spark.streaming.epochs import DriverClaim
from hermes_spark.streaming.publish import ParquetSink
from hermes_spark.streaming.tables import build_tables

FIRST_MS = 1_764_500_000_000


class Checkpoint:
    """`path` is the checkpoint, `sink` the published tables beside it; `states` what each session has lived through."""

    def __init__(self, path: Path, shards: int = 4) -> None:
        self.path = path / "checkpoint"
        self.root = self.path / "hermes"
        self.sink = path / "out"
        self.shards = shards
        self.states: dict[str, AgentState] = {}
        self.last: Commit | None = None
        self.now_ms = FIRST_MS
        self._offset = 0
        self.storage = Storage.at(str(self.root))
        self.commits = CommitLog(self.storage)
        self.query_id = self.commits.meta(shards).query_id
        self._journals: dict[int, ShardJournal] = {}
        self.start_term()

    def start_term(self) -> None:
        """All shards get a new owner."""
        epoch = DriverClaim.take(self.storage).epoch
        self.close()
        for shard in range(self.shards):
            opened = ShardJournal.open(self.root, shard, TermId(epoch, 1), now_ms=self.tick())
            self._journals[shard] = opened.journal

    def close(self) -> None:
        for journal in self._journals.values():
            journal.close()

    # events

    def say(self, session: str, text: str, **fields: object) -> None:
        self.offer(session, messages=(Message("user", text),), **fields)

    def offer(self, session: str, type_: str = "message", **fields: object) -> None:
        coordinates = Coordinates("topic-0", self._offset)
        self._offset += 1
        event = Event(coordinates, session, ts_ms=self.now_ms - 5, type=type_, **fields)
        state = self.states.get(session)
        self.append(act.taken(state, event, self.query_id, AgentSettings(), self.next_batch, self.tick()))

    def reject(self, raw: bytes) -> None:
        coordinates = Coordinates("topic-0", self._offset)
        self._offset += 1
        record = Rejected(coordinates, "", "not JSON", raw, len(raw), self.next_batch, self.tick())
        self._journals[0].append(record)

    # turns

    def turn(self, session: str, text: str, *arguments: JsonObject, answer: str = "Done.") -> None:
        """A whole turn: one step with a call of `look` per `arguments` (none: no step), then the answer."""
        self.say(session, text)
        if arguments:
            self.ask(session, *arguments)
            self.run_calls(session)
        self.answer(session, answer)
        self.finish(session)

    def ask(self, session: str, *arguments: JsonObject) -> None:
        calls = tuple(ParsedCall("look", each) for each in arguments)
        self._complete(session, Reply(reasoning="let me look", calls=calls))

    def answer(self, session: str, text: str) -> None:
        self._complete(session, Reply(content=text))

    def send_calls(self, session: str) -> list[Call]:
        calls = [effect for effect in self._effects(session) if isinstance(effect, Call) and effect.call.status == NEW]
        for call in calls:
            self.append(act.intent(call, "unknown", self.now_ms + 15_000, self.tick()))
        return calls

    def run_calls(self, session: str, status: str = "ok") -> None:
        for call in self.send_calls(session):
            content = json.dumps({"found": call.call.arguments}, ensure_ascii=False)
            self.append(act.returned(call, status, content, 1, self.tick()))

    def finish(self, session: str) -> None:
        (finish,) = self._effects(session)
        assert isinstance(finish, Finish)
        self.append(act.outcome(self.states[session], finish, self.tick()))

    def append(self, record: SessionRecord) -> None:
        session = record.session_id
        self._journals[shard_of(session, self.shards)].append(record)
        self.states[session] = apply(self.states.get(session), record)

    def _complete(self, session: str, reply: Reply) -> None:
        (effect,) = self._effects(session)
        assert isinstance(effect, Complete)
        completion = Completion(reply, Usage(100, 20), "stop")
        state = self.states[session]
        self.append(act.completed(state, effect, completion, _never_refused, _never_refused, self.tick()))

    def _effects(self, session: str) -> tuple[Call | Complete | Finish, ...]:
        return next_effects(self.states[session])

    # batches

    @property
    def next_batch(self) -> int:
        return 0 if self.last is None else self.last.batch + 1

    def commit(self, *, publish: bool = True, to_sink: bool = True) -> int:
        """Commit all that was appended as the next batch, publish what it says and, as Spark does, note the batch's end."""
        for journal in self._journals.values():
            journal.flush()
        last = self.last
        self.last = self.commits.put(
            Commit(
                batch=self.next_batch,
                epoch=1,
                source="digest",
                ends={"topic-0": self._offset},
                positions={shard: journal.position() for shard, journal in self._journals.items()},
                published={} if last is None else last.rest(),
                publish=publish,
                taken=0,
                skipped=0,
                time_ms=self.tick(),
            )
        )
        if publish and to_sink:
            tables = build_tables(self.query_id, self.last.batch, self._unpublished(self.last))
            ParquetSink(Storage.at(str(self.sink))).publish(self.last.batch, tables)
            ended = self.path / "commits" / str(self.last.batch)
            ended.parent.mkdir(exist_ok=True)
            ended.write_text("v1\n{}")
        return self.last.batch

    def _unpublished(self, commit: Commit) -> list[tuple[int, int, Record]]:
        return [
            (shard, lsn, record)
            for shard, end in commit.positions.items()
            for lsn, record in read(self.root, shard, commit.published.get(shard, Position()), end)
        ]

    def tick(self) -> int:
        self.now_ms += 10
        return self.now_ms


def _never_refused(*_: object) -> str:
    return ""


def busy(path: Path, shards: int = 4) -> Checkpoint:
    """Three batches of sessions in every situation; what comes after the last commit is not committed.

    ======== ==================================================================================
    张三      batch 0: a turn with two calls; batch 1: one without calls; batch 2: one with a call
    s-open   batch 1: an open turn with one call sent, a queued message and a queued reset
    s-reset  batch 0: a turn; batch 1: reset
    s-cancel batch 2: a cancelled turn whose call came back
    s-late   after the last commit
    ======== ==================================================================================
    """
    made = Checkpoint(path, shards)
    made.turn("张三", "我的订单?", {"name": "张三"}, {"n": 1, "deep": [1.5, None, {"x": True}]}, answer="已发货")
    made.turn("s-reset", "hello")
    made.reject(b"{half")
    made.commit()
    made.start_term()
    made.turn("张三", "谢谢", answer="不客气")
    made.say("s-open", "look it up", event_id="e-1", metadata={"channel": "web"}, tools=("look",))
    made.ask("s-open", {"q": "first"})
    made.send_calls("s-open")
    made.say("s-open", "and this", max_tokens=99)
    made.say("s-open", "again", event_id="e-1")
    made.offer("s-open", "reset")
    made.offer("s-reset", "reset")
    made.commit(publish=False)
    made.turn("张三", "and now?", {"name": "now"})
    made.say("s-cancel", "stop me")
    made.ask("s-cancel", {"q": "x"})
    calls = made.send_calls("s-cancel")
    made.offer("s-cancel", "cancel", by="kim")
    made.append(act.returned(calls[0], "error", "no such thing", 1, made.tick()))
    made.append(act.overdue("s-open", made.states["s-open"].turn.id, made.tick()))
    made.finish("s-cancel")
    made.commit()
    made.turn("s-late", "too late", {"q": "late"})
    return made

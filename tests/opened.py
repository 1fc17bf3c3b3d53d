"""A shard as `ShardOpener` opens it, on a real journal and real snapshots, whose turns a test moves one record at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec

from hermes_spark.agent import act
from hermes_spark.agent.plan import Call, Complete
from hermes_spark.events import Coordinates, Row
from hermes_spark.host.opening import OpenStore, ShardOpener
from hermes_spark.host.shard import Capture, Shard, ShardRules
from hermes_spark.host.snapshotting import Snapshotter
from hermes_spark.host.wire import Span
from hermes_spark.settings import Settings
from hermes_spark.state.agent_state import SENT, AgentState
from hermes_spark.state.journal import flush_all
from hermes_spark.state.journal_store import FileJournals
from hermes_spark.state.memory import MemoryStore
from hermes_spark.state.records import Position, SessionRecord, TermId
from hermes_spark.state.rocksdb import RocksMemory, RocksStore
from hermes_spark.state.snapshots import ShardSnapshots
from hermes_spark.state.storage import Storage
from hermes_spark.telemetry import SNAPSHOTS
from hermes_spark.tools.registry import Registry
from hosting import LOOKUP, calls, says

NOW = 1_000_000


def rocks_in(directory: Path) -> RocksStore:
    return RocksStore(directory, shared=RocksMemory(1 << 20, 8 << 20), shards=16)


def counted(result: str) -> float:
    return cast("float", SNAPSHOTS.labels(result=result)._value.get())


class Opened:
    """One term of shard 0 under `root`; a new one is a restart. `shard` is the real thing."""

    def __init__(
        self,
        root: Path,
        term: int,
        *,
        settings: Settings | None = None,
        store: OpenStore = MemoryStore.load,
        committed: Position | None = None,
        snapshots: bool = True,
    ) -> None:
        self.settings = settings or Settings()
        rules = ShardRules("q", self.settings, Registry([LOOKUP]), lambda: NOW - term)
        # Without snapshots: what a fold of the whole journal gives.
        objects = Storage.at(str(root if snapshots else root / "none"))
        opener = ShardOpener(
            FileJournals(root, rules.settings.state.journal_file_bytes),
            root / "local" / str(term),
            rules,
            store,
            objects,
        )
        self.shard: Shard = opener(0, TermId(1, term), committed or Position(), {})
        self.snapshotter = cast("Snapshotter", cast("Any", self.shard.committed).__self__)
        self.snapshots = ShardSnapshots(Storage.at(str(root)), 0)
        self.scratch = root / f"scratch-{term}"
        self.next = 1000 * term

    def say(self, session: str, kind: str = "message") -> None:
        """One event of a session; rows that are no event are rejected."""
        event: dict[str, Any] = {"session_id": session, "type": kind}
        if kind == "message":
            event["messages"] = [{"role": "user", "content": f"question {self.next}"}]
        value = b"{" if kind == "garbage" else msgspec.json.encode(event)
        span = Span(0, 1 << 40) if self.settings.source.has_offsets else None
        self.shard.take(Row(Coordinates("p", self.next), NOW, value), self.next // 3, span)
        self.next += 1

    def step(self, session: str) -> bool:
        """The next record of the session's open turn; False when there is nothing to do."""
        effects = self.shard.effects(session)
        if not effects:
            return False
        state, effect = self.shard.sessions.get(session), effects[0]
        assert state is not None
        record: SessionRecord
        now = self.shard.now_ms()
        if isinstance(effect, Complete):
            said = says("done") if effect.step else calls("lookup", q="x")
            record = act.completed(state, effect, said, lambda name, arguments: "", lambda name: False, now)
        elif not isinstance(effect, Call):
            record = act.outcome(state, effect, now)
        elif effect.call.status == SENT:
            record = act.returned(effect, "ok", "found", 1, now)
        else:
            record = act.intent(effect, "unknown", now + 1000, now)
        self.shard.append(record)
        return True

    def turn(self, session: str, *, flush: bool = True) -> None:
        """A whole turn, and a round of the flusher."""
        self.say(session)
        while self.step(session):
            pass
        if flush:
            self.flush()

    def flush(self) -> None:
        """One round of the flusher, for this shard."""
        group = self.shard.take_group()
        if group is not None:
            (flushed,) = flush_all([group])
            group.journal.confirm(flushed)
            self.shard.flushed()

    def capture(self, meanwhile: Callable[[], None] = lambda: None) -> Capture:
        """Capture at the next durable position; `meanwhile` runs while that group is being written."""

        async def captured() -> Capture:
            task = asyncio.create_task(self.shard.capture())
            await asyncio.sleep(0)
            group = self.shard.take_group()
            meanwhile()
            if group is not None:
                (flushed,) = flush_all([group])
                group.journal.confirm(flushed)
                self.shard.flushed()
            return await asyncio.wait_for(task, 10)

        return asyncio.run(captured())

    def snapshot(self, meanwhile: Callable[[], None] = lambda: None) -> Position:
        """A whole snapshot; `meanwhile` runs in the middle of it as well."""
        capture = self.capture(meanwhile)
        meanwhile()
        self.flush()
        self.scratch = self.scratch.with_name(f"{self.scratch.name}.")
        self.shard.sessions.checkpoint(self.scratch)
        self.shard.sessions.release()
        self.snapshots.write(self.scratch, capture.contents(), capture.position, NOW)
        return capture.position

    def picture(self, sessions: str) -> tuple[dict[str, AgentState | None], set[str], object]:
        """All that a fold gives: every session's state, which are live, and what the shard remembers."""
        shard = self.shard
        shard.now_ms()  # the clock of a later term is behind, so this is the time of the records
        memory, *_ = shard._look()
        known = msgspec.structs.replace(memory, ids=tuple(sorted(memory.ids)), held=dict.fromkeys(memory.held, ("", 0)))
        assert shard.held_bytes == sum(size for _, size in memory.held.values())
        return {s: shard.sessions.get(s) for s in sessions}, set(shard.sessions.live), known

    def crash(self) -> None:
        self.shard.close()

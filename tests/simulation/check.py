"""What must be true of a world that has ended: compared with a plain model that knows the events only."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import msgspec

from hermes_spark.errors import HermesError
from hermes_spark.state.journal import JournalReader, read
from hermes_spark.state.records import Expired, Position, Record, Rejected, Taken
from hermes_spark.streaming.commit import Commit
from hermes_spark.streaming.tables import build_tables
from simulation.fold import misfits
from simulation.services import answer_of, fails, result_of, wanted_calls
from simulation.turns import Turns, expired_too_soon, may_give_up
from simulation.workload import Sent
from simulation.world import World

TABLE_OF = {
    "message": "outcomes",
    "bad": "dead_letters",
    "reset": "controls",
    "cancel": "controls",
    "repeat": "controls",
    "approval": "controls",
}
SHOWN = {
    "ok": "",
    "unknown": "error (unknown outcome): ",
    "timeout": "error (timeout): ",
    "not_run": "error (not run): ",
    "denied": "error (denied): ",
}
"""What the model reads before a result."""


def problems(world: World) -> list[str]:
    """Everything that is wrong; empty for a good seed."""
    try:
        return list(_Check(world).all())
    except HermesError as exc:
        return [f"the state cannot be read in the end: {exc}"]


SLACK_MS = 100
"""How long an event may be on its way from the source into the batch that is planned next."""


class _Check:
    def __init__(self, world: World) -> None:
        self._world = world
        for path in sorted((world.root / "journal").rglob("*.log")):
            world.disk.keep(path)
        self._journal: list[tuple[int, int, Record]] = [
            (shard, lsn, record)
            for shard in range(world.settings.state.shards)
            for lsn, record in read(world.disk.archive, shard, Position(), None)
        ]
        self._sent = {(sent.partition, sent.offset): sent for sent in world.workload.sent}
        self._new_again = set(self._forgotten_repeats())

    def all(self) -> Iterator[str]:
        world = self._world
        for fault in world.troubles.unfired():
            yield f"a fault did not happen: {fault}"
        yield from world.sink.differences
        yield from self._published_once()
        yield from self._taken_once()
        yield from misfits(self._journal)
        yield from Turns(self._journal, world.tools, world.sink.rows("outcomes")).problems()
        yield from expired_too_soon(self._journal, self._sent, SLACK_MS + 2 * world.spark.skew_ms)
        yield from self._order()
        yield from self._commits()
        yield from self._replay()
        yield from self._answers()

    # ------------------------------------------------------------------ events

    def _published_once(self) -> Iterator[str]:
        for name in ("outcomes", "dead_letters", "controls"):
            rows = Counter(_place(row) for row in self._world.sink.rows(name))
            wanted = {place for place, sent in self._sent.items() if self._table_of(place, sent) == name}
            for place in sorted(wanted - rows.keys()):
                yield f"lost: {self._sent[place].kind} {place} is not among the {name}"
            for place in sorted(rows.keys() - wanted):
                yield f"not sent as such: {place} is among the {name}"
            for place, count in sorted(rows.items()):
                if count > 1:
                    yield f"published {count} times: {place} among the {name}"

    def _table_of(self, place: tuple[str, int], sent: Sent) -> str:
        """Where an event must be; a repeat is a new message when its session was forgotten in between."""
        return "outcomes" if place in self._new_again else TABLE_OF[sent.kind]

    def _forgotten_repeats(self) -> Iterator[tuple[str, int]]:
        """The repeats whose session expired after it had taken the event of that id, or that were taken before that one."""
        known: dict[str, set[str]] = defaultdict(set)
        for _, _, record in self._journal:
            if isinstance(record, Expired):
                known[record.session_id].clear()
            elif isinstance(record, Taken):
                sent = self._sent.get(_coordinates(record))
                if sent is not None and sent.kind == "repeat" and record.event.event_id not in known[sent.session]:
                    yield _coordinates(record)
                known[record.session_id].add(record.event.event_id)

    def _taken_once(self) -> Iterator[str]:
        taken = Counter(_coordinates(record) for _, _, record in self._journal if isinstance(record, Taken | Rejected))
        for place, count in sorted(taken.items()):
            if count > 1:
                yield f"taken {count} times: {place}"

    def _order(self) -> Iterator[str]:
        for table, rows in (("outcomes", self._world.sink.rows("outcomes")), ("journal", self._taken_rows())):
            last: dict[tuple[str, str], int] = {}
            for row in rows:
                stream = (row["session_id"] or "", row["source_partition"])
                if row["source_offset"] <= last.get(stream, -1):
                    yield f"out of order in the {table}: {stream} {row['source_offset']} after {last[stream]}"
                last[stream] = row["source_offset"]

    def _taken_rows(self) -> list[dict[str, Any]]:
        return [
            {"session_id": r.session_id, "source_partition": _coordinates(r)[0], "source_offset": _coordinates(r)[1]}
            for _, _, r in self._journal
            if isinstance(r, Taken)
        ]

    # ------------------------------------------------------------------ commits

    def _stored(self) -> list[Commit]:
        data = self._world.state.data
        return [msgspec.json.decode(data[key], type=Commit) for key in sorted(data) if key.startswith("commits/")]

    def _commits(self) -> Iterator[str]:
        commits = self._stored()
        for before, after in pairwise(commits):
            if after.batch != before.batch + 1:
                yield f"commit {after.batch} follows {before.batch}"
            if after.published != before.rest():
                yield f"commit {after.batch} publishes from elsewhere than where commit {before.batch} ended"
            for shard, position in before.positions.items():
                now = after.positions.get(shard, Position())
                if (now.lsn, now.term) < (position.lsn, position.term):
                    yield f"commit {after.batch} goes back in shard {shard}: {position} to {now}"
            for partition, end in before.ends.items():
                if after.ends.get(partition, 0) < end:
                    yield f"commit {after.batch} goes back in {partition}"

    def _replay(self) -> Iterator[str]:
        """Every publish once more, from the stored commits and the journal."""
        world = self._world
        readers = [JournalReader(world.disk.archive, shard) for shard in range(world.settings.state.shards)]
        query = next((row["query_id"] for rows in world.sink.tables.values() for row in rows), "")
        for commit in self._stored():
            if not commit.publish or (commit.batch, "outcomes") not in world.sink.tables:
                continue
            records = [
                (shard, lsn, record)
                for shard, end in sorted(commit.positions.items())
                for lsn, record in readers[shard].read(commit.published.get(shard, Position()), end)
            ]
            for name, table in build_tables(query, commit.batch, records).items():
                published = world.sink.tables.get((commit.batch, name))  # None: the driver died before
                if published is not None and table.to_pylist() != published:
                    yield f"a replay of batch {commit.batch} would publish other {name}"

    # ------------------------------------------------------------------ what the model was told

    def _answers(self) -> Iterator[str]:
        outcomes = {_place(row): row for row in self._world.sink.rows("outcomes")}
        heard: dict[str, list[str]] = defaultdict(list)
        cancels = {sent.session for sent in self._sent.values() if sent.kind == "cancel"}
        for sent in self._in_order():
            if isinstance(sent, Expired):
                heard[sent.session_id].clear()
                continue
            place = (sent.partition, sent.offset)
            if sent.kind == "reset":
                heard[sent.session].clear()
            if sent.kind != "message" and place not in self._new_again:
                continue
            heard[sent.session].append(sent.text)
            row = outcomes.get(place)
            if row is None:
                continue
            if not self._may_end_so(sent, row, cancelled=sent.session in cancels):
                yield f"e{sent.number} ended {row['status']}: {row['reason']}"
            yield from _one_answer(sent, row, heard[sent.session])

    def _may_end_so(self, sent: Sent, row: dict[str, Any], *, cancelled: bool) -> bool:
        kind = row["reason"].partition(":")[0]
        if row["status"] == "completed":
            return not fails(sent.text)
        if row["status"] == "cancelled":
            return cancelled
        if kind == "model_unavailable":
            return fails(sent.text)
        return kind == "deadline" or (kind == "resumed" and may_give_up(self._journal, row["turn_id"]))

    def _in_order(self) -> Iterator[Sent | Expired]:
        """The events as sessions lived them, which is as they were taken (`_order` compares that with how they were sent)."""
        for _, _, record in self._journal:
            if isinstance(record, Expired):
                yield record
            elif isinstance(record, Taken) and (sent := self._sent.get(_coordinates(record))) is not None:
                yield sent


def _one_answer(sent: Sent, row: dict[str, Any], heard: list[str]) -> Iterator[str]:
    calls = row["calls"]
    wanted = [call for step in wanted_calls(sent.text) for call in step]
    asked = [(call["name"], msgspec.json.decode(call["arguments"])["q"]) for call in calls]
    if asked != wanted[: len(asked)]:
        yield f"e{sent.number} asked for {asked} instead of {wanted}"
    for call, (_, q) in zip(calls, asked, strict=True):
        if call["status"] == "ok" and call["content"] != result_of(q):
            yield f"e{sent.number} was told {call['content']!r} about {q}"
    if row["status"] == "completed":
        shown = [SHOWN.get(call["status"], "error: ") + call["content"] for call in calls]
        if row["reply"] != answer_of(heard, shown):
            yield f"e{sent.number} was answered {row['reply']!r} instead of {answer_of(heard, shown)!r}"


def _place(row: dict[str, Any]) -> tuple[str, int]:
    return row["source_partition"], row["source_offset"]


def _coordinates(record: Taken | Rejected) -> tuple[str, int]:
    coordinates = record.coordinates if isinstance(record, Rejected) else record.event.coordinates
    return coordinates.partition, coordinates.offset

"""What must be true of a world that has ended: compared with a plain model that knows the events only."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import msgspec

from hermes_spark.errors import HermesError
from hermes_spark.state.journal import JournalReader, read
from hermes_spark.state.records import Intent, Position, Record, Rejected, Returned, Taken
from hermes_spark.streaming.commit import Commit
from hermes_spark.streaming.tables import build_tables
from simulation.services import answer_of, lookups
from simulation.workload import Sent
from simulation.world import World

TABLE_OF = {
    "message": "outcomes",
    "bad": "dead_letters",
    "reset": "controls",
    "cancel": "controls",
    "repeat": "controls",
}
SHOWN = {"ok": "", "unknown": "error (unknown outcome): "}
"""What the model reads before a result."""


def problems(world: World) -> list[str]:
    """Everything that is wrong; empty for a good seed."""
    try:
        return list(_Check(world).all())
    except HermesError as exc:
        return [f"the state cannot be read in the end: {exc}"]


class _Check:
    def __init__(self, world: World) -> None:
        self._world = world
        for path in sorted((world.root / "journal").rglob("*.log")):
            world.disk.keep(path)
        self._executed = {call: len(times) for call, times in world.tools.executed.items()}
        self._journal: list[tuple[int, int, Record]] = [
            (shard, lsn, record)
            for shard in range(world.settings.state.shards)
            for lsn, record in read(world.disk.archive, shard, Position(), None)
        ]
        self._sent = {(sent.partition, sent.offset): sent for sent in world.workload.sent}

    def all(self) -> Iterator[str]:
        for fault in self._world.troubles.unfired():
            yield f"a fault did not happen: {fault}"
        yield from self._world.sink.differences
        yield from self._published_once()
        yield from self._taken_once()
        yield from self._calls()
        yield from self._order()
        yield from self._commits()
        yield from self._replay()
        yield from self._answers()

    # ------------------------------------------------------------------ events

    def _published_once(self) -> Iterator[str]:
        for name in ("outcomes", "dead_letters", "controls"):
            rows = Counter(_place(row) for row in self._world.sink.rows(name))
            wanted = {place for place, sent in self._sent.items() if TABLE_OF[sent.kind] == name}
            for place in sorted(wanted - rows.keys()):
                yield f"lost: {self._sent[place].kind} {place} is not among the {name}"
            for place in sorted(rows.keys() - wanted):
                yield f"not sent as such: {place} is among the {name}"
            for place, count in sorted(rows.items()):
                if count > 1:
                    yield f"published {count} times: {place} among the {name}"

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

    # ------------------------------------------------------------------ calls

    def _calls(self) -> Iterator[str]:
        for call, count in sorted(self._executed.items()):
            if count > 1:
                yield f"executed {count} times: call {call}"
        intents = {record.call_id for _, _, record in self._journal if isinstance(record, Intent)}
        for call in sorted(self._executed.keys() - intents):
            yield f"executed without an intent in the journal: call {call}"
        results = Counter(r.call_id for _, _, r in self._journal if isinstance(r, Returned))
        for record in (r for _, _, r in self._journal if isinstance(r, Returned)):
            if record.status == "ok" and not self._executed.get(record.call_id):
                yield f"has a result but was not executed: call {record.call_id}"
        for call, count in results.items():
            if count > 1:
                yield f"has {count} results in the journal: call {call}"

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
                if table.to_pylist() != world.sink.tables[commit.batch, name]:
                    yield f"a replay of batch {commit.batch} would publish other {name}"

    # ------------------------------------------------------------------ what the model was told

    def _answers(self) -> Iterator[str]:
        outcomes = {_place(row): row for row in self._world.sink.rows("outcomes")}
        heard: dict[str, list[str]] = defaultdict(list)
        cancels = {sent.session for sent in self._sent.values() if sent.kind == "cancel"}
        for sent in self._in_order():
            if sent.kind == "reset":
                heard[sent.session].clear()
            if sent.kind != "message":
                continue
            heard[sent.session].append(sent.text)
            row = outcomes.get((sent.partition, sent.offset))
            if row is None:
                continue
            allowed = row["status"] == "completed" or (row["status"] == "cancelled" and sent.session in cancels)
            if not allowed and not row["reason"].startswith("deadline:"):
                yield f"e{sent.number} ended {row['status']}: {row['reason']}"
            yield from self._one_answer(sent, row, heard[sent.session])

    def _one_answer(self, sent: Sent, row: dict[str, Any], heard: list[str]) -> Iterator[str]:
        calls = row["calls"]
        wanted = [f"e{sent.number}/{step}/{i}" for step, n in enumerate(lookups(sent.text)) for i in range(n)]
        asked = [msgspec.json.decode(call["arguments"])["q"] for call in calls]
        if asked != wanted[: len(asked)]:
            yield f"e{sent.number} asked for {asked} instead of {wanted}"
        for call, query in zip(calls, asked, strict=True):
            if call["status"] == "ok" and call["content"] != f"result of {query}":
                yield f"e{sent.number} was told {call['content']!r} about {query}"
        if row["status"] == "completed":
            shown = [SHOWN.get(call["status"], "error: ") + call["content"] for call in calls]
            if row["reply"] != answer_of(heard, shown):
                yield f"e{sent.number} was answered {row['reply']!r} instead of {answer_of(heard, shown)!r}"

    def _in_order(self) -> list[Sent]:
        """The events as sessions lived them: as sent, or, where Spark keeps no order between files, as taken."""
        if self._world.workload.has_offsets:
            return self._world.workload.sent
        taken = [_coordinates(record) for _, _, record in self._journal if isinstance(record, Taken)]
        return [self._sent[place] for place in dict.fromkeys(taken) if place in self._sent]


def _place(row: dict[str, Any]) -> tuple[str, int]:
    return row["source_partition"], row["source_offset"]


def _coordinates(record: Taken | Rejected) -> tuple[str, int]:
    coordinates = record.coordinates if isinstance(record, Rejected) else record.event.coordinates
    return coordinates.partition, coordinates.offset

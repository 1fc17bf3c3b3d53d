"""The law of run-ahead: whatever is lost, refused, read again or handed over beside it, a shard takes every event once and in
order, and what the reader calls covered is taken."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_spark.events import Coordinates, Row
from hermes_spark.host.ahead_wire import AheadRange
from hermes_spark.host.cursors import NOBODY, TAKEN, Chunk, Cursor, Put
from hermes_spark.host.intake import Intake
from hermes_spark.host.wire import Span

PARTITION = "t-0"
EVENTS = 60


class Owner:
    """One shard: what it has taken is durable; what else it knows dies with it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.taken: list[int] = []
        self.intake = Intake({})

    def restart(self, committed: int) -> None:
        self.intake = Intake({PARTITION: committed})
        for offset in self.taken:
            self.intake.fold(Coordinates(PARTITION, offset), 0)

    def take(self, offset: int, span: Span) -> None:
        at = Coordinates(PARTITION, offset)
        if not self.intake.has(at, 0, span):
            self.intake.fold(at, 0)
            self.taken.append(offset)

    def take_range(self, put: Put, rows: int) -> int:
        """Take the first `rows` rows of a put; all: answer as a host does."""
        ahead = AheadRange(put.partition, put.shard, put.start, put.stop, put.floor, len(put.rows))
        if (wanted := self.intake.wants(ahead)) is not None:
            return wanted
        for row in put.rows[:rows]:
            self.take(row.coordinates.offset, Span(put.start, put.stop))
        if rows < len(put.rows):
            return NOBODY
        self.intake.reached(ahead)
        return TAKEN


class World:
    def __init__(self, chance: random.Random, shards: int) -> None:
        self.chance = chance
        self.offsets = [
            offset for offset in range(EVENTS) if chance.random() < 0.8
        ]  # the others are marks, or compacted
        self.shard_of = {offset: chance.randrange(shards) for offset in self.offsets}
        self.owners = [Owner(number) for number in range(shards)]
        self.cursor = Cursor(PARTITION, 0)
        self.lanes: list[list[Put]] = [[] for _ in range(shards)]
        self.chunks: list[Chunk] = []
        """Read, and not yet looked at: some follow an older order."""
        self.committed = 0

    def rows(self, start: int, stop: int) -> tuple[Row, ...]:
        return tuple(Row(Coordinates(PARTITION, o), 0, b"") for o in self.offsets if start <= o < stop)

    def read(self) -> None:
        start = self.chunks[-1].stop if self.chunks and self.chunks[-1].generation == self.cursor.generation else None
        start = self.cursor.position if start is None else start
        stop = min(EVENTS, start + self.chance.randint(1, 12))
        if stop > start:
            self.chunks.append(Chunk(PARTITION, start, stop, self.cursor.generation, self.rows(start, stop)))

    def route(self) -> None:
        if self.chunks:
            chunk = self.chunks.pop(0)
            for put in self.cursor.read(chunk, [(self.shard_of[r.coordinates.offset], r) for r in chunk.rows]):
                self.lanes[put.shard].append(put)

    def answer(self, *, kind: str = "whole") -> None:
        lane = self.chance.choice(self.lanes)
        if not lane:
            return
        put = lane.pop(0)
        owner = self.owners[put.shard]
        if kind == "absent":
            self.cursor.refused(put, NOBODY)
            return
        rows = len(put.rows) if kind != "part" else self.chance.randrange(len(put.rows))
        wanted = owner.take_range(put, rows)
        if kind == "lost":
            wanted = NOBODY  # taken, and nobody heard of it
        if wanted == TAKEN:
            self.cursor.taken(put)
        else:
            self.cursor.refused(put, wanted)

    def go_back(self) -> None:
        if (offset := self.cursor.back_to()) is not None:
            self.cursor.seek(offset)

    def hand_over(self) -> None:
        """A batch: all its rows are offered, then it is committed; the reader may hear of it late."""
        stop = min(EVENTS, self.committed + self.chance.randint(0, 15))
        span = Span(self.committed, stop)
        for row in self.rows(*(span.start, span.stop)):
            offset = row.coordinates.offset
            self.owners[self.shard_of[offset]].take(offset, span)
        self.committed = stop
        if self.chance.random() < 0.7 and self.cursor.committed(stop):
            self.cursor.seek(self.cursor.floor)

    def skip_to_covered(self) -> None:
        """A batch of which everything is covered is committed without being offered."""
        covered = self.cursor.covered()
        if covered > self.committed:
            self.committed = covered
            self.cursor.committed(covered)

    def crash_owner(self) -> None:
        self.chance.choice(self.owners).restart(self.committed)

    def crash_reader(self) -> None:
        self.cursor, self.chunks = Cursor(PARTITION, self.committed), []
        for lane in self.lanes:
            if self.chance.random() < 0.5:
                lane.clear()

    def check(self) -> None:
        covered = self.cursor.covered()
        for owner in self.owners:
            mine = [offset for offset in self.offsets if self.shard_of[offset] == owner.number]
            assert owner.taken == mine[: len(owner.taken)], f"shard {owner.number} took {owner.taken} of {mine}"
            assert {offset for offset in mine if offset < covered} <= set(owner.taken), f"covered {covered}"


@settings(max_examples=200, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 4))
def test_every_event_is_taken_once_and_in_order(chance: random.Random, shards: int) -> None:
    world = World(chance, shards)
    steps = {
        world.read: 6,
        world.route: 6,
        world.answer: 8,
        world.go_back: 3,
        world.hand_over: 1,
        world.skip_to_covered: 1,
        world.crash_owner: 1,
        world.crash_reader: 0.3,
    }
    for _ in range(120):
        step = chance.choices(list(steps), list(steps.values()))[0]
        if step == world.answer:
            world.answer(kind=chance.choices(["whole", "absent", "part", "lost"], [6, 1, 1, 1])[0])
        else:
            step()
        world.check()
    for _ in range(500):  # nothing fails any more: everything gets there
        for step in (world.read, world.route, world.answer, world.answer, world.answer, world.go_back):
            step()
            world.check()
        if world.cursor.covered() == EVENTS:
            break
    assert sorted(o for owner in world.owners for o in owner.taken) == world.offsets

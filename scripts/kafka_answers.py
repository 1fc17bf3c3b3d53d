"""What the clients of `kafka_clients` noted: which records were sent, what was read of their outcomes, and when."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Place = tuple[int, int]
"""Partition and offset of an event in its topic: what identifies it."""


class Notes:
    """A file of JSON lines that grows; each `new` gives the lines that are whole since the last."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def new(self) -> Iterator[dict[str, Any]]:
        """Lines that were not given yet; none while there is no file."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._read)
            whole = file.read().rpartition(b"\n")[0]
        self._read += len(whole) + 1 if whole else 0
        for line in whole.splitlines():
            yield json.loads(line)


@dataclass
class Answer:
    """An outcome or a dead letter, as it was first read."""

    at_ms: float
    row: dict[str, Any]

    @property
    def place(self) -> Place:
        """Of its event."""
        return int(self.row["source_partition"].rpartition("-")[2]), int(self.row["source_offset"])


@dataclass
class Answers:
    """All that was read, without repeats: a turn's outcome may come again, and is the same one then."""

    outcomes: dict[str, Answer] = field(default_factory=dict)
    """By turn id."""
    dead_letters: dict[Place, Answer] = field(default_factory=dict)
    repeats: int = 0
    differing: int = 0
    """Repeats that say something else than what they repeat."""

    def add(self, note: dict[str, Any]) -> None:
        """Take a line of the consumer."""
        answer = Answer(note["at_ms"], note["row"])
        turn_id = note["turn_id"]
        first = self.outcomes.get(turn_id) if turn_id else self.dead_letters.get(answer.place)
        if first is not None:
            self.repeats += 1
            self.differing += first.row != answer.row
        elif turn_id:
            self.outcomes[turn_id] = answer
        else:
            self.dead_letters[answer.place] = answer

    def all(self) -> list[Answer]:
        """Outcomes and dead letters."""
        return [*self.outcomes.values(), *self.dead_letters.values()]

    def places(self) -> list[Place]:
        """Of the events that have an answer, one entry per answer."""
        return [answer.place for answer in self.all()]


@dataclass
class Exchange:
    """Both sides of a run: what was sent, what was read."""

    sent_notes: Notes
    read_notes: Notes
    sent: dict[Place, int] = field(default_factory=dict)
    """The producer's timestamps (ms since the epoch)."""
    answers: Answers = field(default_factory=Answers)

    @classmethod
    def of(cls, sent: Path, read: Path) -> Exchange:
        """From the two clients' files, which may still grow."""
        return cls(Notes(sent), Notes(read))

    def look(self) -> None:
        """Read what is new."""
        for note in self.sent_notes.new():
            self.sent[note["partition"], note["offset"]] = note["ts"]
        for note in self.read_notes.new():
            self.answers.add(note)

    @property
    def unanswered(self) -> int:
        """Records sent of which no consumer has read anything yet."""
        return len(self.sent.keys() - set(self.answers.places()))

    def latency_ms(self, answer: Answer) -> float:
        """From the producer's timestamp until the consumer had the outcome."""
        return answer.at_ms - self.sent[answer.place]

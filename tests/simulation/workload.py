"""The events of a world, and the source that Spark reads them from."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec


class Sent(msgspec.Struct):
    """One row of the source."""

    number: int
    partition: str
    offset: int
    kind: str
    """`message`, `reset`, `cancel`, `repeat`, `approval` or `bad`."""
    session: str
    text: str
    value: bytes
    at_s: float


class Asked(msgspec.Struct, frozen=True):
    """A call that somebody is to decide about."""

    session: str
    turn: str
    call: str


class Workload:
    """Makes events at given times; for sources with offsets rows of partitions, otherwise files of several lines."""

    def __init__(self, rng: random.Random, *, has_offsets: bool) -> None:
        self._rng, self.has_offsets = rng, has_offsets
        self.sent: list[Sent] = []
        self.files: list[list[Sent]] = []
        self._partitions: dict[str, list[Sent]] = {"load-0": [], "load-1": []}
        self._sessions = [f"s{i}" for i in range(rng.randint(3, 6))]

    def add(self, now_s: float) -> None:
        """One more row, or one more file."""
        if self.has_offsets:
            session = self._rng.choice(self._sessions)
            self._append(f"load-{self._sessions.index(session) % 2}", session, now_s, None)
            return
        file = f"file-{len(self.files)}"
        self.files.append([])
        for _ in range(self._rng.randint(1, 4)):
            self._append(file, self._rng.choice(self._sessions), now_s, self.files[-1])

    def end(self) -> str:
        """Spark's offset line for all that is there now."""
        if self.has_offsets:
            return json.dumps({name.removeprefix("load-"): len(rows) for name, rows in self._partitions.items()})
        return json.dumps({"logOffset": len(self.files) - 1})

    def rows(self, start: str | None, end: str) -> list[tuple[str, int, int, bytes]]:
        """The intake rows between two offset lines."""
        last = json.loads(end)
        first = json.loads(start) if start is not None else {}
        if self.has_offsets:
            return [
                (row.partition, row.offset, 1, row.value)
                for name, rows in self._partitions.items()
                for row in rows[first.get(name.removeprefix("load-"), 0) : last[name.removeprefix("load-")]]
            ]
        files = self.files[first.get("logOffset", -1) + 1 : last["logOffset"] + 1]
        return [(rows[0].partition, 0, 1, b"\n".join(row.value for row in rows)) for rows in files]

    def _append(self, partition: str, session: str, now_s: float, file: list[Sent] | None) -> None:
        rows = self._partitions[partition] if file is None else file
        rng = self._rng
        kind = rng.choices(("message", "reset", "cancel", "repeat", "bad"), (80, 5, 5, 5, 5))[0]
        known = [sent for sent in self.sent if sent.session == session and sent.kind == "message"]
        if kind == "repeat" and (not known or known[-1].partition != partition):
            kind = "message"
        number = len(self.sent)
        steps = ",".join("".join(rng.choices("lirgb", k=rng.randint(1, 2))) for _ in range(rng.choice((0, 1, 1, 2))))
        text = f"e{number} steps={steps}" + (" fail" if steps and rng.random() < 0.2 else "")
        body: dict[str, Any] = {"session_id": session, "event_id": f"id-{number}"}
        if kind == "repeat":
            body |= {"event_id": f"id-{known[-1].number}", "messages": [{"role": "user", "content": text}]}
        elif kind == "message":
            body["messages"] = [{"role": "user", "content": text}]
        elif kind == "bad":
            body |= {"messages": "none of it"}
        else:
            body["type"] = kind
        self._add(rows, Sent(number, partition, len(rows), kind, session, text, json.dumps(body).encode(), now_s))

    def decide(self, call: Asked, decision: str, now_s: float) -> None:
        """One more row, or one more file: somebody approves or denies a call."""
        number, partition = len(self.sent), f"load-{self._sessions.index(call.session) % 2}"
        if self.has_offsets:
            rows = self._partitions[partition]
        else:
            partition = f"file-{len(self.files)}"
            self.files.append(rows := [])
        body = {"session_id": call.session, "event_id": f"id-{number}", "type": "approval", "decision": decision}
        body |= {"turn_id": call.turn, "call_id": call.call, "by": "kim"}
        value = json.dumps(body).encode()
        self._add(rows, Sent(number, partition, len(rows), "approval", call.session, call.call, value, now_s))

    def _add(self, rows: list[Sent], sent: Sent) -> None:
        rows.append(sent)
        self.sent.append(sent)

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
    """`message`, `reset`, `cancel`, `repeat` or `bad`."""
    session: str
    text: str
    value: bytes
    at_s: float


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
        number, rng = len(self.sent), self._rng
        kind = rng.choices(("message", "reset", "cancel", "repeat", "bad"), (80, 5, 5, 5, 5))[0]
        known = [sent for sent in self.sent if sent.session == session and sent.kind == "message"]
        if kind == "repeat" and (not known or known[-1].partition != partition):
            kind = "message"
        steps = ",".join(str(rng.randint(1, 2)) for _ in range(rng.choices((0, 1, 2), (3, 5, 2))[0]))
        text = f"e{number} steps={steps}"
        body: dict[str, Any] = {"session_id": session, "event_id": f"id-{number}"}
        if kind == "repeat":
            body |= {"event_id": f"id-{known[-1].number}", "messages": [{"role": "user", "content": text}]}
        elif kind == "message":
            body["messages"] = [{"role": "user", "content": text}]
        elif kind == "bad":
            body |= {"messages": "none of it"}
        else:
            body["type"] = kind
        value = json.dumps(body).encode()
        sent = Sent(number, partition, len(rows), kind, session, text, value, now_s)
        rows.append(sent)
        self.sent.append(sent)

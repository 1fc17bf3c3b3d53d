"""Whoever approves calls: reads the published table of waiting calls as people do, and decides soon, late, twice or never."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from hermes_spark.events import Coordinates, call_id_of, turn_id_of
from simulation.services import APPROVAL_S, wanted_calls
from simulation.workload import Asked, Sent

if TYPE_CHECKING:
    from simulation.world import World

EARLY = 0.3
"""How many of the messages that ask for a guarded call are decided about before anybody has asked."""


class Approver:
    """See the module."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world, self._rng = world, rng

    def asked(self, rows: list[Mapping[str, Any]]) -> None:
        """Rows of the table were published."""
        for row in rows:
            call = Asked(row["session_id"], row["turn_id"], row["call_id"])
            manner = self._rng.choices(("soon", "twice", "late", "never"), (65, 10, 15, 10))[0]
            if manner == "never":
                continue
            wait_s = self._rng.uniform(0.05, 2.0) + (APPROVAL_S + 4.0 if manner == "late" else 0.0)
            self._later(wait_s, call, self._decision())
            if manner == "twice":
                self._later(wait_s + self._rng.uniform(0.0, 0.5), call, self._decision())

    def foresee(self, sent: Sent) -> None:
        """Decide about a message's guarded calls right behind it, if it has any, sometimes."""
        meta = self._world.state.data.get("meta.json")
        if sent.kind != "message" or meta is None or self._rng.random() >= EARLY:
            return
        query_id = msgspec.json.decode(meta)["query_id"]
        turn = turn_id_of(query_id, sent.session, Coordinates(sent.partition, sent.offset))
        for step, calls in enumerate(wanted_calls(sent.text)):
            for index, (name, _) in enumerate(calls):
                if name == "guarded":
                    call = Asked(sent.session, turn, call_id_of(turn, step, index))
                    self._world.workload.decide(call, self._decision(), self._world.loop.time())

    def _decision(self) -> str:
        return "approve" if self._rng.random() < 0.7 else "deny"

    def _later(self, wait_s: float, call: Asked, decision: str) -> None:
        loop = self._world.loop
        decide = self._world.workload.decide
        loop.call_later(wait_s, lambda: decide(call, decision, loop.time()), context=self._world.loop.root.context())

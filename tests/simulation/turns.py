"""Calls, approvals, undos and expiry of a world that has ended, against the rules in their plainest form."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from hermes_spark.agent.approvals import ENDED_TURNS
from hermes_spark.events import undo_id_of
from hermes_spark.host.calls import INTERRUPTED
from hermes_spark.state.records import Completed, Expired, Intent, Lapsed, Outcome, Record, Resumed, Returned, Taken
from hermes_spark.streaming.tables import PlacedRecord
from simulation.seams import START_S
from simulation.services import UNDO, Tools
from simulation.workload import Sent

NEVER_AGAIN = ("lookup", "checked", "guarded", "book")
"""Tools whose calls are sent once at most."""
RESUMPTIONS = 3
"""Of a turn without progress; then it fails."""


class Turns:
    """What the journal, the tool service and the published outcomes say about each other."""

    def __init__(self, journal: list[PlacedRecord], tools: Tools, outcomes: list[dict[str, Any]]) -> None:
        self._journal = journal
        self._tools = tools
        self._outcomes = outcomes
        self._names = {call.id: call.name for _, _, r in journal if isinstance(r, Completed) for call in r.calls} | {
            r.call_id: UNDO for _, _, r in journal if isinstance(r, Intent) and r.undoes
        }

    def problems(self) -> Iterator[str]:
        """Everything that is wrong."""
        yield from self._executed()
        yield from self._results()
        for calls in self._by_call().values():
            yield from _decided(calls)
        for row in self._outcomes:
            yield from self._undone(row)

    def _executed(self) -> Iterator[str]:
        intents = {record.call_id for _, _, record in self._journal if isinstance(record, Intent)}
        tools = self._tools
        for call, times in sorted(tools.executed.items()):
            if len(times) > 1:
                yield f"executed {len(times)} times: call {call}"
            if call not in intents:
                yield f"executed without an intent in the journal: call {call}"
        for call, count in sorted(tools.requests.items()):
            if count > 1 and self._names.get(call) in NEVER_AGAIN:
                yield f"sent {count} times: call {call} of {self._names[call]}"
        for (tool, question), calls in sorted(tools.keys.items()):
            if len(calls) > 1:
                yield f"{tool} was executed for {question} under several keys: {', '.join(sorted(calls))}"
        for call in tools.reruns:
            yield f"sent again after its result was durable: call {call} of {self._names.get(call)}"

    def _results(self) -> Iterator[str]:
        results = Counter(r.call_id for _, _, r in self._journal if isinstance(r, Returned))
        for record in (r for _, _, r in self._journal if isinstance(r, Returned)):
            executed = record.call_id in self._tools.executed
            if record.status == "ok" and not executed:
                yield f"has a result but was not executed: call {record.call_id}"
            if record.status == "not_run" and executed:
                yield f"was executed though somebody was told that it never will be: call {record.call_id}"
            if self._names.get(record.call_id) == "checked" and record.content == INTERRUPTED:
                yield f"nobody asked what became of call {record.call_id}"
        for call, count in results.items():
            if count > 1:
                yield f"has {count} results in the journal: call {call}"

    def _by_call(self) -> dict[str, list[Record]]:
        """For each call that needs an approval, what the journal says of it, in order."""
        said: dict[str, list[Record]] = {}
        early: dict[str, list[Record]] = defaultdict(list)
        for _, _, record in self._journal:
            if isinstance(record, Completed):
                for call in record.calls:
                    if call.approve_by_ms:
                        said[call.id] = [*early.pop(call.id, ()), record]
            elif isinstance(record, Taken) and record.event.type == "approval" and not record.repeat:
                call_id = record.event.call_id
                (said if call_id in said else early)[call_id].append(record)
            elif isinstance(record, Lapsed | Intent) and record.call_id in said:
                said[record.call_id].append(record)
            elif isinstance(record, Outcome | Expired):
                _add_to_all(record, said, early)
        return said

    def _undone(self, row: dict[str, Any]) -> Iterator[str]:
        done = [c["call_id"] for c in row["calls"] if c["name"] == "book" and c["status"] == "ok"]
        undone = {call: self._tools.executed.get(undo_id_of(call)) for call in done}
        if row["status"] == "completed":
            if any(undone.values()) or row["undos"]:
                yield f"something was undone of turn {row['turn_id']}, which was answered"
            return
        told = [undo["call_id"] for undo in row["undos"] if undo["call_id"] in undone]
        if told != done[::-1]:
            yield f"turn {row['turn_id']} did {done} and undid {told}"
        times = [undone[call][0] for call in told if undone[call]]  # type: ignore[index]
        if times != sorted(times):
            yield f"the undos of turn {row['turn_id']} were not made in reverse order"
        for undo in row["undos"]:
            if undo["status"] == "ok" and not undone.get(undo["call_id"]):
                yield f"undo of call {undo['call_id']} is told as made and was not executed"


def _add_to_all(record: Outcome | Expired, said: dict[str, list[Record]], early: dict[str, list[Record]]) -> None:
    """Note an end for all calls of its session; what was decided early is forgotten with the session."""
    for records in said.values():
        if _session(records) == record.session_id:
            records.append(record)
    if isinstance(record, Expired):
        for call_id in [call_id for call_id, of in early.items() if _session(of) == record.session_id]:
            del early[call_id]


def _session(records: list[Record]) -> str:
    return next(record.session_id for record in records if isinstance(record, Taken | Completed))


def _decided(said: list[Record]) -> Iterator[str]:
    """A call that needs an approval is sent when the first decision allows it, and not otherwise."""
    decision = ""
    turn_id = next(record.turn_id for record in said if isinstance(record, Completed))
    ended = 0
    """Turns of the session that have ended, from the call's own on."""
    for record in said:
        if isinstance(record, Expired):
            return  # with all that the session knew of the call
        if isinstance(record, Outcome):
            ended += bool(ended) or record.turn_id == turn_id
        elif isinstance(record, Taken):
            if record.effect == "kept" and ended > ENDED_TURNS:
                continue  # taken for an early one, because so many turns ago is forgotten; nothing will ever ask for it
            if record.effect != "stale" and (decision or ended):
                yield f"the second decision about a call counts, or one after its turn has ended: {record}"
            # One that is stale although it is the first came when the turn was ending.
            decision = decision or (record.event.decision if record.effect != "stale" else "")
        elif isinstance(record, Lapsed):
            if decision:
                yield f"a call lapsed that was decided about: {record}"
            decision = "lapse"
        elif isinstance(record, Intent) and decision != "approve":
            yield f"a call was sent after the decision {decision or 'of nobody'}: {record}"


def may_give_up(journal: list[PlacedRecord], turn: str) -> bool:
    """Whether a turn may fail for having been resumed again and again."""
    return sum(isinstance(r, Resumed) and r.turn_id == turn for _, _, r in journal) >= RESUMPTIONS


def expired_too_soon(journal: list[PlacedRecord], sent: dict[tuple[str, int], Sent], slack_ms: int) -> Iterator[str]:
    """Sessions that were forgotten although an event for them had come before their time was up.

    `slack_ms`: how far the clocks of processes may be apart, and how long an event may be on its way to a batch.
    """
    forgotten: dict[str, Expired] = {}
    for _, _, record in journal:
        if isinstance(record, Expired):
            forgotten[record.session_id] = record
        elif isinstance(record, Taken) and (gone := forgotten.pop(record.session_id, None)) is not None:
            place = record.event.coordinates
            event = sent.get((place.partition, place.offset))
            if event is None:
                continue
            came_ms = (START_S + event.at_s) * 1000
            if came_ms < gone.active_ms + gone.ttl_ms - slack_ms:
                yield f"session {record.session_id} expired though e{event.number} had come {came_ms:.0f}: {gone}"

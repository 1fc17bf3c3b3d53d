"""What came of a scenario, counted from the tool service's own counters and from the sink; the job is asked nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hermes_spark.streaming.publish import read_table

OF_EVENTS = ("outcomes", "dead_letters", "controls")
"""The tables with one row for each event."""

Identity = tuple[str, int]
"""An event: its file's name and its line in it."""


@dataclass(frozen=True)
class Counts:
    """The figures of one scenario."""

    events: int
    outcomes: int
    lost: int
    """Events without a row in any table of the sink."""
    duplicate_outcomes: int
    """Rows of the sink beyond one per event."""
    finished_calls_rerun: int
    """Calls that the tool service executed more than once. Mostly the tools of a scenario all have the policy `unknown`, under
    which no call is ever sent again; a scenario with others says which calls had finished before its fault."""
    in_flight_unknown: int
    """Calls that were under way at the fault and ended as `unknown`."""
    failed_turns: int
    recovery_s: float | None
    """From the fault, or from the new start when the job had ended, until a turn ended again; None: none ended after it."""

    @property
    def right(self) -> bool:
        """Whether nothing was lost, published twice or run again."""
        return not (self.lost or self.duplicate_outcomes or self.finished_calls_rerun)

    def as_json(self) -> dict[str, Any]:
        """By name."""
        return asdict(self)


def count(
    events: set[Identity],
    sink: Path,
    executions: Mapping[str, int],
    since_s: float | None,
    finished: Collection[str] | None = None,
) -> Counts:
    """Compare what went in with what came out. `since_s` (epoch seconds) is where recovery is counted from; `finished` are the
    calls that must not have run again, None: all."""
    tables = {name: read_table(sink, name).to_pylist() for name in OF_EVENTS}
    rows = [row for table in tables.values() for row in table]
    found = {(row["source_partition"], row["source_offset"]) for row in rows}
    outcomes = tables["outcomes"]
    ended_s = [row["finished_at"].timestamp() for row in outcomes]
    after_s = [end - since_s for end in ended_s if since_s is not None and end > since_s]
    return Counts(
        events=len(events),
        outcomes=len(outcomes),
        lost=len(events - found),
        duplicate_outcomes=len(rows) - len(found & events),
        finished_calls_rerun=sum(
            times > 1 and (finished is None or call in finished) for call, times in executions.items()
        ),
        in_flight_unknown=sum(call["status"] == "unknown" for row in outcomes for call in row["calls"]),
        failed_turns=sum(row["status"] != "completed" for row in outcomes),
        recovery_s=round(min(after_s), 2) if after_s else None,
    )

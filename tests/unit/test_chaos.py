"""The crash matrix judges rightly: every point is in it, and a loss, a repeat, a second run or a silent fault fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import chaos
from chaos_parts.brokers import BROKERS
from chaos_parts.counts import count
from chaos_parts.damage import cut, flip
from chaos_parts.points import crash_points
from chaos_parts.world import Scenario, _figures, _marks_of
from chaos_scenarios import everything, quick
from hermes_spark import faults
from hermes_spark.state.storage import Storage
from hermes_spark.streaming.publish import ParquetSink
from hermes_spark.streaming.table_schemas import TABLES

EVENTS = {("00000.jsonl", 0), ("00000.jsonl", 1)}


def outcome(line: int, lsn: int, **fields: Any) -> dict[str, Any]:
    row = dict.fromkeys(TABLES["outcomes"].names) | {"query_id": "q", "batch_id": 0, "shard": 0, "lsn": lsn}
    return row | {"source_partition": "00000.jsonl", "source_offset": line, "status": "completed", "calls": []} | fields


@pytest.fixture
def publish(tmp_path: Path) -> Callable[..., Path]:
    def put(*rows: dict[str, Any]) -> Path:
        finished = [row | {"finished_at": 5_000} for row in rows]
        table = pa.Table.from_pylist(finished, schema=TABLES["outcomes"])
        ParquetSink(Storage.at(str(tmp_path))).publish(0, {"outcomes": table})
        return tmp_path

    return put


def test_every_crash_point_is_in_the_matrix_once() -> None:
    assert [scenario.faults.partition("=")[0] for scenario in quick()] == crash_points()
    elsewhere = {scenario.faults.partition("=")[0] for scenario in BROKERS if scenario.faults}
    assert sorted({*crash_points(), *elsewhere}) == sorted(faults.POINTS)
    names = [scenario.name for scenario in everything()]
    assert len(names) == len(set(names))


def test_a_faultless_run_counts_as_right(publish: Callable[..., Path]) -> None:
    calls = [{"call_id": "a", "status": "ok"}, {"call_id": "b", "status": "unknown"}]
    counts = count(EVENTS, publish(outcome(0, 1, calls=calls), outcome(1, 2)), {"a": 1, "b": 1}, 3.0)
    assert counts.right
    assert (counts.outcomes, counts.in_flight_unknown, counts.recovery_s) == (2, 1, 2.0)


def test_a_lost_event_is_seen(publish: Callable[..., Path]) -> None:
    counts = count(EVENTS, publish(outcome(0, 1)), {}, None)
    assert (counts.right, counts.lost, counts.duplicate_outcomes) == (False, 1, 0)


def test_a_second_outcome_is_seen(publish: Callable[..., Path]) -> None:
    counts = count(EVENTS, publish(outcome(0, 1), outcome(1, 2), outcome(1, 3)), {}, None)
    assert (counts.right, counts.lost, counts.duplicate_outcomes) == (False, 0, 1)


def test_an_outcome_of_no_event_is_seen(publish: Callable[..., Path]) -> None:
    counts = count(EVENTS, publish(outcome(0, 1), outcome(1, 2), outcome(7, 3)), {}, None)
    assert (counts.right, counts.duplicate_outcomes) == (False, 1)


def test_a_call_that_ran_twice_is_seen(publish: Callable[..., Path]) -> None:
    counts = count(EVENTS, publish(outcome(0, 1), outcome(1, 2)), {"a": 2, "b": 1}, None)
    assert (counts.right, counts.finished_calls_rerun) == (False, 1)


def test_a_call_that_was_under_way_may_run_twice_where_the_scenario_says_so(publish: Callable[..., Path]) -> None:
    sink = publish(outcome(0, 1), outcome(1, 2))
    assert count(EVENTS, sink, {"a": 1, "b": 2}, None, finished={"a"}).right
    assert count(EVENTS, sink, {"a": 2, "b": 2}, None, finished={"a"}).finished_calls_rerun == 1


class Quiet:
    """A world in which everything is right, and only some faults fired."""

    def __init__(self, armed: str, fired: list[str], sink: Path) -> None:
        self.scenario = Scenario("quiet", lambda _: None, faults=armed)
        self.fired, self.sink, self.starts = fired, sink, 1

    def counts(self) -> Any:
        return count(EVENTS, self.sink, {}, None)

    def all_fired(self) -> list[str]:
        return self.fired


@pytest.mark.parametrize(
    ("armed", "fired", "problem"),
    [
        ("host.after_call=kill@6", ["host.after_call"], ""),
        ("host.after_call=kill@6", [], "did not fire: host.after_call"),
        ("task.after_offer=raisex2", ["task.after_offer"], "did not fire: task.after_offer.2"),
        ("", [], "no fault fired"),
    ],
)
def test_a_scenario_whose_fault_did_not_fire_fails(
    publish: Callable[..., Path], armed: str, fired: list[str], problem: str
) -> None:
    problems: list[str] = []
    _figures(Quiet(armed, fired, publish(outcome(0, 1), outcome(1, 2))), problems)  # type: ignore[arg-type]
    assert problems == ([problem] if problem else [])


def test_marks_are_those_that_the_faults_leave() -> None:
    assert _marks_of("a.b=kill@3,c.d=raise@2x3") == ["a.b", "c.d", "c.d.2", "c.d.3"]


@pytest.mark.parametrize("damage", [cut, flip])
def test_damage_changes_a_file(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"0123456789")
    damage(file)
    assert file.read_bytes() != b"0123456789"


def test_an_unknown_name_is_told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["chaos", "--only", "no such thing"])
    assert chaos.main() == 2
    assert "--list" in capsys.readouterr().err

"""What earlier versions stored still loads and means the same.

`tests/stored/version-<n>` holds, per schema version of AgentState, a state directory and the states of its sessions, each in
a file of its own, with what they must mean in `expected.json`. Version 1 is `checkpoints.busy(path, shards=2)` as it was in
version 0.1.0: its `hermes/` as it lay on disk (without `epochs/`), `agent_state.encode_state` of every session that was
committed, and `state.arrow.describe` of those. Never make one of these again: a new version gets a new directory.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hermes_spark.agent.turn import apply
from hermes_spark.state.agent_state import SCHEMA_VERSION, AgentState, decode_state
from hermes_spark.state.arrow import describe
from hermes_spark.state.journal_reader import read
from hermes_spark.state.records import Position, ShardRecord
from hermes_spark.state.storage import Storage
from hermes_spark.streaming.commit import Commit, CommitLog

STORED = Path(__file__).parents[1] / "stored"
VERSIONS = sorted(STORED.iterdir(), key=lambda path: int(path.name.removeprefix("version-")))


def holds(actual: Any, expected: Any) -> bool:
    """Whether `actual` is what was expected when it was stored; fields that were added since may have any value."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        return all(key in actual and holds(actual[key], value) for key, value in expected.items())
    if isinstance(expected, list) and isinstance(actual, list):
        return len(actual) == len(expected) and all(map(holds, actual, expected))
    return bool(actual == expected)


def expected_of(version: Path) -> dict[str, Any]:
    sessions = json.loads((version / "expected.json").read_text(encoding="utf-8"))
    return {session["session_id"]: session for session in sessions}


def last_commit(version: Path) -> Commit:
    last = CommitLog(Storage.at(str(version / "hermes"))).last()
    assert last is not None
    return last


def folded(version: Path) -> dict[str, AgentState]:
    states: dict[str, AgentState] = {}
    for shard, end in last_commit(version).positions.items():
        for _, record in read(version / "hermes", shard, Position(), end):
            if not isinstance(record, ShardRecord):
                states[record.session_id] = apply(states.get(record.session_id), record)
    return states


def check(states: dict[str, AgentState], version: Path) -> None:
    expected = expected_of(version)
    assert states.keys() == expected.keys()
    for session_id, state in states.items():
        now = {**expected[session_id], "schema_version": SCHEMA_VERSION}
        assert holds(describe(state), now), session_id


def test_every_version_is_kept():
    assert [path.name for path in VERSIONS] == [f"version-{n}" for n in range(1, SCHEMA_VERSION + 1)]


@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.name)
def test_stored_states_load(version):
    states = [decode_state(file.read_bytes()) for file in (version / "states").iterdir()]
    check({state.session_id: state for state in states}, version)


@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.name)
def test_stored_journals_fold_to_the_same_states(version):
    check(folded(version), version)


def test_the_stored_journals_hold_records_of_every_kind():
    version = VERSIONS[0]
    positions = last_commit(version).positions
    kinds = {
        type(record).__name__
        for s, end in positions.items()
        for _, record in read(version / "hermes", s, Position(), end)
    }
    assert kinds == {"TermStarted", "Taken", "Rejected", "Completed", "Intent", "Returned", "Overdue", "Outcome"}

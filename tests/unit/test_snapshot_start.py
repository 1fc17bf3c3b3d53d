"""Reading a checkpoint whose journal was pruned: from a snapshot, to the same sessions as were lived through."""

from pathlib import Path

import pytest

from hermes_spark.agent.turn import apply
from hermes_spark.errors import JournalCorrupt
from hermes_spark.settings import Settings, StateSettings
from hermes_spark.state.journal_reader import JournalReader
from hermes_spark.state.records import Position, ShardRecord
from hermes_spark.state.retention import Retention
from hermes_spark.state.storage import Storage
from hermes_spark.streaming.snapshot_start import Start, start_of
from opened import Opened, rocks_in

SMALL_FILES = Settings(state=StateSettings(journal_file_bytes=2_000))


@pytest.fixture
def pruned(tmp_path: Path) -> Opened:
    """A shard with two snapshots, and turns behind them, whose journal was pruned as far as that allows."""
    opened = Opened(tmp_path, 1, settings=SMALL_FILES, store=rocks_in)
    for _ in range(4):
        for session in "abc":
            opened.turn(session)
        opened.snapshot()
    opened.turn("a")
    assert Retention(tmp_path, 0, Storage.at(str(tmp_path))).prune(opened.shard.position()) > 0
    return opened


def test_nothing_is_skipped_while_the_journal_is_whole(tmp_path: Path) -> None:
    opened = Opened(tmp_path, 1, store=rocks_in)
    opened.turn("a")
    opened.snapshot()
    assert start_of(tmp_path, 0, 16, opened.shard.position()) == Start(Position(), {})


def test_a_pruned_journal_is_read_from_the_older_snapshot(pruned: Opened, tmp_path: Path) -> None:
    end = pruned.shard.position()
    position, states = start_of(tmp_path, 0, 16, end)
    assert 0 < position.lsn < end.lsn
    for _, record in JournalReader(tmp_path, 0).read(position, end):
        if not isinstance(record, ShardRecord):
            state = apply(states.get(record.session_id), record)
            assert state is not None
            states[record.session_id] = state
    assert states == pruned.picture("abc")[0]


def test_a_damaged_snapshot_is_passed_over_and_without_any_the_shard_is_named(pruned: Opened, tmp_path: Path) -> None:
    end = pruned.shard.position()
    newest, older = pruned.snapshots.newest_first()
    first = start_of(tmp_path, 0, 16, end).position
    (tmp_path / older).write_bytes(b"")
    assert start_of(tmp_path, 0, 16, end).position.lsn > first.lsn
    (tmp_path / newest).write_bytes(b"")
    with pytest.raises(
        JournalCorrupt, match=r"Shard 0 cannot be read up to record \d+: records up to \d+ were removed"
    ):
        start_of(tmp_path, 0, 16, end)


def test_a_moment_before_all_snapshots_is_refused(pruned: Opened, tmp_path: Path) -> None:
    with pytest.raises(JournalCorrupt, match="choose a later batch"):
        start_of(tmp_path, 0, 16, Position(2, pruned.shard.position().term, "00"))

"""A checkpoint as of a commit: what is read, that nothing is written, and what is said when there is nothing to read."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkpoints import Checkpoint, busy
from hermes_spark.errors import CheckpointMismatch, JournalCorrupt, SettingsError
from hermes_spark.state.agent_state import AgentState
from hermes_spark.state.records import Position
from hermes_spark.streaming.committed import Committed


@pytest.fixture
def made(tmp_path) -> Checkpoint:
    return busy(tmp_path)


def sessions(committed: Committed) -> dict[str, AgentState]:
    return {state.session_id: state for shard in committed.shards for state in committed.sessions(shard)}


def files(root: Path) -> dict[str, tuple[int, int, bytes]]:
    """Everything below a directory, with sizes, times of change and bytes."""
    return {
        str(path.relative_to(root)): (
            path.stat().st_ino,
            path.stat().st_mtime_ns,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in [root, *root.rglob("*")]
    }


def test_the_last_commit_has_what_was_lived_through(made):
    expected = {name: state for name, state in made.states.items() if name != "s-late"}
    committed = Committed.at(str(made.path))
    assert committed.commit.batch == 2
    assert sessions(committed) == expected
    for name, state in expected.items():
        assert committed.session(name) == state


def test_earlier_batches_are_seen_as_they_were(made):
    at = [sessions(Committed.at(str(made.path), batch)) for batch in range(3)]
    assert [sorted(each) for each in at] == [
        ["s-reset", "张三"],
        ["s-open", "s-reset", "张三"],
        ["s-cancel", "s-open", "s-reset", "张三"],
    ]
    assert [each["张三"].turns for each in at] == [1, 2, 3]
    assert at[0]["s-reset"].messages
    assert not at[1]["s-reset"].messages
    assert at[1]["s-open"].turn.stopping == ""
    assert at[2]["s-open"].turn.stopping


def test_what_comes_after_the_commit_is_not_read(made):
    before = sessions(Committed.at(str(made.path)))
    for journal in made._journals.values():
        journal.flush()
    assert sessions(Committed.at(str(made.path))) == before
    made.commit()
    assert "s-late" in sessions(Committed.at(str(made.path)))


def test_a_torn_tail_behind_the_commit_does_not_matter(made):
    for path in made.root.rglob("*.log"):
        with path.open("ab") as file:
            file.write(b"half a frame")
    assert len(sessions(Committed.at(str(made.path)))) == 4


def test_nothing_is_written(made):
    before = files(made.path)
    for batch in (None, 0, 1):
        sessions(Committed.at(str(made.path), batch))
    assert files(made.path) == before


def test_a_job_goes_on_beside_the_reader(made):
    committed = Committed.at(str(made.path))
    lazily = committed.records(committed.shard_of("张三"), Position())
    next(lazily)
    made.turn("张三", "while it is read")
    made.commit()
    made.start_term()
    made.turn("张三", "and by a new owner")
    made.commit()
    assert len(list(lazily)) > 0
    assert committed.session("张三").turns == 3
    assert Committed.at(str(made.path)).session("张三").turns == 5


def test_the_state_can_be_named_itself(made, tmp_path):
    expected = sessions(Committed.at(str(made.path)))
    assert sessions(Committed.at(str(made.root))) == expected
    assert sessions(Committed.at(made.path.as_uri())) == expected
    odd = tmp_path / "with space %20"
    made.path.rename(odd)
    assert sessions(Committed.at(str(odd))) == sessions(Committed.at(odd.as_uri())) == expected


@pytest.mark.parametrize("where", ["", "nowhere", "s3://bucket/checkpoint"])
def test_no_checkpoint(tmp_path, where, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match=where or "The empty path"):
        Committed.at(where)
    assert list(tmp_path.iterdir()) == []


def test_no_such_batch(made, tmp_path):
    with pytest.raises(SettingsError, match="no commit of batch 3; those of batches 0 to 2 are kept"):
        Committed.at(str(made.path), 3)
    fresh = Checkpoint(tmp_path / "fresh")
    with pytest.raises(SettingsError, match="no commit yet"):
        Committed.at(str(fresh.path))
    with pytest.raises(SettingsError, match="no commit yet"):
        Committed.at(str(fresh.path), 0)


def test_no_such_session(made):
    with pytest.raises(SettingsError, match="no session 's-late' at batch 2"):
        Committed.at(str(made.path)).session("s-late")


def test_a_format_of_another_version(made):
    (made.root / "meta.json").write_text('{"format": 2, "query_id": "q", "shards": 4, "routing": 1}')
    with pytest.raises(CheckpointMismatch, match="format 2"):
        Committed.at(str(made.path))


def test_a_damaged_journal_is_named(made):
    committed = Committed.at(str(made.path))
    shard = committed.shard_of("张三")
    path = max((made.root / "journal" / f"{shard:04d}").rglob("*.log"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(JournalCorrupt, match=path.name):
        committed.session("张三")

"""Pruning: nothing goes that a snapshot, a commit or a reader needs, and what is left is checked as before."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_spark import faults
from hermes_spark.errors import CheckpointMismatch, Fenced, JournalCorrupt, StateError
from hermes_spark.settings import Settings, StateSettings
from hermes_spark.state.journal import read
from hermes_spark.state.records import Position, TermId
from hermes_spark.state.retention import Retention, floors, forget_reader, name_reader
from hermes_spark.state.snapshots import Contents, ShardMemory, ShardSnapshots
from hermes_spark.state.storage import Storage
from hermes_spark.streaming.commit import Commit
from hermes_spark.streaming.pruning import INTERVAL_S, Pruner
from journaling import SHARD, append_groups, directory, open_term
from opened import Opened, counted

NOTHING = Contents(ShardMemory(), ())


def journal_files(root: Path, shard: int = SHARD) -> list[Path]:
    return sorted((root / "journal" / f"{shard:04d}").rglob("*.log"))


def written(root: Path, terms: list[list[int]], file_bytes: int = 300) -> list[Position]:
    """A journal of several terms and files; all its positions."""
    positions: list[Position] = []
    for counter, sizes in enumerate(terms, 1):
        journal = open_term(root, TermId(1, counter), file_bytes=file_bytes)
        positions += [journal.position(), *append_groups(journal, sizes)]
        journal.close()
    return positions


def snapshot_at(root: Path, *positions: Position) -> ShardSnapshots:
    snapshots = ShardSnapshots(Storage.at(str(root)), SHARD)
    empty = root / "empty"
    empty.mkdir(exist_ok=True)
    for position in positions:
        snapshots.write(empty, NOTHING, position, 1)
    return snapshots


def retention(root: Path) -> Retention:
    return Retention(root, SHARD, Storage.at(str(root)))


@settings(max_examples=40, deadline=None)
@given(
    terms=st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=6), min_size=1, max_size=3),
    data=st.data(),
)
def test_pruning_keeps_whatever_is_needed_and_no_file_more(terms: list[list[int]], data: st.DataObject) -> None:
    with directory() as root:
        positions = written(root, terms)
        everything = list(read(root, SHARD, Position(), None))
        one = st.sampled_from(positions)
        rounds = data.draw(st.lists(st.tuples(st.lists(one, max_size=2), one, one), min_size=1, max_size=3))
        pruner, floor, taken = retention(root), 0, set[Position]()
        for snapshots, needed, reader in rounds:
            snapshot_at(root, *snapshots)
            taken |= set(snapshots)
            name_reader(Storage.at(str(root)), "export", {SHARD: reader})
            newest = sorted(position.lsn for position in taken)[-2:]
            pruned = pruner.prune(needed)
            if len(newest) == 2:
                floor = max(floor, min(newest[0], needed.lsn, reader.lsn))
            assert pruned < max(floor, 1)
            first = journal_files(root)
            assert int(first[0].stem) == pruned + 1
            kept_from = [position for position in positions if position.lsn >= floor]
            for position in kept_from:
                assert list(read(root, SHARD, position, None)) == everything[position.lsn :]
            # The first file that is left holds the floor: the second one begins behind it.
            assert not floor or all(int(path.stem) > floor for path in first[1:] if int(path.stem) != pruned + 1)
            if pruned:
                with pytest.raises(CheckpointMismatch, match=f"retention has removed everything up to record {pruned}"):
                    list(read(root, SHARD, Position(), None))
        journal = open_term(root, TermId(9, 1), known_end=positions[-1].lsn)
        assert journal.previous == positions[-1]


def pruned_journal(root: Path) -> list[Position]:
    """Three terms of several files each, pruned up to somewhere in the second."""
    positions = written(root, [[1] * 8] * 3)
    snapshot_at(root, positions[14], positions[20])
    assert 9 <= retention(root).prune(positions[-1]) < 14
    return positions


def test_a_file_that_is_missing_otherwise_stays_corruption(tmp_path: Path) -> None:
    positions = pruned_journal(tmp_path)
    first, second, *_ = journal_files(tmp_path)
    whole = first.read_bytes()
    first.unlink()
    with pytest.raises(JournalCorrupt, match=f"begins with record {int(first.stem)} is missing; restore it"):
        list(read(tmp_path, SHARD, positions[20], None))
    first.write_bytes(whole)
    second.unlink()
    with pytest.raises(JournalCorrupt, match=first.name):
        list(read(tmp_path, SHARD, positions[14], None))


def test_a_mark_that_is_missing_is_no_licence(tmp_path: Path) -> None:
    positions = pruned_journal(tmp_path)
    (mark,) = (tmp_path / "journal" / "0003").glob("*.pruned")
    mark.unlink()
    with pytest.raises(JournalCorrupt, match="whose file is missing"):
        list(read(tmp_path, SHARD, Position(), None))
    assert list(read(tmp_path, SHARD, positions[20], None))


@pytest.mark.parametrize("point", sorted(name for name in faults.POINTS if name.startswith("retention.")))
@pytest.mark.parametrize("passage", [1, 2, 3])
def test_dying_while_pruning_leaves_a_journal_and_the_next_round_goes_on(
    tmp_path: Path, point: str, passage: int
) -> None:
    positions = written(tmp_path, [[1] * 8] * 3)
    everything = list(read(tmp_path, SHARD, Position(), None))
    snapshot_at(tmp_path, positions[14], positions[20])
    faults.arm(f"{point}=raise@{passage}")
    try:
        if (point, passage) in (("retention.after_mark", 2), ("retention.after_mark", 3)):
            retention(tmp_path).prune(positions[-1])
        else:
            with pytest.raises(faults.InjectedFault):
                retention(tmp_path).prune(positions[-1])
    finally:
        faults.arm("")
    assert list(read(tmp_path, SHARD, positions[14], None)) == everything[positions[14].lsn :]
    with pytest.raises(CheckpointMismatch, match="retention has removed"):  # on purpose: no corruption
        list(read(tmp_path, SHARD, Position(), None))
    pruned = retention(tmp_path).prune(positions[-1])
    assert int(journal_files(tmp_path)[0].stem) == pruned + 1
    assert list(read(tmp_path, SHARD, positions[14], None)) == everything[positions[14].lsn :]


def test_the_second_newest_counts_only_when_it_is_whole(tmp_path: Path) -> None:
    positions = written(tmp_path, [[1] * 8] * 3)
    before = journal_files(tmp_path)
    snapshots = snapshot_at(tmp_path, positions[14], positions[20])
    stored = snapshots.load(snapshots.newest_first()[1]).files[0].stored
    (tmp_path / "snapshots" / "0003" / "files" / stored).write_bytes(b"")
    unusable = counted("unusable")
    pruner = retention(tmp_path)
    assert [pruner.prune(positions[-1]) for _ in range(3)] == [0, 0, 0]
    assert counted("unusable") - unusable == 1
    assert journal_files(tmp_path) == before
    snapshot_at(tmp_path, positions[24])
    assert 14 <= pruner.prune(positions[-1]) < 20
    assert len(snapshots.newest_first()) == 2


def test_a_snapshot_that_a_seal_made_void_counts_for_nothing(tmp_path: Path) -> None:
    positions = written(tmp_path, [[1] * 8] * 3)
    end = positions[8]
    assert end.term == TermId(1, 1)
    snapshot_at(tmp_path, positions[4], Position(end.lsn + 1, end.term, end.chain))
    assert retention(tmp_path).prune(positions[-1]) == 0


def test_a_reader_that_is_forgotten_keeps_nothing(tmp_path: Path) -> None:
    positions, state = written(tmp_path, [[1] * 8] * 3), Storage.at(str(tmp_path))
    snapshot_at(tmp_path, positions[14], positions[20])
    name_reader(state, "export", {SHARD: positions[2], 5: Position()})
    assert retention(tmp_path).prune(positions[-1]) < 3
    state.put("readers/broken.json", b"{")
    with pytest.raises(StateError, match=r"readers/broken.json cannot be read"):
        retention(tmp_path).prune(positions[-1])
    forget_reader(state, "broken")
    forget_reader(state, "export")
    assert retention(tmp_path).prune(positions[-1]) >= 9


SMALL_FILES = Settings(state=StateSettings(journal_file_bytes=2_000))


def served(root: Path) -> Opened:
    """A shard with two snapshots whose journal was pruned as far as that allows."""
    opened = Opened(root, 1, settings=SMALL_FILES)
    for _ in range(4):
        for session in "abc":
            opened.turn(session)
        opened.snapshot()
    opened.turn("a")
    assert Retention(root, 0, Storage.at(str(root))).prune(opened.shard.position()) > 0
    assert len(opened.snapshots.newest_first()) == 2
    return opened


def test_a_pruned_shard_opens_from_either_snapshot_and_stops_without_both(tmp_path: Path) -> None:
    opened = served(tmp_path)
    now = opened.picture("abc")
    opened.crash()
    newest, older = opened.snapshots.newest_first()
    for term, lost in enumerate([None, newest], 2):
        if lost is not None:
            (tmp_path / lost).write_bytes(b"")
        again = Opened(tmp_path, term, settings=SMALL_FILES)
        assert again.picture("abc") == now
        again.crash()
    (tmp_path / older).write_bytes(b"")
    with pytest.raises(
        JournalCorrupt, match=r"No snapshot .* were removed because two could; restore it from a backup"
    ):
        Opened(tmp_path, 4, settings=SMALL_FILES)


def test_an_owner_that_was_overtaken_while_it_opened_is_fenced_and_tells_of_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Opened(tmp_path, 1, settings=SMALL_FILES)
    opened.turn("a")
    opened.crash()
    real = ShardSnapshots.newest_first

    def overtaken(self: ShardSnapshots) -> list[str]:
        """Found no snapshot; then a newer owner served, took two, and the journal was pruned."""
        found = real(self)
        monkeypatch.setattr(ShardSnapshots, "newest_first", real)
        newer = Opened(tmp_path, 3, settings=SMALL_FILES)
        for _ in range(4):
            newer.turn("b")
            newer.snapshot()
        assert Retention(tmp_path, 0, Storage.at(str(tmp_path))).prune(newer.shard.position()) > 0
        return found

    monkeypatch.setattr(ShardSnapshots, "newest_first", overtaken)
    with pytest.raises(Fenced, match="is newer"):
        Opened(tmp_path, 2, settings=SMALL_FILES)


def commit(batch: int, lsn: int, published: int) -> Commit:
    term = TermId(1, 1)
    return Commit(batch, 1, "", {}, {0: Position(lsn, term)}, {0: Position(published, term)}, True, 0, 0, 0)


def test_the_driver_prunes_to_what_neither_the_last_two_commits_nor_their_publishing_need() -> None:
    asked: list[int] = []
    now = [0.0]

    class Noting(Retention):
        def __init__(self) -> None:
            pass

        def prune(self, needed: Position) -> int:
            asked.append(needed.lsn)
            return 0

    pruner = Pruner({0: Noting()}, lambda: now[0])
    for batch in range(6):
        now[0] += INTERVAL_S / 2
        pruner.committed(commit(batch, 100 * batch + 50, max(0, 100 * batch - 75)))
        if pruner.round is not None:
            pruner.round.result(10)
    # At batch 2: position of batch 0 is 50, batch 1 publishes from 25. At batch 4: 250 and 225. Batches 3 and 5: too soon.
    assert asked == [25, 225]
    pruner.close()


def test_a_shard_that_a_commit_does_not_name_is_not_pruned() -> None:
    at = Position(5, TermId(1, 1))
    assert floors({0: at, 1: at}, {0: Position(3, TermId(1, 1))}) == {0: Position(3, TermId(1, 1))}
    assert floors({0: at}, {}) == {}


def test_at_whatever_place_of_a_file_the_floor_lies_it_stays_readable(tmp_path: Path) -> None:
    positions = written(tmp_path, [[1, 2, 1, 1, 3, 1]] * 3)
    everything = list(read(tmp_path, SHARD, Position(), None))
    snapshot_at(tmp_path, *positions[-2:])
    pruner = retention(tmp_path)
    for floor in positions[:-1]:
        assert pruner.prune(floor) < floor.lsn
        assert list(read(tmp_path, SHARD, floor, None)) == everything[floor.lsn :]
    assert len(journal_files(tmp_path)) <= 2

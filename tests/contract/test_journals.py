"""What holds for every journal, wherever it is kept: files, objects in memory, objects on a real S3-compatible server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_spark.errors import CheckpointMismatch, Fenced, JournalCorrupt, StateError
from hermes_spark.state.journal import ShardJournal, flush_all
from hermes_spark.state.records import Overdue, Position, TermId, TermStarted
from journal_places import Place, WatchedStorage, in_files, in_objects
from journaling import T1, T2, T3, append_groups, directory, fact, lsns_of_facts
from object_server import s3_bucket


@pytest.fixture(params=["files", "memory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "files":
        return in_files(tmp_path)
    if request.param == "memory":
        return in_objects(WatchedStorage())
    return in_objects(s3_bucket(request.getfixturevalue("s3_server")).storage())


@contextlib.contextmanager
def quick_place(kind: str) -> Iterator[Place]:
    """A fresh place for each of many examples."""
    if kind == "files":
        with directory() as root:
            yield in_files(root)
    else:
        yield in_objects(WatchedStorage())


def test_what_is_flushed_comes_back_with_its_positions(place: Place) -> None:
    journal, past = place.open(T1)
    assert (list(past), journal.previous, journal.durable_lsn) == ([], Position(), 1)
    assert [position.lsn for position in append_groups(journal, [2, 1, 3])] == [3, 4, 7]
    journal.append(fact(8))
    assert (journal.dirty, journal.position().term) == (True, T1)
    journal.close()
    with pytest.raises(StateError, match="closed"):
        journal.append(fact(9))
    again, past = place.open(T2, known_end=7)
    found = list(past)
    assert found[0] == (1, TermStarted(T1, Position(), 7))
    assert lsns_of_facts(found) == [2, 3, 4, 5, 6, 7]
    assert (again.previous, again.position().term, again.durable_lsn) == (journal.position(), T2, 8)


def test_all_kinds_give_the_same_records_the_same_positions(tmp_path: Path) -> None:
    seen = []
    for place in (in_files(tmp_path), in_objects(WatchedStorage())):
        positions = []
        for term in (T1, T2, T3):
            journal = place.open_term(term)
            positions += [journal.position(), *append_groups(journal, [1, 2])]
        seen.append((positions, place.read(Position(), None)))
    assert seen[0] == seen[1]


def test_groups_of_several_shards_are_flushed_in_one_round_while_their_loop_goes_on(place: Place) -> None:
    journals = [place.journals.open(shard, T1, now_ms=7).journal for shard in range(5)]
    for journal in journals:
        journal.append(fact(2))
    groups = [group for journal in journals if (group := journal.take_group()) is not None]
    journals[0].append(fact(3))
    for flushed in flush_all(groups):
        flushed.group.journal.confirm(flushed)
    assert [(journal.durable_lsn, journal.dirty) for journal in journals] == [(2, True), *[(2, False)] * 4]
    journals[0].flush()
    for shard, journal in enumerate(journals):
        records = list(place.journals.reader(shard).read(Position(), journal.position()))
        assert lsns_of_facts(records) == ([2, 3] if shard == 0 else [2])


def test_a_large_group_is_one_group(place: Place) -> None:
    journal = place.open_term(T1)
    large = Overdue("s", "x" * 6_000_000, 1)
    journal.append(large)
    journal.flush()
    assert place.read(Position(), journal.position())[1] == (2, large)


def test_the_owner_before_is_fenced_at_its_next_flush_and_what_it_appends_is_void(place: Place) -> None:
    old = place.open_term(T1)
    append_groups(old, [2])
    new = place.open_term(T2)
    assert new.previous == old.position()
    old.append(fact(4))
    with pytest.raises(Fenced, match="Term 00000001-00000001 owns this shard no more"):
        old.flush()
    with pytest.raises(Fenced):
        old.append(fact(5))
    assert old.durable_lsn == 3
    append_groups(new, [1])
    assert lsns_of_facts(place.past_of(T3)) == [2, 3, 5]


@pytest.mark.parametrize("second", [T1, T2])
def test_a_term_that_is_not_newer_is_refused_and_harms_nobody(place: Place, second: TermId) -> None:
    owner = place.open_term(T2)
    with pytest.raises(Fenced):
        place.open_term(second)
    append_groups(owner, [1])
    assert lsns_of_facts(place.past_of(T3)) == [2]


def test_a_death_in_the_middle_of_a_write_leaves_the_groups_before(place: Place) -> None:
    append_groups(place.open_term(T1), [2])
    place.leave_torn()
    append_groups(place.open_term(T2, known_end=3), [1])
    assert lsns_of_facts(place.past_of(T3)) == [2, 3, 5]


def flush_fails(journal: ShardJournal) -> bool:
    """Append and flush one fact; True when the owner finds out that it is fenced, or is dead."""
    try:
        append_groups(journal, [1])
    except StateError:
        return True
    return False


@pytest.mark.parametrize("kind", ["files", "memory"])
@settings(max_examples=60)
@given(steps=st.lists(st.sampled_from(["old", "new", "torn", "take"]), max_size=12))
def test_whatever_the_interleaving_acknowledged_groups_stay_and_fenced_ones_vanish(kind: str, steps: list[str]) -> None:
    with quick_place(kind) as place:
        owners, acknowledged = [place.open_term(T1)], []
        for step in steps:
            if step == "take":
                owners.append(place.open_term(TermId(1, len(owners) + 1)))
            elif step == "torn":
                owners[-1].close()
                place.leave_torn()
            else:
                owner = owners[-1] if step == "new" else owners[0]
                if not flush_fails(owner):
                    acknowledged.append(owner.durable_lsn)
        assert lsns_of_facts(place.past_of(T3)) == acknowledged


def test_a_journal_that_ends_below_a_commit_has_lost_records(place: Place) -> None:
    with pytest.raises(JournalCorrupt, match=r"3 was committed; restore"):
        place.open_term(T1, known_end=3)
    place.open_term(T2)
    append_groups(place.open_term(T3), [2])
    assert place.past_of(TermId(3, 1), known_end=4)
    with pytest.raises(JournalCorrupt, match=r"6 was committed; restore"):
        place.open_term(TermId(3, 2), known_end=6)


@pytest.mark.parametrize("kind", ["files", "memory"])
@settings(max_examples=120)
@given(data=st.data())
def test_a_flipped_bit_never_gives_a_wrong_record_nor_loses_a_committed_one(kind: str, data: st.DataObject) -> None:
    with quick_place(kind) as place:
        append_groups(place.open_term(T1), [2, 1])
        append_groups(place.open_term(T2), [2])
        part = data.draw(st.sampled_from(place.parts()), label="part")
        content = bytearray(place.get(part))
        bit = data.draw(st.integers(0, len(content) * 8 - 1), label="bit")
        content[bit // 8] ^= 1 << bit % 8
        place.put(part, bytes(content))
        committed = data.draw(st.sampled_from([0, 4, 7]), label="committed")
        with contextlib.suppress(JournalCorrupt):
            found = lsns_of_facts(place.past_of(T3, committed))
            assert found == [lsn for lsn in (2, 3, 4, 6, 7) if lsn <= (found or [0])[-1]]
            assert (found or [0])[-1] >= committed


def test_a_missing_part_is_named(place: Place) -> None:
    for term in (T1, T2, T3):
        journal = place.open_term(term)
        append_groups(journal, [1])
    middle = place.parts()[len(place.parts()) // 2]
    place.delete(middle)
    with pytest.raises(JournalCorrupt, match=r"missing.*restore it from a backup"):
        place.read(Position(), journal.position())


# reading


@pytest.fixture
def three_terms(place: Place) -> list[Position]:
    """Positions after each group of three terms; LSNs 1, 4, 8 begin the terms."""
    positions = []
    for term in (T1, T2, T3):
        journal = place.open_term(term)
        positions += [journal.position(), *append_groups(journal, [2, 1])]
        journal.close()
    return positions


def test_reading_between_any_two_positions_across_terms(place: Place, three_terms: list[Position]) -> None:
    everything = place.read(Position(), None)
    assert lsns_of_facts(everything) == [2, 3, 4, 6, 7, 8, 10, 11, 12]
    positions = [Position(), *three_terms]
    reader = place.reader()
    for at, after in enumerate(positions):
        for upto in positions[at:]:
            assert list(reader.read(after, upto)) == everything[after.lsn : upto.lsn]
            assert list(reader.read(upto, None)) == everything[upto.lsn :]


def test_a_reader_stops_at_its_end_while_the_owner_goes_on(place: Place) -> None:
    journal, reader = place.open_term(T1), place.reader()
    (first,) = append_groups(journal, [2])
    append_groups(journal, [1])
    assert [lsn for lsn, _ in reader.read(Position(), first)] == [1, 2, 3]
    assert list(reader.read(first, first)) == []
    (third,) = append_groups(journal, [1])
    assert [lsn for lsn, _ in reader.read(first, third)] == [4, 5]
    new = place.open_term(T2)
    assert [lsn for lsn, _ in reader.read(third, new.position())] == [6]


def bad_positions(positions: list[Position]) -> dict[str, Position]:
    good = positions[4]
    return {
        "other chain": Position(good.lsn, good.term, "0" * 32),
        "other term": Position(good.lsn, T1, good.chain),
        "unknown term": Position(good.lsn, TermId(1, 9), good.chain),
        "inside a group": Position(good.lsn - 1, good.term, good.chain),
        "before its term": Position(2, good.term, good.chain),
        "behind the end": Position(99, T3, good.chain),
        "other chain at the end": Position(12, T3, good.chain),
    }


@pytest.mark.parametrize("remembered", [0, 3, 8])
def test_a_position_off_the_chain_is_refused(place: Place, three_terms: list[Position], remembered: int) -> None:
    for bad in bad_positions(three_terms).values():
        reader = place.reader()
        list(reader.read(Position(), three_terms[remembered]))
        for after, upto in ((three_terms[0], bad), (bad, three_terms[8]), (bad, bad), (bad, None)):
            with pytest.raises((CheckpointMismatch, JournalCorrupt)):
                list(reader.read(after, upto))
        assert lsns_of_facts(list(reader.read(Position(), three_terms[8])))


def test_a_journal_without_anything_is_empty(place: Place) -> None:
    assert place.read(Position(), None) == place.read(Position(), Position()) == []
    with pytest.raises((CheckpointMismatch, JournalCorrupt)):
        place.read(Position(), Position(1, T1, "0" * 32))

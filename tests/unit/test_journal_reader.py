"""Reading between positions across terms, and refusing positions that do not lie on the chain."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from hermes_spark.errors import CheckpointMismatch, JournalCorrupt
from hermes_spark.state.journal import JournalReader, flush_all, read
from hermes_spark.state.records import Position, TermId
from journaling import SHARD, T1, T2, T3, append_groups, fact, file_of_term, lsns_of_facts, open_term, past_of


@pytest.fixture
def three_terms(tmp_path: Path) -> list[Position]:
    """Positions after each group of three terms; LSNs 1, 4, 8 begin the terms."""
    positions = []
    for term in (T1, T2, T3):
        journal = open_term(tmp_path, term)
        positions += [journal.position(), *append_groups(journal, [2, 1])]
        journal.close()
    return positions


def test_reading_between_any_two_positions_across_terms(tmp_path: Path, three_terms: list[Position]) -> None:
    everything = [(lsn, record) for lsn, record in read(tmp_path, SHARD, Position(), None)]
    assert lsns_of_facts(everything) == [2, 3, 4, 6, 7, 8, 10, 11, 12]
    positions = [Position(), *three_terms]
    for at, after in enumerate(positions):
        reader = JournalReader(tmp_path, SHARD)
        assert list(reader.read(Position(), after)) == everything[: after.lsn]
        for upto in positions[at:]:
            expected = everything[after.lsn : upto.lsn]
            assert list(read(tmp_path, SHARD, after, upto)) == expected
        for before, upto in zip(positions[at:], positions[at + 1 :], strict=False):
            assert list(reader.read(before, upto)) == everything[before.lsn : upto.lsn]


def test_a_reader_that_advances_does_not_read_what_it_has_read(
    tmp_path: Path, three_terms: list[Position], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = JournalReader(tmp_path, SHARD)
    list(reader.read(Position(), three_terms[7]))
    path = file_of_term(tmp_path, T3)
    offsets: list[int] = []
    real = os.pread

    def pread(fd: int, length: int, offset: int) -> bytes:
        offsets.append(offset)
        return real(fd, length, offset)

    monkeypatch.setattr(os, "pread", pread)
    assert [lsn for lsn, _ in reader.read(three_terms[7], three_terms[8])] == [12]
    header, *groups = offsets
    assert header == 0
    assert min(groups) > path.stat().st_size / 2


def test_a_reader_stops_at_its_end_while_the_owner_goes_on(tmp_path: Path) -> None:
    journal = open_term(tmp_path, T1)
    reader = JournalReader(tmp_path, SHARD)
    (first,) = append_groups(journal, [2])
    journal.append(fact(4))
    group = journal.take_group()
    assert group is not None
    flush_all([group])
    assert [lsn for lsn, _ in reader.read(Position(), first)] == [1, 2, 3]
    assert list(reader.read(first, first)) == []


def bad_positions(positions: list[Position]) -> dict[str, Position]:
    good = positions[4]
    return {
        "other chain": Position(good.lsn, good.term, "0" * 32),
        "other term": Position(good.lsn, T1, good.chain),
        "unknown term": Position(good.lsn, TermId(1, 9), good.chain),
        "inside a group": Position(good.lsn - 1, good.term, good.chain),
        "before its term": Position(2, good.term, good.chain),
        "behind the end": Position(99, T3, good.chain),
    }


@pytest.mark.parametrize("name", list(bad_positions([Position()] * 9)))
@pytest.mark.parametrize("remembered", [0, 3, 8])
def test_a_position_off_the_chain_is_refused(
    tmp_path: Path, three_terms: list[Position], name: str, remembered: int
) -> None:
    bad = bad_positions(three_terms)[name]
    errors = (CheckpointMismatch, JournalCorrupt)
    reader = JournalReader(tmp_path, SHARD)
    list(reader.read(Position(), three_terms[remembered]))
    with pytest.raises(errors):
        list(reader.read(three_terms[0], bad))
    with pytest.raises(errors):
        list(reader.read(bad, three_terms[8]))
    with pytest.raises(errors):
        list(reader.read(bad, bad))


def test_damage_between_and_in_terms_names_the_file(tmp_path: Path, three_terms: list[Position]) -> None:
    middle = file_of_term(tmp_path, T2)
    whole = middle.read_bytes()
    middle.write_bytes(whole[:200])
    with pytest.raises(JournalCorrupt, match=f"{middle} is damaged at byte"):
        past_of(tmp_path, TermId(3, 1))
    shutil.rmtree(middle.parent)
    with pytest.raises(JournalCorrupt, match="whose file is missing"):
        list(read(tmp_path, SHARD, Position(), three_terms[8]))
    other = tmp_path / "journal" / "0004"
    shutil.copytree(tmp_path / "journal" / f"{SHARD:04d}", other)
    with pytest.raises(JournalCorrupt, match="belongs to another shard"):
        list(read(tmp_path, 4, Position(), None))

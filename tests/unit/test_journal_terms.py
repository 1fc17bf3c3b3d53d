"""The journal across owners: sealing, and rivals that open at the same time."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_spark.errors import Fenced, HermesError, StateError
from hermes_spark.state import takeover
from hermes_spark.state.journal import ShardJournal, flush_all
from hermes_spark.state.records import TermId
from journaling import (
    T1,
    T2,
    T3,
    append_groups,
    directory,
    fact,
    file_of_term,
    lsns_of_facts,
    open_term,
    past_of,
)


def flush_fails(journal: ShardJournal, lsn: int) -> bool:
    """Append and flush one fact; True when the owner finds out that it is fenced, or is dead."""
    try:
        journal.append(fact(lsn))
        journal.flush()
    except StateError:
        return True
    return False


def test_a_group_before_the_seal_counts_and_one_after_it_does_not(tmp_path: Path) -> None:
    old = open_term(tmp_path, T1)
    append_groups(old, [2])
    new = open_term(tmp_path, T2)
    assert new.previous == old.position()
    old.append(fact(4))
    with pytest.raises(Fenced, match=r"Term 00000001-00000001 owns this shard no more: another owner has appended"):
        old.flush()
    with pytest.raises(Fenced):
        old.append(fact(5))
    assert old.durable_lsn == 3
    new.append(fact(5))
    new.flush()
    assert lsns_of_facts(past_of(tmp_path, T3)) == [2, 3, 5]


@pytest.mark.parametrize("seal_before", ["write", "sync", "confirm"])
def test_a_seal_in_the_middle_of_a_group_commit(
    tmp_path: Path, seal_before: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between write and sync the group counts although its owner is fenced: acknowledging less than what counts is safe."""
    old = open_term(tmp_path, T1)
    old.append(fact(2))
    group = old.take_group()
    assert group is not None
    real = os.fdatasync
    opened: list[ShardJournal | None] = []

    def sync(fd: int) -> None:
        if not opened:
            opened.append(None)
            opened.append(open_term(tmp_path, T2))
        real(fd)

    if seal_before == "write":
        open_term(tmp_path, T2)
    elif seal_before == "sync":
        monkeypatch.setattr(os, "fdatasync", sync)
    (flushed,) = flush_all([group])
    if seal_before == "confirm":
        open_term(tmp_path, T2)
    fenced = isinstance(flushed.failure, Fenced)
    counts = lsns_of_facts(past_of(tmp_path, T3)) == [2]
    assert (fenced, counts) == {"write": (True, False), "sync": (True, True), "confirm": (False, True)}[seal_before]


@settings(max_examples=80, deadline=None)
@given(steps=st.lists(st.sampled_from(["old", "new", "torn", "take"]), max_size=12))
def test_whatever_the_interleaving_acknowledged_groups_stay_and_fenced_ones_vanish(steps: list[str]) -> None:
    with directory() as root:
        owners, counter, acknowledged = [open_term(root, T1)], 1, []
        for step in steps:
            if step == "take":
                counter += 1
                owners.append(open_term(root, TermId(1, counter)))
            elif step == "torn":
                # Its owner died in a write: half a frame, and no more flushes of this term.
                owners[-1].close()
                with file_of_term(root, TermId(1, counter)).open("ab") as file:
                    file.write(file_of_term(root, TermId(1, counter)).read_bytes()[-20:])
            else:
                owner = owners[-1] if step == "new" else owners[0]
                lsn = owner.appended_lsn + 1
                if not flush_fails(owner, lsn):
                    acknowledged.append(lsn)
        assert lsns_of_facts(past_of(root, T3)) == acknowledged


def test_a_write_that_ends_behind_the_seal_is_void(tmp_path: Path) -> None:
    old = open_term(tmp_path, T1)
    append_groups(old, [1])
    path = file_of_term(tmp_path, T1)
    size = path.stat().st_size
    append_groups(old, [1])
    whole = path.read_bytes()
    path.write_bytes(whole[: size + 10])
    open_term(tmp_path, T2)
    with path.open("ab") as file:
        file.write(whole[size + 10 :])
        file.write(whole[size:])
    assert lsns_of_facts(past_of(tmp_path, T3)) == [2]


@pytest.mark.parametrize("second", [T1, T2])
def test_a_term_that_is_not_newer_is_refused(tmp_path: Path, second: TermId) -> None:
    open_term(tmp_path, T2)
    with pytest.raises(Fenced):
        open_term(tmp_path, second)
    assert lsns_of_facts(past_of(tmp_path, T3)) == []


@pytest.mark.parametrize("moment", ["_claim", "_seal_and_find_end", "_sealed_file", "_end_of", "create_file"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("first", "rival"), [(T2, T3), (T3, T2)])
def test_of_two_owners_that_open_at_once_the_newer_one_wins(
    tmp_path: Path, moment: str, when: str, first: TermId, rival: TermId, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_groups(open_term(tmp_path, T1), [2])
    real: Callable[..., object] = getattr(takeover, moment)
    results: dict[TermId, ShardJournal | None] = {}

    def opened(term: TermId) -> None:
        try:
            results[term] = open_term(tmp_path, term)
        except Fenced:
            results[term] = None

    def interrupted(*args: object) -> object:
        monkeypatch.setattr(takeover, moment, real)
        if when == "before":
            opened(rival)
        found = real(*args)
        if when == "after":
            opened(rival)
        return found

    monkeypatch.setattr(takeover, moment, interrupted)
    opened(first)
    winner = results[T3]
    assert winner is not None
    loser = results[T2]
    assert loser is None or flush_fails(loser, loser.appended_lsn + 1)
    assert not flush_fails(winner, winner.appended_lsn + 1)
    assert lsns_of_facts(past_of(tmp_path, TermId(3, 1))) == [2, 3, winner.durable_lsn]


@pytest.mark.parametrize("moment", ["_claim", "_seal_and_find_end", "_sealed_file", "_end_of", "create_file"])
def test_an_owner_that_flushes_while_it_is_taken_over_is_counted_or_fenced(
    tmp_path: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading before sealing would lose a group that was acknowledged in between."""
    old = open_term(tmp_path, T1)
    real: Callable[..., object] = getattr(takeover, moment)

    def interrupted(*args: object) -> object:
        flush_fails(old, old.appended_lsn + 1)
        found = real(*args)
        flush_fails(old, old.appended_lsn + 1)
        return found

    monkeypatch.setattr(takeover, moment, interrupted)
    new = open_term(tmp_path, T2)
    monkeypatch.undo()
    assert new.previous == old.position()
    assert flush_fails(old, old.appended_lsn + 1)
    assert lsns_of_facts(past_of(tmp_path, T3)) == list(range(2, old.durable_lsn + 1))


def test_a_takeover_syncs_the_seal_the_new_file_its_names_and_the_first_record_in_this_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_groups(open_term(tmp_path, T1), [1])
    old = file_of_term(tmp_path, T1)
    sealed_size = old.stat().st_size
    seen: list[tuple[str, bool]] = []

    def noting(real: Callable[[int], None]) -> Callable[[int], None]:
        def sync(fd: int) -> None:
            seen.append((Path(f"/proc/self/fd/{fd}").readlink().name, old.stat().st_size > sealed_size))
            real(fd)

        return sync

    monkeypatch.setattr(os, "fsync", noting(os.fsync))
    monkeypatch.setattr(os, "fdatasync", noting(os.fdatasync))
    open_term(tmp_path, T2)
    new = file_of_term(tmp_path, T2)
    names = [old.name, ".00000001-00000002.new", new.parent.name, new.parent.parent.name, new.name]
    assert seen == [(name, True) for name in names]


def test_errors_are_of_this_package(tmp_path: Path) -> None:
    (tmp_path / "journal").write_text("no directory")
    with pytest.raises(HermesError, match=str(tmp_path / "journal")):
        open_term(tmp_path, T1)

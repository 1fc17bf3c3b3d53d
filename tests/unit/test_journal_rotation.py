"""A term in several files: nothing is lost at their borders, not by damage and not by owners that meet there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_spark import faults
from hermes_spark.errors import Fenced, JournalCorrupt, StateError
from hermes_spark.state import journal as journal_module
from hermes_spark.state import takeover
from hermes_spark.state.frames import HEADER_BYTES
from hermes_spark.state.journal import JournalReader, ShardJournal, read
from hermes_spark.state.records import Position, TermId
from journaling import (
    SHARD,
    T1,
    T2,
    T3,
    append_groups,
    directory,
    files_of_term,
    lsns_of_facts,
    open_term,
    past_of,
)

SMALL = 300
"""Bytes of a file: two or three groups."""


def small_term(root: Path, term: TermId, known_end: int = 0) -> ShardJournal:
    return open_term(root, term, known_end, SMALL)


def flush_fails(journal: ShardJournal) -> bool:
    try:
        append_groups(journal, [1])
    except StateError:
        return True
    return False


@settings(max_examples=15, deadline=None)
@given(
    terms=st.lists(st.lists(st.integers(1, 3), max_size=4), min_size=1, max_size=3),
    file_bytes=st.integers(1, 600),
)
def test_any_two_positions_can_be_read_between_across_files_and_terms(terms: list[list[int]], file_bytes: int) -> None:
    with directory() as root:
        positions = [Position()]
        for counter, sizes in enumerate(terms, 1):
            journal = open_term(root, TermId(1, counter), positions[-1].lsn, file_bytes)
            positions += [journal.position(), *append_groups(journal, sizes)]
            journal.close()
        everything = list(read(root, SHARD, Position(), None))
        assert [lsn for lsn, _ in everything] == list(range(1, positions[-1].lsn + 1))
        reader = JournalReader(root, SHARD)
        for at, after in enumerate(positions):
            for upto in positions[at:]:
                assert list(read(root, SHARD, after, upto)) == everything[after.lsn : upto.lsn]
        for after, upto in pairwise(positions):
            assert list(reader.read(after, upto)) == everything[after.lsn : upto.lsn]
            reader.check(upto, positions[-1])


def test_a_file_is_followed_by_the_next_once_it_is_long(tmp_path: Path) -> None:
    journal = small_term(tmp_path, T1)
    append_groups(journal, [1] * 12)
    files = files_of_term(tmp_path, T1)
    assert len(files) > 3
    sizes = [path.stat().st_size for path in files]
    assert all(SMALL <= size < SMALL + 200 for size in sizes[:-1])
    assert int(files[0].stem) == 1
    other = open_term(tmp_path / "other", T1)
    append_groups(other, [1] * 12)
    assert len(files_of_term(tmp_path / "other", T1)) == 1


def test_a_reader_follows_an_owner_from_file_to_file_and_reads_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, reader, before = small_term(tmp_path, T1), JournalReader(tmp_path, SHARD), Position()
    seen: list[int] = []
    read_bytes = 0
    real = os.pread

    def pread(fd: int, length: int, offset: int) -> bytes:
        nonlocal read_bytes
        data = real(fd, length, offset)
        read_bytes += len(data)
        return data

    monkeypatch.setattr(os, "pread", pread)
    for _ in range(60):
        (position,) = append_groups(journal, [1])
        seen += [lsn for lsn, _ in reader.read(before, position)]
        before = position
    assert seen == list(range(1, 62))
    whole = sum(path.stat().st_size for path in files_of_term(tmp_path, T1))
    headers = HEADER_BYTES * (60 + 3 * len(files_of_term(tmp_path, T1)))
    assert read_bytes < whole + headers + 60 * 40


@pytest.mark.parametrize("which", ["first", "middle", "last"])
@pytest.mark.parametrize("damage", ["removed", "cut", "flipped", "tail cut"])
def test_damage_anywhere_but_at_the_end_of_the_last_file_stops_with_the_files_name(
    tmp_path: Path, which: str, damage: str
) -> None:
    journal = small_term(tmp_path, T1)
    append_groups(journal, [1] * 12)
    journal.close()
    files = files_of_term(tmp_path, T1)
    at = {"first": 0, "middle": 1, "last": len(files) - 1}[which]
    path, content = files[at], files[at].read_bytes()
    named = path.name
    if damage == "removed":
        path.unlink()
        named = files[max(at - 1, 0)].name if at else files[1].name
    elif damage == "cut":
        path.write_bytes(content[: HEADER_BYTES // 2])
    elif damage == "flipped":
        # In the last file a group may be the last one, and torn: its header never is.
        at_byte = HEADER_BYTES // 2 if which == "last" else HEADER_BYTES + 60
        path.write_bytes(content[:at_byte] + bytes([content[at_byte] ^ 1]) + content[at_byte + 1 :])
    else:
        # In files before the last, more than the mark that the term goes on.
        path.write_bytes(content[: -10 if which == "last" else -90])
    if (which, damage) == ("last", "tail cut"):
        assert lsns_of_facts(past_of(tmp_path, T2)) == list(range(2, 13))
        return
    with pytest.raises(JournalCorrupt, match=rf"{named}.*; restore it from a backup, or start on a new checkpoint"):
        past_of(tmp_path, T2)


def test_a_last_file_that_is_missing_is_found_out_without_a_commit(tmp_path: Path) -> None:
    journal = small_term(tmp_path, T1)
    append_groups(journal, [1] * 12)
    *_, before, last = files_of_term(tmp_path, T1)
    last.unlink()
    with pytest.raises(
        JournalCorrupt, match=f"{before} is damaged at byte .*: its term goes on in {last.name}, which is"
    ):
        open_term(tmp_path, T2)


@settings(max_examples=40, deadline=None)
@given(steps=st.lists(st.sampled_from(["old", "new", "new", "take"]), max_size=16))
def test_whatever_the_interleaving_acknowledged_groups_stay_and_fenced_ones_vanish(steps: list[str]) -> None:
    with directory() as root:
        owners, counter, acknowledged = [open_term(root, T1, file_bytes=1)], 1, []
        for step in steps:
            if step == "take":
                counter += 1
                owners.append(open_term(root, TermId(1, counter), file_bytes=1))
            else:
                owner = owners[-1] if step == "new" else owners[0]
                lsn = owner.appended_lsn + 1
                if not flush_fails(owner):
                    acknowledged.append(lsn)
        assert lsns_of_facts(past_of(root, T3)) == acknowledged


MOMENTS = [
    "_claim",
    "_seal_and_find_end",
    "_sealed_file",
    "files_of",
    "_seal",
    "append_whole",
    "_end_of",
    "create_file",
]


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("moment", MOMENTS)
def test_an_owner_that_begins_a_file_while_it_is_taken_over_is_counted_or_fenced(
    tmp_path: Path, moment: str, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every group of the old owner begins a file; it writes around each step of the take-over."""
    old = open_term(tmp_path, T1, file_bytes=1)
    real: Callable[..., object] = getattr(takeover, moment)
    left = 6 * groups  # an owner that begins files for ever, faster than they are sealed, could not be overtaken

    def write() -> None:
        nonlocal left
        for _ in range(min(groups, left)):
            left -= 1
            flush_fails(old)

    def interrupted(*args: object) -> object:
        write()
        found = real(*args)
        write()
        return found

    monkeypatch.setattr(takeover, moment, interrupted)
    new = open_term(tmp_path, T2)
    monkeypatch.undo()
    assert new.previous == old.position()
    assert flush_fails(old)
    assert lsns_of_facts(past_of(tmp_path, T3)) == list(range(2, old.durable_lsn + 1))


@pytest.mark.parametrize("moment", ["create_file", "append_whole", "encode_next", "fdatasync"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_owner_that_is_taken_over_while_it_begins_a_file_is_counted_or_fenced(
    tmp_path: Path, moment: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = open_term(tmp_path, T1, file_bytes=1)
    place = {"fdatasync": os, "encode_next": journal_module.frames}.get(moment, journal_module)
    real: Callable[..., object] = getattr(place, moment)
    opened: list[ShardJournal] = []

    def interrupted(*args: object) -> object:
        monkeypatch.setattr(place, moment, real)
        if when == "before":
            opened.append(open_term(tmp_path, T2))
        found = real(*args)
        if when == "after":
            opened.append(open_term(tmp_path, T2))
        return found

    monkeypatch.setattr(place, moment, interrupted)
    failed = flush_fails(old)
    (new,) = opened
    assert failed or new.previous == old.position(), "acknowledged behind the seal"
    assert flush_fails(old)
    append_groups(new, [1, 1])
    facts = lsns_of_facts(past_of(tmp_path, T3))
    assert facts == [lsn for lsn in range(2, new.durable_lsn + 1) if lsn != new.previous.lsn + 1]


def test_an_owner_whose_files_are_gone_is_fenced_when_it_begins_the_next(tmp_path: Path) -> None:
    old = small_term(tmp_path, T1)
    append_groups(old, [1, 1, 1, 1])
    open_term(tmp_path, T2)
    for path in files_of_term(tmp_path, T1):
        path.unlink()
    (tmp_path / "journal" / "0003" / "00000001-00000001").rmdir()
    with pytest.raises(Fenced):
        append_groups(old, [1] * 5)


WRITER = """
import sys
from pathlib import Path
from hermes_spark.state.journal import ShardJournal
from hermes_spark.state.records import Overdue, TermId

journal = ShardJournal.open(Path(sys.argv[1]), 3, TermId(1, 1), now_ms=1, file_bytes=1).journal
for lsn in range(2, 7):
    journal.append(Overdue("session", f"turn-{lsn}", lsn))
    journal.flush()
    print(journal.durable_lsn, flush=True)
"""


@pytest.mark.parametrize("point", sorted(name for name in faults.POINTS if name.startswith("rotation.")))
def test_a_kill_in_the_middle_of_beginning_a_file_loses_nothing_reported(tmp_path: Path, point: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WRITER, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "HERMES_FAULTS": f"{point}=kill@3"},
    )
    assert done.returncode == -signal.SIGKILL
    assert [int(line) for line in done.stdout.split()] == [2, 3]
    assert lsns_of_facts(past_of(tmp_path, T2, known_end=3)) == [2, 3]
    assert lsns_of_facts(past_of(tmp_path, T3, known_end=3)) == [2, 3]

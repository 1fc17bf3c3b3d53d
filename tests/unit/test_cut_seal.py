"""A seal of which only the beginning was written, and what its owner's rival appends behind it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermes_spark.errors import Fenced, JournalCorrupt
from hermes_spark.state import frames
from hermes_spark.state.journal_files import TermFile
from journaling import SHARD, T1, T2, T3, append_groups, fact, file_of_term, lsns_of_facts, open_term, past_of


def seal_of(path: Path) -> bytes:
    with TermFile(path, SHARD) as file:
        return frames.encode_seal(file.header.marker, T2)


@pytest.mark.parametrize("share", [0.02, 0.1, 0.2, 0.5, 0.7, 0.98])
def test_a_group_behind_a_cut_seal_is_void_and_no_damage(tmp_path: Path, share: float) -> None:
    old = open_term(tmp_path, T1)
    append_groups(old, [2])
    path = file_of_term(tmp_path, T1)
    seal = seal_of(path)
    with path.open("ab") as file:  # the owner that came to seal died while it wrote
        file.write(seal[: max(1, int(len(seal) * share))])
    old.append(fact(4))
    with pytest.raises(Fenced):
        old.flush()
    assert lsns_of_facts(past_of(tmp_path, T3)) == [2, 3]


def test_a_group_behind_an_altered_seal_is_damage(tmp_path: Path) -> None:
    old = open_term(tmp_path, T1)
    append_groups(old, [2])
    path = file_of_term(tmp_path, T1)
    seal = seal_of(path)
    with path.open("ab") as file:
        file.write(seal[:-1] + bytes([seal[-1] ^ 1]))
    old.append(fact(4))
    with pytest.raises(Fenced):
        old.flush()
    with pytest.raises(JournalCorrupt, match="no whole group there, but one at byte"):
        past_of(tmp_path, T3)


def test_a_group_that_was_altered_into_a_seal_is_damage(tmp_path: Path) -> None:
    old = open_term(tmp_path, T1)
    path = file_of_term(tmp_path, T1)
    at = path.stat().st_size
    append_groups(old, [2, 2])
    data = bytearray(path.read_bytes())
    data[at + frames.MARKER_BYTES] = frames.SEAL
    path.write_bytes(data)
    with pytest.raises(JournalCorrupt, match="no whole group there, but one at byte"):
        past_of(tmp_path, T2)

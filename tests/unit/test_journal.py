"""The journal of one owner: what is written comes back, and damage never becomes wrong or missing records."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_spark.errors import JournalCorrupt, StateError, StorageFull
from hermes_spark.events import Coordinates, Event
from hermes_spark.messages import Message, Usage
from hermes_spark.state import records
from hermes_spark.state.frames import FRAME_HEAD_BYTES, HEADER_BYTES
from hermes_spark.state.journal import ShardJournal, flush_all, read
from hermes_spark.state.records import Overdue, Position
from journaling import (
    SHARD,
    T1,
    T2,
    T3,
    append_groups,
    directory,
    fact,
    file_of_term,
    largest_file,
    lsns_of_facts,
    open_term,
    past_of,
)


def test_every_kind_of_record_comes_back(tmp_path: Path) -> None:
    event = Event(
        Coordinates("f-0", 4), "s1", 1, messages=(Message("user", "查一下客户张三"),), metadata={"a": [1, None]}
    )
    call = records.PlannedCall("c", "crm_query", {"name": "张三"})
    summary = records.CallSummary("c", "crm_query", {}, "ok", "x", 0, 1, 5, 6)
    facts: list[records.Record] = [
        records.Taken("s1", event, "t1", records.Limits(), -1, 2),
        records.Rejected(Coordinates("f-0", 5), "", "no session id", b"\x00\xff{", 3, 1, 2),
        records.Completed("s1", "t1", 0, "", "hm", (call,), ("bad",), False, False, Usage(3, 4), 3),
        records.Intent("s1", "c", {"name": "张三"}, "unknown", 9, 4),
        records.Returned("s1", "c", "ok", "x", 1, 5),
        Overdue("s1", "t1", 6),
        records.Outcome(
            "s1",
            "t1",
            event.coordinates,
            "",
            "completed",
            "",
            "ok",
            False,
            1,
            (summary,),
            Usage(3, 4),
            1,
            2,
            7,
            {"k": 1},
        ),
    ]
    journal = open_term(tmp_path, T1)
    assert [journal.append(record) for record in facts] == [2, 3, 4, 5, 6, 7, 8]
    journal.flush()
    started = records.TermStarted(T1, Position(), 7)
    assert past_of(tmp_path, T2) == list(enumerate([started, *facts], 1))


def test_a_group_is_written_while_the_loop_goes_on_appending(tmp_path: Path) -> None:
    journal = open_term(tmp_path, T1)
    journal.append(fact(2))
    group = journal.take_group()
    assert group is not None
    journal.append(fact(3))
    (flushed,) = flush_all([group])
    assert (journal.durable_lsn, journal.appended_lsn) == (1, 3)
    with pytest.raises(StateError, match="confirm it"):
        journal.take_group()
    journal.confirm(flushed)
    assert (journal.durable_lsn, journal.dirty, journal.position().lsn) == (2, True, 2)
    with pytest.raises(StateError, match="not the one"):
        journal.confirm(flushed)
    journal.flush()
    assert (journal.durable_lsn, journal.dirty, journal.take_group()) == (3, False, None)
    journal.close()
    journal.close()
    with pytest.raises(StateError, match="closed"):
        journal.append(fact(4))
    assert lsns_of_facts(past_of(tmp_path, T2)) == [2, 3]


def test_what_was_appended_and_not_flushed_is_gone(tmp_path: Path) -> None:
    journal = open_term(tmp_path, T1)
    append_groups(journal, [2])
    journal.append(fact(4))
    journal.close()
    assert lsns_of_facts(past_of(tmp_path, T2)) == [2, 3]


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(1, 3), min_size=1, max_size=5), data=st.data())
def test_a_file_cut_anywhere_recovers_exactly_the_groups_before(sizes: list[int], data: st.DataObject) -> None:
    with directory() as root:
        journal = open_term(root, T1)
        path = file_of_term(root, T1)
        ends = [(path.stat().st_size, journal.position())]
        for size in sizes:
            (position,) = append_groups(journal, [size])
            ends.append((path.stat().st_size, position))
        journal.close()
        cut = data.draw(st.integers(HEADER_BYTES, ends[-1][0]), label="cut")
        path.write_bytes(path.read_bytes()[:cut])
        whole = [position.lsn for size, position in ends if size <= cut]
        kept = max(whole, default=0)
        opened = ShardJournal.open(root, SHARD, T2, now_ms=7, known_end=kept)
        pairs = list(opened.past)
        opened.journal.close()
        assert len(pairs) == kept
        lsns_of_facts(pairs)
        assert opened.journal.previous.lsn == kept


def test_a_tail_cut_below_a_commit_is_corruption(tmp_path: Path) -> None:
    journal = open_term(tmp_path, T1)
    path = file_of_term(tmp_path, T1)
    append_groups(journal, [1])
    whole_groups = path.stat().st_size
    append_groups(journal, [1])
    path.write_bytes(path.read_bytes()[:whole_groups])
    with pytest.raises(JournalCorrupt, match=rf"{path} is damaged at byte {whole_groups}: .* 3 was committed; restore"):
        open_term(tmp_path, T2, known_end=3)
    shutil.rmtree(tmp_path / "journal")
    with pytest.raises(JournalCorrupt, match="missing, but record 3 was committed"):
        open_term(tmp_path, T3, known_end=3)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_flipped_bit_is_corruption_or_a_torn_tail_and_never_a_wrong_record(data: st.DataObject) -> None:
    with directory() as root:
        journal = open_term(root, T1)
        path = file_of_term(root, T1)
        append_groups(journal, [2, 1])
        before_last = path.stat().st_size
        append_groups(journal, [2])
        journal.close()
        content = bytearray(path.read_bytes())
        bit = data.draw(st.integers(0, len(content) * 8 - 1), label="bit")
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        known_end = data.draw(st.sampled_from([0, 4, 6]), label="known_end")
        if bit // 8 < before_last or known_end == 6:
            with pytest.raises(JournalCorrupt, match=path.name):
                past_of(root, T2, known_end)
        else:
            assert lsns_of_facts(past_of(root, T2, known_end)) == [2, 3, 4]


def test_zeros_behind_the_last_group_are_a_torn_tail(tmp_path: Path) -> None:
    append_groups(open_term(tmp_path, T1), [2])
    with file_of_term(tmp_path, T1).open("ab") as file:
        file.write(bytes(5000))
    assert lsns_of_facts(past_of(tmp_path, T2)) == [2, 3]


@pytest.mark.parametrize("before", [b"", b"torn"])
def test_bytes_of_another_journals_group_are_no_group_here(tmp_path: Path, before: bytes) -> None:
    other = open_term(tmp_path / "other", T1)
    append_groups(other, [1])
    size = file_of_term(tmp_path / "other", T1).stat().st_size
    append_groups(other, [1])
    forged = file_of_term(tmp_path / "other", T1).read_bytes()[size:]
    append_groups(open_term(tmp_path, T1), [1])
    with file_of_term(tmp_path, T1).open("ab") as file:
        file.write(before + forged * 2)
    assert lsns_of_facts(past_of(tmp_path, T2)) == [2]


def test_a_group_behind_more_damage_than_one_search_window_is_found(tmp_path: Path) -> None:
    journal = open_term(tmp_path, T1)
    path = file_of_term(tmp_path, T1)
    journal.append(Overdue("s", "x" * 3_000_000, 1))
    journal.flush()
    damaged = HEADER_BYTES + FRAME_HEAD_BYTES
    append_groups(journal, [1])
    content = bytearray(path.read_bytes())
    content[damaged] ^= 1
    path.write_bytes(content)
    with pytest.raises(JournalCorrupt, match=f"byte {HEADER_BYTES}: no whole group there, but one at byte"):
        past_of(tmp_path, T2)


def test_a_full_disk_ends_the_journal_and_loses_nothing_durable(tmp_path: Path) -> None:
    journal, other = open_term(tmp_path, T1), ShardJournal.open(tmp_path, 4, T1, now_ms=7).journal
    append_groups(journal, [2])
    path = file_of_term(tmp_path, T1)
    journal.append(fact(4))
    other.append(fact(2))
    groups = [group for group in (journal.take_group(), other.take_group()) if group is not None]
    with largest_file(path.stat().st_size + 40):
        failed, fine = flush_all(groups)
    other.confirm(fine)
    assert other.durable_lsn == 2
    with pytest.raises(StorageFull, match=f"No space is left for {path}; free some"):
        journal.confirm(failed)
    for use in (lambda: journal.append(fact(5)), journal.take_group, journal.flush):
        with pytest.raises(StorageFull):
            use()
    assert journal.durable_lsn == 3
    assert lsns_of_facts(past_of(tmp_path, T2, known_end=3)) == [2, 3]


def test_a_journal_without_anything_is_empty(tmp_path: Path) -> None:
    assert list(read(tmp_path, SHARD, Position(), None)) == []
    assert list(read(tmp_path, SHARD, Position(), Position())) == []

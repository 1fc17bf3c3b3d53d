"""What only the journal on an object store must do: doubtful puts, races over names, damage that is never a torn tail."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_spark.errors import Fenced, JournalCorrupt, SettingsError, StateError
from hermes_spark.state import frames, object_journal
from hermes_spark.state.journal import ShardJournal
from hermes_spark.state.journal_store import FileJournals, ObjectJournals, journals_at
from hermes_spark.state.object_format import ShardObjects
from hermes_spark.state.records import Position, TermId
from journal_places import Place, WatchedStorage, in_objects
from journaling import SHARD, T1, T2, T3, append_groups, fact, lsns_of_facts

KEY = f"journal/{SHARD:04d}/{{:016d}}"


@pytest.fixture
def storage() -> WatchedStorage:
    return WatchedStorage()


@pytest.fixture
def place(storage: WatchedStorage) -> Place:
    return in_objects(storage)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts are tried again at once."""
    real = object_journal.stamina.retry_context

    def at_once(**options: object) -> object:
        return real(**{**options, "wait_initial": 0.0, "wait_max": 0.0, "wait_jitter": 0.0})

    monkeypatch.setattr(object_journal.stamina, "retry_context", at_once)


class Once:
    """Does something at the n-th request of its kind, and nothing at the others."""

    def __init__(self, kind: str, n: int, act: Callable[[], object]) -> None:
        self._kind, self._left, self._act = kind, n, act
        self.done = False

    def __call__(self, request: str, key: str) -> None:
        if request == self._kind or not self._kind:
            self._left -= 1
            if self._left == 0:
                self.done = True
                self._act()


def lost() -> None:
    raise StateError("the answer did not come")


def test_an_object_a_group_and_a_seal_under_consecutive_names(place: Place) -> None:
    append_groups(place.open_term(T1), [2, 1])
    append_groups(place.open_term(T2), [1])
    assert place.parts() == [KEY.format(number) for number in range(1, 8)]
    objects = ShardObjects(place.journals._storage, SHARD)  # type: ignore[attr-defined]
    found = [objects.get(number) for number in objects.numbers()]
    assert [stored.sealing for stored in found] == [True, False, False, False, True, False, False]
    assert [stored.after.lsn for stored in found] == [0, 1, 3, 4, 4, 5, 6]
    assert all(after.before == before.after for before, after in pairwise(found))


# doubtful puts


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_put_whose_answer_is_lost_is_settled_by_what_its_name_holds(
    storage: WatchedStorage, place: Place, when: str
) -> None:
    journal = place.open_term(T1)
    once = Once("put", 1, lost)
    setattr(storage, when, once)
    assert [position.lsn for position in append_groups(journal, [2, 1])] == [3, 4]
    assert once.done
    assert lsns_of_facts(place.past_of(T2, known_end=4)) == [2, 3, 4]
    assert len(place.parts()) == 6


def test_a_name_that_is_taken_after_a_lost_answer_is_no_success(storage: WatchedStorage, place: Place) -> None:
    """The put was lost and the shard was taken over before it was tried again: the name is taken, by another's bytes."""
    old = place.open_term(T1)

    def taken_over() -> None:
        storage.before = lambda request, key: None
        place.open_term(T2).close()
        lost()

    storage.before = Once("put", 1, taken_over)
    with pytest.raises(Fenced, match="holds an object of another owner at number 3; drop everything"):
        append_groups(old, [1])
    assert lsns_of_facts(place.past_of(T3)) == []


def test_a_put_that_was_stored_before_the_takeover_counts_although_its_answer_came_later(
    storage: WatchedStorage, place: Place
) -> None:
    old = place.open_term(T1)
    new: list[ShardJournal] = []

    def taken_over() -> None:
        storage.after = lambda request, key: None
        new.append(place.open_term(T2))
        lost()

    storage.after = Once("put", 1, taken_over)
    (position,) = append_groups(old, [1])
    assert new[0].previous == position
    with pytest.raises(Fenced):
        append_groups(old, [1])
    assert lsns_of_facts(place.past_of(T3)) == [2]


def test_a_storage_that_never_answers_ends_the_journal_in_bounded_time(storage: WatchedStorage) -> None:
    place = in_objects(storage, patience_s=0.05)
    journal = place.open_term(T1)
    storage.before = lambda request, key: lost()
    with pytest.raises(StateError, match="the answer did not come") as caught:
        append_groups(journal, [1])
    assert not isinstance(caught.value, Fenced)
    storage.before = lambda request, key: None
    with pytest.raises(StateError, match="the answer did not come"):
        journal.append(fact(3))
    assert lsns_of_facts(place.past_of(T2)) == []


def test_a_name_refused_as_taken_that_holds_nothing_is_asked_for_again(storage: WatchedStorage, place: Place) -> None:
    journal = place.open_term(T1)
    real, answers = storage.put_if_absent, iter([False, False])
    storage.put_if_absent = lambda key, data: next(answers, None) is not False and real(key, data)  # type: ignore[method-assign]
    append_groups(journal, [1])
    assert lsns_of_facts(place.past_of(T2)) == [2]


FAULT = st.sampled_from(["", "", "before", "after", "take before", "take after"])


@settings(max_examples=150)
@given(faults=st.lists(FAULT, max_size=10))
def test_whatever_answers_are_lost_acknowledged_groups_stay_and_no_other_owner_is_confirmed(faults: list[str]) -> None:
    """`take`: the shard is taken over while the put is under way, before or after it is stored."""
    storage = WatchedStorage()
    place = in_objects(storage)
    counter, owner, acknowledged = 1, place.open_term(T1), set()

    def failing(take: bool) -> None:
        nonlocal counter, owner
        storage.before = storage.after = lambda request, key: None
        if take:
            counter += 1
            owner = place.open_term(TermId(1, counter))
        lost()

    for fault in faults:
        flushing = owner
        if fault:
            setattr(storage, fault.split()[-1], Once("put", 1, partial(failing, fault.startswith("take"))))
        try:
            append_groups(flushing, [1])
        except Fenced:
            assert fault == "take before"
        else:
            acknowledged.add(flushing.durable_lsn)
    assert acknowledged <= set(found := lsns_of_facts(place.past_of(T3)))
    assert len(found) == len(faults) - faults.count("take before")


# taking over


@pytest.mark.parametrize("n", range(1, 8))
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("first", "rival"), [(T2, T3), (T3, T2)])
def test_of_two_owners_that_open_at_once_the_newer_one_wins(
    storage: WatchedStorage, place: Place, n: int, when: str, first: TermId, rival: TermId
) -> None:
    append_groups(place.open_term(T1), [2])
    results: dict[TermId, ShardJournal | None] = {}

    def opened(term: TermId) -> None:
        try:
            results[term] = place.open_term(term)
        except Fenced:
            results[term] = None

    def interrupted() -> None:
        storage.before = storage.after = lambda request, key: None
        opened(rival)

    setattr(storage, when, Once("", n, interrupted))
    opened(first)
    if rival not in results:
        interrupted()
    winner, loser = results[T3], results[T2]
    assert winner is not None
    if loser is not None:
        with pytest.raises(Fenced):
            append_groups(loser, [1])
    append_groups(winner, [1])
    assert lsns_of_facts(place.past_of(TermId(3, 1))) == [2, 3, winner.durable_lsn]


@pytest.mark.parametrize("n", range(1, 6))
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_owner_that_flushes_while_it_is_taken_over_is_counted_or_fenced(
    storage: WatchedStorage, place: Place, n: int, when: str
) -> None:
    old = place.open_term(T1)
    acknowledged = []

    def flush() -> None:
        hook, storage.before, storage.after = storage.before, quiet, quiet
        with suppress(Fenced):
            acknowledged.append(append_groups(old, [1])[0].lsn)
        storage.before = hook

    def quiet(request: str, key: str) -> None:
        pass

    setattr(storage, when, Once("", n, flush))
    new = place.open_term(T2)
    storage.before = storage.after = quiet
    assert new.previous.lsn == max([1, *acknowledged])
    with pytest.raises(Fenced):
        append_groups(old, [1])
    assert lsns_of_facts(place.past_of(T3)) == acknowledged


def test_a_takeover_reads_what_it_finds_under_its_name_and_tries_the_next(
    storage: WatchedStorage, place: Place
) -> None:
    old = place.open_term(T1)
    left = [4]

    def overtake(request: str, key: str) -> None:
        if request == "put" and left[0]:
            left[0], storage.before = left[0] - 1, lambda request, key: None
            append_groups(old, [2])
            storage.before = overtake

    storage.before = overtake
    new = place.open_term(T2)
    assert (left, new.previous) == ([0], old.position())
    assert lsns_of_facts(place.past_of(T3)) == list(range(2, 10))


def test_a_takeover_gives_up_on_an_owner_that_never_pauses(
    storage: WatchedStorage, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_journal, "TRIES", 3)
    old = place.open_term(T1)

    def overtake(request: str, key: str) -> None:
        if request == "put":
            storage.before = lambda request, key: None
            append_groups(old, [1])
            storage.before = overtake

    storage.before = overtake
    with pytest.raises(StateError, match="could not be sealed in 3 tries, because its owner of term 00000001-00000001"):
        place.open_term(T2)


def test_a_takeover_of_a_long_journal_reads_its_last_object_only(storage: WatchedStorage, place: Place) -> None:
    append_groups(place.open_term(T1), [1] * 50)
    requests: list[str] = []
    storage.before = lambda request, key: requests.append(request)
    place.open_term(T2)
    assert requests == ["list", "get", "put", "put"]


# damage


@settings(max_examples=150)
@given(data=st.data())
def test_every_flipped_bit_and_every_cut_is_corruption_that_names_the_object(data: st.DataObject) -> None:
    place = in_objects(WatchedStorage())
    append_groups(place.open_term(T1), [2])
    append_groups(place.open_term(T2), [1])
    part = data.draw(st.sampled_from(place.parts()), label="part")
    content = bytearray(place.get(part))
    bit = data.draw(st.integers(0, len(content) * 8 - 1), label="bit")
    if data.draw(st.booleans(), label="cut"):
        del content[bit // 8 :]
    else:
        content[bit // 8] ^= 1 << bit % 8
    place.put(part, bytes(content))
    with pytest.raises(
        JournalCorrupt, match=f"memory://bucket/{part} is damaged at byte 0: .*; restore it from a backup"
    ):
        place.past_of(T3)


def test_objects_that_were_exchanged_removed_or_come_from_elsewhere_do_not_fit(place: Place) -> None:
    other = in_objects(WatchedStorage())
    for at in (other, place):
        append_groups(at.open_term(T1), [1, 1, 1])
    parts = place.parts()
    whole = {part: place.get(part) for part in parts}

    def refused(**changed: bytes | None) -> None:
        for number, data in changed.items():
            part = parts[int(number[1:]) - 1]
            place.delete(part) if data is None else place.put(part, data)
        with pytest.raises(JournalCorrupt, match="restore it from a backup"):
            place.read(Position(), None)
        for part, content in whole.items():
            place.put(part, content)

    refused(n3=whole[parts[3]], n4=whole[parts[2]])
    refused(n4=None)
    refused(n1=None)
    refused(n2=whole[parts[1]] + b"\0")
    other_shard = other.journals.open(SHARD + 1, T1, now_ms=7).journal
    append_groups(other_shard, [1])
    refused(n1=other.get(f"journal/{SHARD + 1:04d}/{1:016d}"))
    assert lsns_of_facts(place.read(Position(), None)) == [2, 3, 4]


def test_a_takeover_never_fills_a_hole(place: Place) -> None:
    append_groups(place.open_term(T1), [1, 1, 1])
    place.delete(KEY.format(3))
    left = place.parts()
    with pytest.raises(JournalCorrupt, match=rf"{KEY.format(3)} is damaged .* missing, but {KEY.format(4)} is there"):
        place.open_term(T2)
    assert place.parts() == left


@pytest.mark.parametrize(("count", "payload"), [(2, b"\x01\x00\x00\x00x"), (1, b"\x09\x00\x00\x00x"), (1, b"")])
def test_a_group_that_is_built_wrongly_is_refused(place: Place, count: int, payload: bytes) -> None:
    journal = place.open_term(T1)
    header = frames.Header(SHARD, T1, journal.position(), b"m" * 8)
    frame = frames._frame_head(header.marker, frames.GROUP, count, 2, payload) + payload
    place.put(KEY.format(3), frames.encode_header(header) + frame)
    with pytest.raises(JournalCorrupt, match=rf"{KEY.format(3)} is damaged"):
        place.read(journal.position(), None)


def test_a_group_under_a_header_of_another_kind_is_refused(place: Place) -> None:
    place.open_term(T1)
    header = frames.Header(SHARD, T2, Position(1, T1, "ab" * 16), b"m" * 8)
    head, payload = frames.encode_group(header.marker, 2, [b"x"])
    place.put(KEY.format(3), frames.encode_header(header) + head + payload)
    with pytest.raises(JournalCorrupt, match="its header and its frame contradict each other"):
        place.open_term(T3)


# reading


def test_a_reader_that_advances_asks_only_for_what_is_new(storage: WatchedStorage, place: Place) -> None:
    journal = place.open_term(T1)
    first, second = append_groups(journal, [2, 1])
    reader = place.reader()
    list(reader.read(Position(), first))
    requests: list[tuple[str, str]] = []
    storage.before = lambda request, key: requests.append((request, key))
    assert [lsn for lsn, _ in reader.read(first, second)] == [4]
    assert requests == [("list", f"journal/{SHARD:04d}"), ("get", KEY.format(4))]
    requests.clear()
    assert list(reader.read(second, second)) == []
    assert requests == []


def test_a_reader_finds_a_position_in_a_long_journal_without_reading_all_of_it(
    storage: WatchedStorage, place: Place
) -> None:
    positions = append_groups(place.open_term(T1), [1] * 200)
    requests: list[str] = []
    storage.before = lambda request, key: requests.append(request)
    assert [lsn for lsn, _ in place.reader().read(positions[98], positions[99])] == [101]
    assert requests.count("get") < 40


def test_a_reader_left_in_the_middle_begins_again(place: Place) -> None:
    append_groups(place.open_term(T1), [1] * 40)
    reader = place.reader()
    records = reader.read(Position(), None)
    assert [next(records)[0] for _ in range(3)] == [1, 2, 3]
    records.close()  # type: ignore[attr-defined]
    assert lsns_of_facts(list(reader.read(Position(), None))) == list(range(2, 42))


def test_the_location_chooses_the_kind(tmp_path: object) -> None:
    assert isinstance(journals_at(str(tmp_path)), FileJournals)
    assert isinstance(journals_at(f"file://{tmp_path}"), FileJournals)
    assert isinstance(journals_at("s3://bucket/prefix"), ObjectJournals)
    with pytest.raises(SettingsError, match="hdfs://x/y cannot be used as storage"):
        journals_at("hdfs://x/y")

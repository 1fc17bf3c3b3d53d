import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_spark.errors import HandoffError
from hermes_spark.events import Coordinates
from hermes_spark.host.intake import Intake
from hermes_spark.host.wire import Span


def take(intake: Intake, partition: str, offset: int, batch: int, span: Span | None) -> bool:
    at = Coordinates(partition, offset)
    if intake.has(at, batch, span):
        return False
    intake.fold(at, batch)
    return True


def test_without_offsets_ids_of_the_newest_batch_count() -> None:
    intake = Intake(None)
    assert take(intake, "f", 3, 0, None)
    assert not take(intake, "f", 3, 0, None)
    assert take(intake, "f", 1, 0, None)
    assert take(intake, "f", 3, 1, None)


def test_an_older_batch_is_refused() -> None:
    intake = Intake(None)
    take(intake, "f", 0, 5, None)
    with pytest.raises(HandoffError, match="batch 4 was offered after batch 5"):
        intake.has(Coordinates("f", 9), 4, None)


def test_with_offsets_everything_below_the_next_is_taken_already() -> None:
    intake = Intake({"p": 10})
    assert not take(intake, "p", 9, 3, Span(5, 20))
    assert take(intake, "p", 10, 3, Span(5, 20))
    assert take(intake, "p", 15, 3, Span(5, 20))
    assert not take(intake, "p", 12, 3, Span(5, 20))


def test_a_source_with_offsets_always_says_them() -> None:
    with pytest.raises(HandoffError, match="without the offsets"):
        Intake({}).has(Coordinates("p", 1), 0, None)


def test_a_span_moves_the_next_offset_up_to_its_start() -> None:
    intake = Intake({})
    assert take(intake, "p", 100, 3, Span(100, 110))
    assert not take(intake, "p", 99, 3, Span(100, 110))


@given(st.lists(st.lists(st.integers(0, 4), max_size=8), min_size=1, max_size=6), st.data())
def test_replays_of_a_batch_in_any_split_take_each_row_once(batches: list[list[int]], data: st.DataObject) -> None:
    """Law: whatever is offered again, and in whatever order of tasks, a shard takes every row exactly once."""
    live = Intake(None)
    taken: list[tuple[int, int]] = []
    for number, sizes in enumerate(batches):
        rows = [(number, task * 100 + row) for task, size in enumerate(sizes) for row in range(size)]
        for _ in range(data.draw(st.integers(1, 3))):
            for _, offset in data.draw(st.permutations(rows)):
                if take(live, "f", offset, number, None):
                    taken.append((number, offset))
    assert len(taken) == len(set(taken)) == sum(sum(sizes) for sizes in batches)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=8), st.data())
def test_offsets_are_taken_once_and_in_order_over_crashes(sizes: list[int], data: st.DataObject) -> None:
    """Law: an owner folded from the journal and from the last commit's ends goes on where the last one stopped."""
    intake, journal, start, ends = Intake({}), list[tuple[int, int]](), 0, {}
    for batch, size in enumerate(sizes):
        span = Span(start, start + size)
        for crash_at in [*data.draw(st.lists(st.integers(0, size - 1), max_size=3)), size]:
            for number, offset in enumerate(range(span.start, span.stop)):
                if number == crash_at:
                    break
                if take(intake, "p", offset, batch, span):
                    journal.append((offset, batch))
            intake = Intake(dict(ends))
            for offset, taken_in in journal:
                intake.fold(Coordinates("p", offset), taken_in)
        start += size
        ends = {"p": start}
    assert [offset for offset, _ in journal] == list(range(start))

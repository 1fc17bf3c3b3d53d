"""Offering rows to the owners of their shards: all at the same time, and nothing that was not taken is forgotten."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import msgspec
import pytest

from hermes_spark.errors import HandoffError, HostAbsent
from hermes_spark.events import Coordinates, Row, shard_of
from hermes_spark.host.wire import OfferAnswer, OfferHeader
from hermes_spark.settings import IntakeSettings, Settings
from hermes_spark.state.records import TermId
from hermes_spark.streaming import handoff
from hermes_spark.streaming.handoff import Handed, HandoffPlan, Offering
from hermes_spark.streaming.ownership import Ownership

SESSION = {shard_of(name, 2): name for name in (f"s{number}" for number in range(20))}
Answer = Callable[[Sequence[Row]], OfferAnswer]


def rows(*shards: int) -> list[Row]:
    return [
        Row(Coordinates("p", offset), 1, msgspec.json.encode({"session_id": SESSION[shard]}))
        for offset, shard in enumerate(shards)
    ]


def offering(monkeypatch: pytest.MonkeyPatch, **owners: Answer) -> Offering:
    """Owners `a` and `b` of shards 0 and 1, who answer as they are told to."""

    class Client:
        def __init__(self, address: str, token: str, settings: object) -> None:
            self._answer = owners[address]

        def offer(self, header: OfferHeader, rows: Sequence[Row], timeout_s: float) -> OfferAnswer:
            return self._answer(rows)

    monkeypatch.setattr(handoff, "connected", Client)
    ownership = Ownership("t", dict(enumerate(sorted(owners))), {0: TermId(1, 1), 1: TermId(1, 2)})
    settings = Settings(intake=IntakeSettings(handoff_timeout_s=0.05))
    return Offering(HandoffPlan(batch=1, ownership=ownership, spans={}, shards=2, settings=settings))


def takes(offered: Sequence[Row]) -> OfferAnswer:
    return OfferAnswer(len(offered), 0)


def test_a_full_owner_keeps_no_rows_from_another(monkeypatch: pytest.MonkeyPatch) -> None:
    other_was_offered = threading.Event()

    def waits_for_the_other(offered: Sequence[Row]) -> OfferAnswer:
        assert other_was_offered.wait(10)
        return takes(offered)

    def frees_the_other(offered: Sequence[Row]) -> OfferAnswer:
        other_was_offered.set()
        return takes(offered)

    offers = offering(monkeypatch, a=waits_for_the_other, b=frees_the_other)
    assert offers.offer(rows(0, 1, 0)) == Handed(taken=3)


def test_rows_of_an_absent_owner_come_back_in_order_and_it_gets_no_later_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def absent(offered: Sequence[Row]) -> OfferAnswer:
        asked.append(len(offered))
        raise HostAbsent("no answer")

    offers = offering(monkeypatch, a=takes, b=absent)
    first = offers.offer(rows(0, 1, 1))
    assert first.taken == 1
    assert [row.coordinates.offset for row in first.untaken] == [1, 2]
    second = offers.offer(rows(1, 0))
    assert (second.taken, [row.coordinates.offset for row in second.untaken]) == (1, [0])
    assert asked == [2]


@pytest.mark.parametrize("full", ["a", "b"])
def test_an_owner_that_stays_full_fails_the_batch(monkeypatch: pytest.MonkeyPatch, full: str) -> None:
    def is_full(offered: Sequence[Row]) -> OfferAnswer:
        return OfferAnswer(0, 0, tuple(range(len(offered))), full=True)

    answers: dict[str, Answer] = {"a": takes, "b": takes, full: is_full}
    with pytest.raises(HandoffError, match=f"the host at {full} is full"):
        offering(monkeypatch, **answers).offer(rows(0, 1))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_fault_of_ours_in_a_thread_loses_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(offered: Sequence[Row]) -> OfferAnswer:
        raise ZeroDivisionError

    with pytest.raises(HandoffError, match="offers to b ended without an answer"):
        offering(monkeypatch, a=takes, b=broken).offer(rows(0, 1))


def test_no_rows_are_no_offers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert offering(monkeypatch, a=takes).offer([]) == Handed()

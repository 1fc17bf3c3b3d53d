import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from hermes_spark.errors import HermesError, StartError, StateError, Superseded
from hermes_spark.state.storage import Storage
from hermes_spark.streaming.epochs import PATIENCE_S, DriverClaim, Rival, newest_epoch


class Clock:
    """A clock that a pause moves; `meanwhile` is what happens during a pause."""

    def __init__(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.now = 0.0
        self._meanwhile = meanwhile

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds
        self._meanwhile()


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage.at(str(tmp_path))


def test_every_driver_gets_an_epoch_of_its_own(storage: Storage) -> None:
    assert [DriverClaim.take(storage).epoch for _ in range(12)] == list(range(1, 13))
    assert newest_epoch(storage) == 12


def test_the_first_driver_waits_for_nobody(storage: Storage) -> None:
    clock = Clock()
    Rival(storage, clock).check(clock.pause)
    assert clock.now == 0


def test_a_driver_that_ended_well_is_not_waited_for(storage: Storage) -> None:
    DriverClaim.take(storage).end()
    clock = Clock()
    Rival(storage, clock).check(clock.pause)
    assert clock.now == 0


def test_a_driver_that_lives_is_named(storage: Storage) -> None:
    other = DriverClaim.take(storage)
    clock = Clock(other.beat)
    with pytest.raises(StartError, match=r"another driver is running on this checkpoint \(process \d+ on .+\)"):
        Rival(storage, clock).check(clock.pause)


def test_a_dead_driver_is_waited_for_a_while(storage: Storage) -> None:
    DriverClaim.take(storage)
    clock = Clock()
    Rival(storage, clock).check(clock.pause)
    assert PATIENCE_S < clock.now < PATIENCE_S + 1


def test_the_wait_began_when_the_rival_was_first_looked_at(storage: Storage) -> None:
    DriverClaim.take(storage)
    clock = Clock()
    rival = Rival(storage, clock)
    clock.now += PATIENCE_S + 1
    rival.check(clock.pause)
    assert clock.now == PATIENCE_S + 1


def test_a_driver_that_starts_meanwhile_is_a_rival_too(storage: Storage) -> None:
    DriverClaim.take(storage)
    clock = Clock(lambda: DriverClaim.take(storage))
    with pytest.raises(StartError, match="another driver is running"):
        Rival(storage, clock).check(clock.pause)


def test_a_driver_that_ends_while_it_is_watched_is_no_rival(storage: Storage) -> None:
    other = DriverClaim.take(storage)
    clock = Clock(other.end)
    Rival(storage, clock).check(clock.pause)
    assert clock.now < PATIENCE_S


def test_an_old_driver_finds_out_when_it_looks(storage: Storage) -> None:
    old = DriverClaim.take(storage)
    old.look()
    new = DriverClaim.take(storage)
    new.look()
    with pytest.raises(Superseded, match="driver 2 has taken this checkpoint over from driver 1"):
        old.look()


def test_an_old_driver_finds_out_by_itself(storage: Storage) -> None:
    old, told, errors = DriverClaim.take(storage), threading.Event(), list[HermesError]()

    def superseded(error: HermesError) -> None:
        errors.append(error)
        told.set()

    old.keep_beating(superseded)
    DriverClaim.take(storage)
    assert told.wait(30)
    assert [type(error) for error in errors] == [Superseded]
    old.end()


def test_beats_of_the_past_are_removed(storage: Storage) -> None:
    for _ in range(5):
        DriverClaim.take(storage)
    assert len(storage.list("beats/")) == 1
    assert len(storage.list("epochs/")) == 5


def test_an_end_that_cannot_be_noted_is_no_error(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    claim = DriverClaim.take(storage)

    def full(key: str, data: bytes) -> None:
        raise StateError("no")

    monkeypatch.setattr(storage, "put", full)
    claim.end()


def test_a_deleted_claim_is_not_claimed_again(storage: Storage) -> None:
    assert DriverClaim.take(storage, known=4).epoch == 5


def test_a_failure_is_explained_by_a_newer_driver_if_there_is_one(storage: Storage) -> None:
    first = DriverClaim.take(storage)
    with pytest.raises(ValueError, match="of Spark"), first.explaining():
        raise ValueError("of Spark")
    DriverClaim.take(storage)
    with pytest.raises(Superseded, match="driver 2 has taken"), first.explaining():
        raise ValueError("of Spark")

"""How a cluster's executors are waited for and shared between hosts and batches."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_spark.errors import StartError
from hermes_spark.settings import HostSettings
from hermes_spark.streaming import executors
from hermes_spark.streaming.executors import Executor, Wait, await_executors, divide, is_local, share
from hermes_spark.streaming.preflight import Slots


def of(*cores: int) -> list[Executor]:
    return [Executor(str(number), each) for number, each in enumerate(cores)]


@pytest.mark.parametrize(
    ("cores", "wanted", "expected"),
    [
        ((4, 4), 2, Slots(2, 2, at_first=2, cpus=3)),
        ((4, 4), 0, Slots(2, 2, at_first=2, cpus=3)),
        ((4,), 2, Slots(2, 1, at_first=1, cpus=3)),
        ((2, 2), 2, None),
        ((2, 2), 0, Slots(1, 2, at_first=1, cpus=2)),
        ((2, 2, 2), 2, Slots(2, 2, at_first=2, cpus=2)),
        ((1, 1), 1, Slots(1, 1, at_first=1, cpus=1)),
        ((1,), 0, None),
        ((8, 2), 2, Slots(2, 5, at_first=1, cpus=5)),
        ((), 1, None),
    ],
)
def test_each_host_has_an_executor_to_itself_and_batches_have_a_slot(
    cores: tuple[int, ...], wanted: int, expected: Slots | None
) -> None:
    assert share(of(*cores), wanted, 1) == expected


@given(st.lists(st.integers(1, 12), max_size=6), st.integers(0, 6), st.integers(1, 3))
def test_no_two_hosts_fit_on_one_executor_and_all_fit(cores: list[int], wanted: int, task_cpus: int) -> None:
    slots = share(of(*cores), wanted, task_cpus)
    if slots is None:
        return
    assert all(2 * slots.cpus > each for each in cores)
    assert 1 <= slots.at_first <= slots.hosts
    assert slots.at_first * slots.cpus + slots.tasks * task_cpus <= sum(cores)
    assert slots.tasks >= 1


def test_tasks_that_want_several_cores_count_whole_tasks() -> None:
    assert share(of(4, 4), 1, 2) == Slots(1, 2, at_first=1, cpus=3)


@pytest.mark.parametrize(
    ("master", "local"),
    [
        ("local", True),
        ("local[3]", True),
        ("local[3,4]", True),
        ("local-cluster[2,4,700]", False),
        ("spark://x:1", False),
    ],
)
def test_only_local_masters_run_everything_in_one_process(master: str, local: bool) -> None:
    assert is_local(master) is local


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds


def test_executors_are_waited_for_until_they_are_enough() -> None:
    clock = Clock()

    def look() -> list[Executor]:
        return of(4, 4) if clock.now >= 5 else of(4)

    assert await_executors(look, lambda there, quiet_s: len(there) == 2, Wait(30, 10), clock, clock.pause) == of(4, 4)
    assert clock.now == pytest.approx(5, abs=0.3)


def test_the_wait_has_an_end_and_goes_on_with_what_is_there() -> None:
    clock = Clock()
    assert await_executors(lambda: of(4), lambda there, quiet_s: False, Wait(30, 10), clock, clock.pause) == of(4)
    assert clock.now == pytest.approx(10, abs=0.3)


def test_the_first_executor_has_more_time_than_another() -> None:
    clock = Clock()
    assert await_executors(lambda: [], lambda there, quiet_s: False, Wait(30, 10), clock, clock.pause) == []
    assert clock.now == pytest.approx(30, abs=0.3)


def test_executors_that_come_and_go_are_not_waited_for_without_end() -> None:
    clock = Clock()
    await_executors(lambda: of(int(clock.now * 5)), lambda there, quiet_s: False, Wait(30, 10), clock, clock.pause)
    assert clock.now == pytest.approx(30, abs=0.3)


def test_quiet_counts_from_the_last_change() -> None:
    clock = Clock()
    seen: list[float] = []

    def look() -> list[Executor]:
        return of(*[4] * min(3, int(clock.now)))

    def settled(there: Sequence[Executor], quiet_s: float) -> bool:
        seen.append(quiet_s)
        return bool(there) and quiet_s > 3

    assert len(await_executors(look, settled, Wait(30, 10), clock, clock.pause)) == 3
    assert clock.now == pytest.approx(6.2, abs=0.4)


QUICK = HostSettings(start_timeout_s=0.1, executors_wait_s=0.1)


class Context:
    def __init__(self, master: str = "spark://x:1", **conf: str) -> None:
        self.master = master
        self.defaultParallelism = 2
        self._conf = conf

    def getConf(self) -> Context:
        return self

    def get(self, name: str, default: str) -> str:
        return self._conf.get(name.removeprefix("spark.").replace(".", "_"), default)


def there(monkeypatch: pytest.MonkeyPatch, *cores: int) -> None:
    monkeypatch.setattr(executors, "registered", lambda context: of(*cores))
    monkeypatch.setattr(executors, "SETTLED_S", 0)


def test_no_executor_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    there(monkeypatch)
    with pytest.raises(StartError, match=r"no executor has registered within 0\.1 s.*spark\.executor\.memory"):
        divide(Context(), 2, QUICK)


def test_too_small_executors_are_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    there(monkeypatch, 2, 2)
    with pytest.raises(
        StartError, match=r"2 agent hosts leave no slot.*takes 2 cores.*have 2, 2.*spark\.executor\.cores"
    ):
        divide(Context(), 2, QUICK)


def test_fewer_executors_than_hosts_are_enough_to_begin_with(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    there(monkeypatch, 4)
    assert divide(Context(), 2, QUICK) == Slots(2, 1, at_first=1, cpus=3)
    assert "room for 1 of 2 hosts" in caplog.text


@pytest.mark.parametrize(("conf", "value"), [("cores_max", "8"), ("executor_instances", "2")])
def test_without_a_number_of_hosts_what_spark_was_promised_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, conf: str, value: str
) -> None:
    looks = iter([of(), of(4), of(4), of(4, 4)])
    monkeypatch.setattr(executors, "registered", lambda context: next(looks))
    monkeypatch.setattr(executors, "POLL_S", 0)
    monkeypatch.setattr(executors, "SETTLED_S", 0)
    assert divide(Context(**{conf: value}), 0, HostSettings()).hosts == 2


def test_locally_every_slot_is_like_another() -> None:
    assert divide(Context("local[2]"), 0, QUICK) == Slots(1, 1)

"""Which sentence a completion ends with when its time runs out."""

import asyncio

from hermes_spark.errors import ModelBusy
from hermes_spark.llm.attempts import Attempts


class Clock:
    now = 0.0

    def time(self) -> float:
        return self.now


def attempts_at(clock: Clock, monkeypatch, limit_s: float) -> Attempts:
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: clock)
    return Attempts(limit_s)


def test_a_time_that_refusals_took_is_blamed_on_the_newest(monkeypatch):
    clock = Clock()
    attempts = attempts_at(clock, monkeypatch, 2.0)
    attempts.begin()
    attempts.refusal = ModelBusy("full")
    clock.now = 1.9
    attempts.begin()
    clock.now = 2.0
    assert attempts.obstacle() is attempts.refusal


def test_a_time_that_the_newest_attempt_took_is_not(monkeypatch):
    clock = Clock()
    attempts = attempts_at(clock, monkeypatch, 2.0)
    attempts.begin()
    attempts.refusal = ModelBusy("full")
    clock.now = 0.3
    attempts.begin()
    clock.now = 2.0
    assert attempts.obstacle() is None


def test_without_a_refusal_nothing_is_to_blame(monkeypatch):
    clock = Clock()
    attempts = attempts_at(clock, monkeypatch, 2.0)
    clock.now = 1.9
    attempts.begin()
    assert attempts.obstacle() is None
    assert attempts.left_s() > 0.09
    clock.now = 9.0
    assert attempts.left_s() == 0.001

"""The demo's events: deterministic, valid, spread over sessions; its bad rows: none of them valid."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from hermes_spark.events import Coordinates, Event, InvalidEvent, Row, parse_event
from hermes_spark.messages import JsonObject
from hermes_spark.tools.demo.messages import bad_rows, demo_event, one_tool_event


def parsed(event: JsonObject | bytes) -> Event:
    value = event if isinstance(event, bytes) else msgspec.json.encode(event)
    return parse_event(Row(Coordinates("test", 0), 1, value), max_bytes=1_048_576)


def test_events_are_valid_and_follow_from_their_number() -> None:
    for value in range(500):
        event = demo_event(value, sessions=7, seed=3)
        assert event == demo_event(value, sessions=7, seed=3)
        assert "ts" not in event
        assert parsed(event).event_id == f"demo-3-{value}"
        assert parsed(one_tool_event(value, 7)).event_id == f"one-{value}"


def test_consecutive_events_go_to_different_sessions_and_all_sessions_are_used() -> None:
    ids = [demo_event(value, sessions=10)["session_id"] for value in range(100)]
    assert all(len(set(ids[at : at + 10])) == 10 for at in range(90))
    assert set(Counter(ids).values()) == {10}
    assert [one_tool_event(value, 10)["session_id"] for value in range(100)] == ids


def test_the_mix_holds_both_languages_and_a_seed_changes_it() -> None:
    texts = [demo_event(value, sessions=10)["messages"][0]["content"] for value in range(1000)]
    chinese = sum(any("\u4e00" <= char <= "\u9fff" for char in text) for text in texts)
    assert 300 < chinese < 800
    assert len(set(texts)) > 100
    assert not any("{" in text or "}" in text for text in texts)
    assert texts != [demo_event(value, sessions=10, seed=1)["messages"][0]["content"] for value in range(1000)]


@pytest.mark.parametrize("row", bad_rows())
def test_bad_rows_are_no_events(row: bytes) -> None:
    assert b"\n" not in row
    with pytest.raises(InvalidEvent):
        parsed(row)


def test_bad_rows_have_a_reason_each() -> None:
    reasons = set()
    for row in bad_rows():
        with pytest.raises(InvalidEvent) as caught:
            parsed(row)
        reasons.add(str(caught.value))
    assert len(reasons) == len(bad_rows())

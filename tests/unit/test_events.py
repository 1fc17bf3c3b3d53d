import msgspec
import pytest

from hermes_spark.events import (
    Coordinates,
    InvalidEvent,
    Row,
    call_id_of,
    parse_event,
    routing_key,
    shard_of,
    turn_id_of,
)
from hermes_spark.messages import ToolSpec


def row(value: bytes, fault: str = "") -> Row:
    return Row(Coordinates("part", 7), 1234, value, fault)


MESSAGE = b'"messages": [{"role": "user", "content": "hi"}]'


def test_an_event_with_all_fields() -> None:
    event = parse_event(
        row(
            b'{"session_id": "s", "event_id": "e", "ts": "2026-01-02T03:04:05Z", "max_tokens": 9, "colour": "red",'
            b' "metadata": {"a": 1}, "tools": ["x", {"name": "y"}, {"name": "z", "description": "d", "parameters": {}}],'
            + MESSAGE
            + b"}"
        ),
        max_bytes=1000,
    )
    assert event.ts_ms == 1767323045000
    assert event.metadata == {"a": 1, "colour": "red"}
    assert event.tools == ("x", "y", ToolSpec("z", "d", {}))


@pytest.mark.parametrize(
    ("seconds", "milliseconds"),
    [(None, None), (0, 0), (60, 60_000), (0.0001, 1), (1.5, 1500), (3_155_760_000, 3.15576e12)],
)
def test_an_event_says_how_long_its_session_is_kept(seconds: float | None, milliseconds: int | None) -> None:
    fields = {"session_id": "s", "type": "reset", "ttl_s": seconds, "session_ttl_s": seconds}
    event = parse_event(row(msgspec.json.encode(fields)), max_bytes=1000)
    assert (event.ttl_ms, event.session_ttl_ms) == (milliseconds, milliseconds)


def test_without_ts_the_row_tells_the_time() -> None:
    assert parse_event(row(b'{"session_id": "s", ' + MESSAGE + b"}"), max_bytes=1000).ts_ms == 1234


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 200_000, "not JSON"),
        (b"[1]", "expected a JSON object, got list"),
        (b"{" + MESSAGE + b"}", "session_id is missing"),
        (b'{"session_id": 5, ' + MESSAGE + b"}", "session_id"),
        (b'{"session_id": "' + b"x" * 300 + b'", ' + MESSAGE + b"}", "more than 256"),
        (b'{"session_id": "s"}', "no user message"),
        (b'{"session_id": "s", "messages": [{"role": "system", "content": "x"}]}', "role"),
        (
            b'{"session_id": "s", "messages": [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}]}',
            "ends",
        ),
        (
            b'{"session_id": "s", "metadata": {"d": ' + b"[" * 40 + b"]" * 40 + b"}, " + MESSAGE + b"}",
            "more than 32 levels",
        ),
        (b'{"session_id": "s", "type": "shout"}', "type"),
        (b'{"session_id": "s", "type": "approval"}', "turn_id, call_id and decision"),
        (b'{"session_id": "s", "ttl_s": -1, ' + MESSAGE + b"}", "ttl_s is -1; expected seconds from 0"),
        (b'{"session_id": "s", "session_ttl_s": 1e300, ' + MESSAGE + b"}", "session_ttl_s is 1e"),
        (b'{"session_id": "s", "ttl_s": true, ' + MESSAGE + b"}", "ttl_s"),
        (b'{"session_id": "s", "max_tokens": 0, ' + MESSAGE + b"}", "max_tokens is 0"),
        (b'{"session_id": "s", "ts": "soon", ' + MESSAGE + b"}", "ts is 'soon'"),
        (b'{"session_id": "s", "ts": -5, ' + MESSAGE + b"}", "ts is -5"),
        (b'{"session_id": "s", "metadata": {"n": 99999999999999999999999}, ' + MESSAGE + b"}", "cannot be stored"),
        (b'{"session_id": "s", "tools": [{"name": "t", "description": "d"}], ' + MESSAGE + b"}", "no parameters"),
        (b'{"session_id": "s", "x": "' + b"x" * 2000 + b'", ' + MESSAGE + b"}", "at most 1000"),
    ],
)
def test_what_is_no_event_says_why(value: bytes, says: str) -> None:
    with pytest.raises(InvalidEvent, match=says.replace("[", r"\[")):
        parse_event(row(value), max_bytes=1000 if b"x" * 1000 in value and b'"x":' in value else 1_000_000)


def test_a_fault_of_the_source_is_the_reason() -> None:
    with pytest.raises(InvalidEvent, match="the file is too large"):
        parse_event(row(b"", "the file is too large"), max_bytes=10)


@pytest.mark.parametrize("value", [b"", b"nonsense", b'{"session_id": 3}', b'{"session_id": ""}', b"[" * 200_000])
def test_a_row_without_a_session_is_routed_by_its_partition(value: bytes) -> None:
    assert routing_key(row(value)) == "part"


def test_routing_is_pinned() -> None:
    assert routing_key(row(b'{"session_id": "s1", "x": [1, {"y": 2}]}')) == "s1"
    assert [shard_of(f"s{n}", 16) for n in range(8)] == [9, 4, 10, 10, 8, 0, 15, 1]


def test_ids_do_not_collide_when_fields_are_joined_differently() -> None:
    assert turn_id_of("q", "a/b", Coordinates("c", 1)) != turn_id_of("q", "a", Coordinates("b/c", 1))
    assert call_id_of("t", 1, 11) != call_id_of("t", 11, 1)
    assert len(call_id_of("t", 0, 0)) == 32

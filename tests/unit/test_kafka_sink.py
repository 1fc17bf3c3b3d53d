"""Published rows as Kafka records: keys, headers, bytes, and the bound on their size."""

from __future__ import annotations

import base64

import msgspec
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from hermes_spark.kafka.confirmed import Message
from hermes_spark.settings import KafkaSinkSettings
from hermes_spark.streaming.kafka_sink import MAX_VALUE_BYTES, KafkaSink, messages
from hermes_spark.streaming.table_schemas import SCHEMA_VERSION, TABLES

TOPICS = KafkaSinkSettings(outcomes_topic="o", calls_topic="c", dead_letters_topic="d")


def tables(batch: int = 3, *, calls: int = 2, reply: str = "好", raw: bytes = b"\xff") -> dict[str, pa.Table]:
    place = {"query_id": "q", "batch_id": batch, "shard": 1, "lsn": 7, "schema_version": SCHEMA_VERSION}
    outcome = {**place, "session_id": "s1", "turn_id": "t1", "event_id": "e1", "status": "completed", "reply": reply}
    outcome["calls"] = [{"call_id": f"c{n}", "name": "crm", "arguments": "{}", "sent_at": 1_000} for n in range(calls)]
    letters = [{**place, "session_id": None, "reason": "no JSON", "raw": raw}]
    rows = {"outcomes": [{**outcome, "finished_at": 1_500, "undos": []}], "dead_letters": letters}
    return {name: pa.Table.from_pylist(rows.get(name, []), schema=schema) for name, schema in TABLES.items()}


def test_a_record_per_outcome_call_and_dead_letter():
    sent = list(messages(tables(), TOPICS))
    assert [(m.topic, m.key) for m in sent] == [("o", b"s1"), ("c", b"s1"), ("c", b"s1"), ("d", None)]
    version = ("schema_version", str(SCHEMA_VERSION).encode())
    assert sent[0].headers == [("event_id", b"e1"), ("turn_id", b"t1"), version]
    assert sent[1].headers == sent[0].headers
    assert sent[3].headers == [version]
    values = [msgspec.json.decode(m.value) for m in sent]
    assert values[0]["reply"] == "好"
    assert values[0]["finished_at"] == "1970-01-01T00:00:01.500000Z"
    assert [value["call_id"] for value in values[1:3]] == ["c0", "c1"]
    assert values[1]["turn_id"] == "t1"
    assert base64.b64decode(values[3]["raw"]) == b"\xff"


def test_a_topic_without_a_name_gets_nothing():
    assert {m.topic for m in messages(tables(), KafkaSinkSettings(calls_topic="c"))} == {"c"}
    assert {m.topic for m in messages(tables(), KafkaSinkSettings(dead_letters_topic="d"))} == {"d"}


def test_the_batch_that_sends_a_row_does_not_show():
    assert list(messages(tables(3), TOPICS)) == list(messages(tables(8), TOPICS))


@given(st.integers(0, 3_000_000), st.integers(0, 2_000_000), st.integers(0, 40))
def test_no_value_is_larger_than_the_bound_and_names_are_whole(reply, raw, calls):
    for sent in messages(tables(calls=calls, reply="好" * (reply // 3), raw=b"r" * raw), TOPICS):
        assert len(sent.value) <= MAX_VALUE_BYTES
        value = msgspec.json.decode(sent.value)
        assert value["query_id"] == "q"
        assert "cut" not in value or reply > 800_000 or raw > 600_000


def test_the_sink_hands_over_all_at_once():
    class Sender:
        def send(self, sent) -> None:
            self.sent: list[Message] = list(sent)

    sender = Sender()
    KafkaSink(sender, TOPICS).publish(3, tables())
    assert sender.sent == list(messages(tables(), TOPICS))

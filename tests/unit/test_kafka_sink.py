"""Published rows as Kafka records: keys, headers, bytes, and the bound on their size."""

from __future__ import annotations

import base64

import msgspec
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from hermes_spark.events import Coordinates
from hermes_spark.kafka.confirmed import Message
from hermes_spark.messages import Usage
from hermes_spark.settings import KafkaSinkSettings
from hermes_spark.state.records import CallSummary, Outcome
from hermes_spark.streaming.kafka_sink import MAX_VALUE_BYTES, KafkaSink, messages, outcome_message
from hermes_spark.streaming.table_schemas import SCHEMA_VERSION, TABLES
from hermes_spark.streaming.tables import build_tables

TOPICS = KafkaSinkSettings(outcomes_topic="o", calls_topic="c", dead_letters_topic="d")


def tables(batch: int = 3, *, calls: int = 2, reply: str = "好", raw: bytes = b"\xff") -> dict[str, pa.Table]:
    place = {"query_id": "q", "batch_id": batch, "shard": 1, "lsn": 7, "schema_version": SCHEMA_VERSION}
    outcome = {**place, "session_id": "s1", "turn_id": "t1", "event_id": "e1", "status": "completed", "reply": reply}
    outcome["calls"] = [{"call_id": f"c{n}", "name": "crm", "arguments": "{}", "sent_at": 1_000} for n in range(calls)]
    letters = [{**place, "session_id": None, "reason": "no JSON", "raw": raw}]
    rows = {"outcomes": [{**outcome, "finished_at": 1_500, "undos": []}], "dead_letters": letters}
    return {name: pa.Table.from_pylist(rows.get(name, []), schema=schema) for name, schema in TABLES.items()}


def sent_of(tables: dict[str, pa.Table], topics: KafkaSinkSettings = TOPICS) -> list[Message]:
    return list(messages(tables, tables["outcomes"], topics))


def test_a_record_per_outcome_call_and_dead_letter():
    sent = sent_of(tables())
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
    assert {m.topic for m in sent_of(tables(), KafkaSinkSettings(calls_topic="c"))} == {"c"}
    assert {m.topic for m in sent_of(tables(), KafkaSinkSettings(dead_letters_topic="d"))} == {"d"}


def test_the_batch_that_sends_a_row_does_not_show():
    assert sent_of(tables(3)) == sent_of(tables(8))


@given(st.integers(0, 3_000_000), st.integers(0, 2_000_000), st.integers(0, 40))
def test_no_value_is_larger_than_the_bound_and_names_are_whole(reply, raw, calls):
    for sent in sent_of(tables(calls=calls, reply="好" * (reply // 3), raw=b"r" * raw)):
        assert len(sent.value) <= MAX_VALUE_BYTES
        value = msgspec.json.decode(sent.value)
        assert value["query_id"] == "q"
        assert "cut" not in value or reply > 800_000 or raw > 600_000


def test_the_sink_hands_over_all_at_once():
    class Sender:
        def send(self, sent) -> None:
            self.sent: list[Message] = list(sent)

    sender = Sender()
    KafkaSink(sender, TOPICS).publish(tables(), tables()["outcomes"])
    assert sender.sent == sent_of(tables())


def test_outcomes_that_hosts_have_sent_are_left_out_and_their_calls_are_not():
    batch = tables()
    sent = list(messages(batch, batch["outcomes"].slice(0, 0), TOPICS))
    assert sent == sent_of(batch)[1:]


def test_a_host_sends_the_bytes_that_a_batch_would():
    calls = (CallSummary("c1", "crm_query", {"name": "张三"}, "ok", "[]", 0, 1, 1_000, 1_200),)
    outcome = Outcome(
        "s1", "t1", Coordinates("t-0", 7), "e1", "completed", "", "好", False, 2, calls, Usage(9, 2), 100, 200, 1_500
    )
    placed = (1, 7, outcome)
    batch = build_tables("q", 3, [placed])
    assert outcome_message("o", "q", placed) == sent_of(batch)[0]

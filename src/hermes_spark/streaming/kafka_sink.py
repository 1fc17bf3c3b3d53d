"""The sink `kafka`: published rows as records of up to three topics, one per outcome, call and dead letter.

A record's key is the session's id and its value the row as JSON, without `batch_id`: the same row has the same bytes whoever
sends it and how often. Times are RFC 3339 texts, bytes are base64. The headers `event_id`, `turn_id` and `schema_version` let
a consumer drop repeats without reading the value: a batch that runs again sends its records again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import msgspec
import pyarrow as pa

from hermes_spark.errors import KafkaError, StartError
from hermes_spark.kafka.confirmed import ConfirmedProducer, Message
from hermes_spark.kafka.connection import client_config
from hermes_spark.kafka.topics import Topics
from hermes_spark.settings import KafkaSinkSettings, Settings
from hermes_spark.streaming.tables import PlacedRecord, build_tables

MAX_VALUE_BYTES = 900_000
"""Of a record's value; what is longer is cut, and says so. The rest of the record has room below `MAX_RECORD_BYTES`."""
_FIRST_CUT = 1 << 18
_HEADERS = ("event_id", "turn_id", "schema_version")
_NAMES = frozenset(
    {"query_id", "session_id", "turn_id", "event_id", "call_id", "source_partition", "previous_hash", "hash"}
)
"""What names things is never cut."""
_OF_CALLS = ("query_id", "shard", "lsn", "session_id", "turn_id", "event_id")


class Sender(Protocol):
    """What the sink asks of a producer (`kafka.confirmed.ConfirmedProducer`)."""

    def send(self, messages: Iterable[Message]) -> None:
        """Return when all records are in their topics, or raise."""
        ...


class KafkaSink:
    """Sends each batch's rows; all are confirmed when `publish` returns."""

    def __init__(self, sender: Sender, topics: KafkaSinkSettings) -> None:
        self._sender = sender
        self._topics = topics

    @classmethod
    def open(cls, settings: Settings) -> KafkaSink | None:
        """The sink of the settings; None if they name no topic.

        Raises `StartError` when a topic does not exist or no broker answers, `SettingsError` as `client_config`.
        """
        names = settings.sink.kafka
        wanted = {
            setting: getattr(names, setting) for setting in ("outcomes_topic", "calls_topic", "dead_letters_topic")
        }
        wanted = {setting: topic for setting, topic in wanted.items() if topic}
        if not wanted:
            return None
        config = client_config(settings.kafka)
        try:
            topics = Topics(config)
            missing = [
                f"sink.kafka.{setting} {topic}" for setting, topic in wanted.items() if topics.state(topic) is None
            ]
            if missing:
                raise StartError(
                    f"{' and '.join(missing)} not found at {settings.kafka.bootstrap_servers}; create every topic, this job "
                    "does not"
                )
            return cls(ConfirmedProducer(config), names)
        except KafkaError as exc:
            raise StartError(str(exc)) from None

    def publish(self, tables: Mapping[str, pa.Table], unsettled: pa.Table) -> None:
        """Send the rows; of outcomes those of `unsettled`. Raises `KafkaError` unless all are confirmed."""
        self._sender.send(messages(tables, unsettled, self._topics))


def messages(tables: Mapping[str, pa.Table], unsettled: pa.Table, topics: KafkaSinkSettings) -> Iterator[Message]:
    """The records of a batch's tables, those of one topic in the rows' order; `unsettled`: the outcomes to send."""
    if topics.outcomes_topic:
        for row in unsettled.to_pylist():
            yield message(topics.outcomes_topic, row)
    if topics.calls_topic:
        for row in tables["outcomes"].to_pylist():
            shared = {name: row[name] for name in _OF_CALLS}
            for call in row["calls"]:
                yield message(topics.calls_topic, {**shared, **call, "schema_version": row["schema_version"]})
    if topics.dead_letters_topic:
        for row in tables["dead_letters"].to_pylist():
            yield message(topics.dead_letters_topic, row)


def outcome_message(topic: str, query_id: str, placed: PlacedRecord) -> Message:
    """The record of one outcome as it stands in the journal; the same bytes as `messages` makes of it."""
    table = build_tables(query_id, 0, [placed])["outcomes"]
    return message(topic, table.to_pylist()[0])


def message(topic: str, row: Mapping[str, Any]) -> Message:
    """The record of a row."""
    key = row["session_id"]
    headers = [(name, str(row[name]).encode()) for name in _HEADERS if row.get(name) is not None]
    return Message(topic, None if key is None else key.encode(), _value(row), headers)


def _value(row: Mapping[str, Any]) -> bytes:
    kept = {name: value for name, value in row.items() if name != "batch_id"}
    value, limit = msgspec.json.encode(kept), _FIRST_CUT
    while len(value) > MAX_VALUE_BYTES and limit:
        value = msgspec.json.encode({**_cut(kept, limit), "cut": True})
        limit //= 2
    return value


def _cut(value: Any, limit: int) -> Any:
    """`value` with every text and every bytes in it that have more than `limit` characters cut there."""
    if isinstance(value, str | bytes):
        return value[:limit]
    if isinstance(value, list):
        return [_cut(item, limit) for item in value]
    if isinstance(value, Mapping):
        return {name: item if name in _NAMES else _cut(item, limit) for name, item in value.items()}
    return value

"""An agent host: what it is made of, and how its process is tuned."""

from __future__ import annotations

import asyncio
import gc
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import uvloop

from hermes_spark.errors import HermesError
from hermes_spark.host.ahead import Deliver, RunAhead
from hermes_spark.host.early import EarlyOutcomes
from hermes_spark.host.effects import Services
from hermes_spark.host.host import AgentHost, OpenShard
from hermes_spark.host.lanes import Lanes
from hermes_spark.host.machine import check_machine
from hermes_spark.host.opening import ShardOpener
from hermes_spark.host.shard import ShardRules
from hermes_spark.host.wire import HostExit, HostPayload, unpack
from hermes_spark.kafka.connection import client_config
from hermes_spark.kafka.early import EarlyProducer
from hermes_spark.kafka.reader import KafkaReader
from hermes_spark.llm.tokenizer import ChatTokenizer
from hermes_spark.llm.triton import TritonModel
from hermes_spark.settings import ModelSettings, Settings
from hermes_spark.settings import from_json as settings_from_json
from hermes_spark.state.journal_store import journals_at
from hermes_spark.state.records import Outcome
from hermes_spark.state.rocksdb import RocksMemory, RocksStore
from hermes_spark.state.storage import Storage
from hermes_spark.streaming.kafka_sink import outcome_message
from hermes_spark.telemetry import configure_logging
from hermes_spark.tools.http import HttpToolCaller
from hermes_spark.tools.registry import Registry

PROJECT = Path(__file__).parents[3]
"""The checkout, where `conf/` and `model_repository/` lie beside `src/`."""


def run_host(payload_bytes: bytes) -> HostExit:
    """Be an agent host until told to end; called inside a Spark task, after the fork, so clients are made here."""
    payload = unpack(payload_bytes, HostPayload)
    loop = uvloop.new_event_loop()
    try:
        settings = settings_from_json(payload.settings.decode())
        configure_logging(settings.telemetry.log_level)
        settle_down()
        check_machine(payload.machine, payload.state_path)
        exit_: HostExit = loop.run_until_complete(_run_host(payload, settings))
    except HermesError as exc:
        return HostExit(type(exc).__name__, str(exc))
    finally:
        loop.close()
    return exit_


def settle_down() -> None:
    """Tune this process for one busy loop beside a few threads that wait for the disk and for callers."""
    sys.setswitchinterval(0.001)  # s; a thread whose sync is done should not wait 5 ms (the default) for the loop
    gc.set_threshold(20_000, 20, 50)


async def _run_host(payload: HostPayload, settings: Settings) -> HostExit:
    registry = Registry.parse(payload.tool_file, settings.tools)
    tokenizer = tokenizer_of(settings.model)
    gc.freeze()  # what is loaded by now stays, and need not be walked by every full collection

    def services(host: AgentHost) -> Services:
        return Services(
            settings=settings,
            model=TritonModel(settings.model, tokenizer),
            tools=HttpToolCaller(settings.tools),
            registry=registry,
            tool_slots=asyncio.Semaphore(settings.tools.max_in_flight),
            ended=host.turn_ended,
            failed=host.failed,
        )

    rules = ShardRules(payload.query_id, settings, registry, _now_ms)

    def run_ahead(lanes: Lanes) -> RunAhead:
        return RunAhead(settings, lanes, partial(_kafka_reader, settings))

    early = EarlyOutcomes(_KafkaOutcomes(payload.query_id, settings)) if settings.sink.kafka.mode == "early" else None
    return await AgentHost(payload, services, _shard_opener(payload, rules), run_ahead, early).run()


class _KafkaOutcomes:
    """Sends the very records that a batch would send; see `EarlySink`."""

    def __init__(self, query_id: str, settings: Settings) -> None:
        self._query_id = query_id
        self._topic = settings.sink.kafka.outcomes_topic
        self._producer = EarlyProducer(client_config(settings.kafka))
        self.close = self._producer.close

    def send(self, shard: int, lsn: int, outcome: Outcome, confirmed: Callable[[], None]) -> None:
        self._producer.send(outcome_message(self._topic, self._query_id, (shard, lsn, outcome)), confirmed)


def _kafka_reader(settings: Settings, deliver: Deliver) -> KafkaReader:
    source = settings.source
    return KafkaReader(client_config(settings.kafka), source.topic, source.isolation_level, deliver)


def _shard_opener(payload: HostPayload, rules: ShardRules) -> OpenShard:
    settings = rules.settings.state
    journals = journals_at(payload.state_path, settings.journal_file_bytes)
    memory = RocksMemory(settings.block_cache_bytes, settings.write_buffer_bytes)
    local = Path(settings.local_path or Path(tempfile.gettempdir()) / "hermes-spark") / payload.query_id

    def open_store(path: Path) -> RocksStore:
        return RocksStore(path, shared=memory, shards=settings.shards, max_open_files=settings.max_open_files)

    return ShardOpener(journals, local, rules, open_store, Storage.at(payload.state_path))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def tokenizer_of(settings: ModelSettings) -> ChatTokenizer:
    """The tokenizer that a model's settings name; by default the one beside the model."""
    beside = PROJECT / "model_repository" / settings.name / "tokenizer"
    directory = Path(settings.tokenizer) if settings.tokenizer else beside
    return ChatTokenizer.load(directory, format=settings.format)

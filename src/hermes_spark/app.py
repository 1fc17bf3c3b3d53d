"""Puts the pieces together: the only module that chooses concrete stores, clients and sinks.

Two processes start here. `stream_agent` is the driver's job (`jobs/stream_agent.py`); `run_host` is an agent host, named by
`streaming.launcher` and run inside a Spark task.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import msgspec
import uvloop
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from hermes_spark.errors import HermesError, SettingsError, StartError
from hermes_spark.host.effects import Services
from hermes_spark.host.host import AgentHost, OpenShard
from hermes_spark.host.opening import ShardOpener
from hermes_spark.host.shard import ShardRules
from hermes_spark.host.wire import HostExit, HostPayload, unpack
from hermes_spark.llm.tokenizer import ChatTokenizer
from hermes_spark.llm.triton import TritonModel
from hermes_spark.settings import ModelSettings, Settings, load, to_json, validate
from hermes_spark.settings import from_json as settings_from_json
from hermes_spark.state.journal_store import journals_at
from hermes_spark.state.retention import Retention
from hermes_spark.state.rocksdb import RocksMemory, RocksStore
from hermes_spark.state.storage import Storage, is_remote, local_path
from hermes_spark.streaming.commit import Commit, CommitLog
from hermes_spark.streaming.epochs import DriverClaim, Rival
from hermes_spark.streaming.fleet import Fleet
from hermes_spark.streaming.launcher import SparkHostLauncher
from hermes_spark.streaming.orchestrator import BatchParts, Orchestrator
from hermes_spark.streaming.ownership import CommittedView, DriverPlace
from hermes_spark.streaming.preflight import Slots, check_source, check_spark, check_workers, divide_slots
from hermes_spark.streaming.progress import write_progress
from hermes_spark.streaming.pruning import Pruner
from hermes_spark.streaming.publish import ConsoleSink, ParquetSink, Sink
from hermes_spark.streaming.query import Ended, start, watch
from hermes_spark.streaming.source import open_source
from hermes_spark.streaming.spark_log import settle
from hermes_spark.streaming.stop_signals import StopSignals
from hermes_spark.telemetry import JsonLines, configure_logging
from hermes_spark.tools.http import HttpToolCaller
from hermes_spark.tools.registry import Registry

log = logging.getLogger(__name__)

CHECK_TIMEOUT_S = 30.0
PROJECT = Path(__file__).parents[2]
"""The checkout, where `conf/` and `model_repository/` lie beside `src/`."""


# ---------------------------------------------------------------------- the driver's job


def stream_agent() -> int:
    """Run the streaming job until it ends; returns the exit status: 0 well, 1 failed, 2 not startable as configured."""
    spark = SparkSession.builder.appName("hermes-spark").getOrCreate()
    try:
        settings = read_settings(os.environ, dict(spark.sparkContext.getConf().getAll()))
        configure_logging(settings.telemetry.log_level)
        ended = run_job(spark, settings)
    except (SettingsError, StartError) as exc:
        return _say(2, exc)
    except HermesError as exc:
        return _say(1, exc)
    except (PySparkException, Py4JError) as exc:
        log.exception("the query failed")
        return _say(1, HermesError(f"the query failed: {str(exc).strip().partition(chr(10))[0]}"))
    finally:
        spark.stop()
    print(f"hermes-spark: ended ({ended.reason})", file=sys.stderr)  # noqa: T201 - the job's last word
    return 0


def read_settings(environment: Mapping[str, str], spark_conf: Mapping[str, str]) -> Settings:
    """The job's settings, checked; files that are named relatively are looked for here, then in the project.

    Raises `SettingsError`.
    """
    settings = load(file=None, environment=environment, spark_conf=spark_conf)
    validate(settings)
    tool_file = Path(settings.tools.file)
    if not tool_file.exists() and (PROJECT / tool_file).exists():
        tool_file = PROJECT / tool_file
    tools = msgspec.structs.replace(settings.tools, file=str(tool_file.absolute()))
    return msgspec.structs.replace(settings, tools=tools)


def run_job(spark: SparkSession, settings: Settings) -> Ended:
    """Start hosts and query, and return when the query has ended well. Raises `HermesError`s."""
    asked = StopSignals()
    state_path = _state_path(settings)
    storage = Storage.at(state_path)
    rival = Rival(storage)
    slots = _preflight(spark.sparkContext, settings)
    frame = open_source(spark, settings)
    commits = CommitLog(storage)
    query_id = commits.meta(settings.state.shards).query_id
    rival.check()
    last = commits.last()
    claim = DriverClaim.take(storage, known=0 if last is None else last.epoch)
    log.info("query %s, epoch %d: %d hosts, %d slots for batches", query_id, claim.epoch, slots.hosts, slots.tasks)
    fleet = _fleet(spark.sparkContext, settings, query_id, claim.epoch, state_path)
    with contextlib.ExitStack() as ending:
        ending.callback(claim.end)
        claim.keep_beating(fleet.fail)
        parts = _batch_parts(settings, query_id, claim, fleet, commits, slots.tasks)
        ending.callback(parts.pruner.close)
        ending.callback(fleet.stop)
        fleet.start(slots.hosts, settings.state.shards, _view(commits.last()))
        orchestrator = Orchestrator(parts)
        query = start(frame, settings, orchestrator)
        ended = watch(query, settings, orchestrator, asked)
        write_progress(query, _measurements(settings, f"progress-{claim.epoch}"))
        return ended


def _batch_parts(
    settings: Settings, query_id: str, claim: DriverClaim, fleet: Fleet, commits: CommitLog, tasks: int
) -> BatchParts:
    checkpoint, state_path, shards = (
        local_path(settings.checkpoint),
        _state_path(settings),
        range(settings.state.shards),
    )
    journals = journals_at(state_path)
    return BatchParts(
        settings=settings,
        query_id=query_id,
        epoch=claim.epoch,
        look=claim.look,
        fleet=fleet,
        commits=commits,
        checkpoint=Storage.at(str(checkpoint)),
        settle=partial(settle, checkpoint),
        readers={shard: journals.reader(shard) for shard in shards},
        sinks=_sinks(settings),
        tasks=tasks,
        batch_log=_measurements(settings, f"batches-{claim.epoch}"),
        pruner=Pruner(
            {} if is_remote(state_path) else _retained(state_path, shards), settings.snapshot.prune_interval_s
        ),
    )


def _view(last: Commit | None) -> CommittedView:
    return CommittedView({}, {}) if last is None else CommittedView(last.positions, last.ends)


def _measurements(settings: Settings, name: str) -> JsonLines | None:
    directory = settings.telemetry.turn_log
    return JsonLines(directory, f"{name}.jsonl") if directory else None


def _retained(state_path: str, shards: range) -> dict[int, Retention]:
    """What prunes the journals in files; those in objects are not pruned."""
    storage = Storage.at(state_path)
    return {shard: Retention(local_path(state_path), shard, storage) for shard in shards}


def _preflight(context: SparkContext, settings: Settings) -> Slots:
    """Everything that can be found out before anything is started. Raises `StartError`, `SettingsError`, `ModelError`."""
    check_spark(context)
    slots = divide_slots(context.defaultParallelism, settings.hosts)
    check_source(settings)
    Registry.load(settings.tools)
    with ThreadPoolExecutor(1) as beside:  # both take seconds, mostly of imports
        model = beside.submit(lambda: asyncio.run(asyncio.wait_for(_check_model(settings.model), CHECK_TIMEOUT_S)))
        check_workers(context)
        model.result()
    return slots


def _fleet(context: SparkContext, settings: Settings, query_id: str, epoch: int, state_path: str) -> Fleet:
    payload = HostPayload(
        index=0,
        token=secrets.token_urlsafe(32),
        driver="",
        address=settings.host.address,
        query_id=query_id,
        state_path=state_path,
        settings=to_json(settings).encode(),
    )
    here = settings.host.address or str(context.getConf().get("spark.driver.host", "127.0.0.1"))
    launcher = SparkHostLauncher(context, f"{query_id[:8]}-{epoch}", f"{__name__}:{run_host.__name__}")
    return Fleet(launcher, payload, settings.host, DriverPlace(epoch, here))


async def _check_model(settings: ModelSettings) -> None:
    model = TritonModel(settings, tokenizer_of(settings))
    try:
        await model.check()
    finally:
        await model.close()


def tokenizer_of(settings: ModelSettings) -> ChatTokenizer:
    """The tokenizer that a model's settings name; by default the one beside the model."""
    beside = PROJECT / "model_repository" / settings.name / "tokenizer"
    directory = Path(settings.tokenizer) if settings.tokenizer else beside
    return ChatTokenizer.load(directory, format=settings.format)


def _sinks(settings: Settings) -> list[Sink]:
    sinks: list[Sink] = []
    if settings.sink.path:
        sinks.append(ParquetSink(Storage.at(settings.sink.path)))
    if settings.sink.console:
        sinks.append(ConsoleSink())
    return sinks


def _state_path(settings: Settings) -> str:
    """Where the state is kept, the same for all processes: a URL of an object store, or an absolute path of this machine."""
    location = settings.state.path or f"{settings.checkpoint}/hermes"
    return location if is_remote(location) else str(local_path(location))


def _say(status: int, exc: HermesError) -> int:
    print(f"hermes-spark: {exc}", file=sys.stderr)  # noqa: T201 - the sentence is the interface
    return status


# ---------------------------------------------------------------------- an agent host


def run_host(payload_bytes: bytes) -> HostExit:
    """Be an agent host until told to end; called inside a Spark task, after the fork, so clients are made here."""
    payload = unpack(payload_bytes, HostPayload)
    settings = settings_from_json(payload.settings.decode())
    configure_logging(settings.telemetry.log_level)
    settle_down()
    loop = uvloop.new_event_loop()
    try:
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
    registry = Registry.load(settings.tools)
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
    return await AgentHost(payload, services, _shard_opener(payload, rules)).run()


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

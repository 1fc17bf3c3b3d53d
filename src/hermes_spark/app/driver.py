"""The driver's job: what `jobs/stream_agent.py` runs, put together from concrete parts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import msgspec
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from hermes_spark.app.host import PROJECT, run_host, tokenizer_of
from hermes_spark.errors import HermesError, SettingsError, StartError
from hermes_spark.host.machine import machine_id
from hermes_spark.host.wire import HostPayload
from hermes_spark.llm.triton import TritonModel
from hermes_spark.settings import ModelSettings, Settings, load, to_json, validate
from hermes_spark.state.journal_store import journals_at
from hermes_spark.state.retention import Retention
from hermes_spark.state.storage import Storage, is_remote, local_path
from hermes_spark.streaming.ahead import RunAheadOrders
from hermes_spark.streaming.commit import Commit, CommitLog
from hermes_spark.streaming.driver_note import NOTE_VARIABLE, DriverNote
from hermes_spark.streaming.epochs import DriverClaim, Rival
from hermes_spark.streaming.executors import divide
from hermes_spark.streaming.fleet import Fleet
from hermes_spark.streaming.kafka_sink import KafkaSink
from hermes_spark.streaming.kafka_source import KafkaTopic
from hermes_spark.streaming.launcher import HostLauncher, SparkHostLauncher
from hermes_spark.streaming.orchestrator import BatchParts, Orchestrator
from hermes_spark.streaming.ownership import CommittedView, DriverPlace
from hermes_spark.streaming.preflight import Slots, check_source, check_spark, check_workers
from hermes_spark.streaming.progress import write_progress
from hermes_spark.streaming.pruning import Pruner
from hermes_spark.streaming.publish import ConsoleSink, ParquetSink, Sink
from hermes_spark.streaming.publishing import Publisher
from hermes_spark.streaming.query import Ended, start, watch
from hermes_spark.streaming.source import open_source
from hermes_spark.streaming.spark_log import settle
from hermes_spark.streaming.stop_signals import StopSignals
from hermes_spark.telemetry import JsonLines, configure_logging
from hermes_spark.tools.registry import Registry

log = logging.getLogger(__name__)

CHECK_TIMEOUT_S = 30.0


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
    commits = CommitLog(storage)
    topic = KafkaTopic.open(settings, commits) if settings.source.kind == "kafka" else None
    frame = open_source(spark, settings, "" if topic is None else topic.first_offsets)
    query_id = commits.meta(settings.state.shards).query_id
    rival.check()
    last = commits.last()
    claim = DriverClaim.take(storage, known=0 if last is None else last.epoch)
    log.info("query %s, epoch %d: %d hosts, %d slots for batches", query_id, claim.epoch, slots.hosts, slots.tasks)
    launcher = SparkHostLauncher(
        spark.sparkContext, f"{query_id[:8]}-{claim.epoch}", f"{run_host.__module__}:{run_host.__name__}", slots.cpus
    )
    fleet = _fleet(spark.sparkContext, launcher, settings, query_id, claim.epoch)
    with contextlib.ExitStack() as ending:
        ending.callback(claim.end)
        claim.keep_beating(fleet.fail)
        parts = _batch_parts(settings, claim, fleet, commits, slots.tasks, topic)
        ending.callback(parts.pruner.close)
        ending.callback(fleet.stop)
        fleet.start(slots.hosts, settings.state.shards, _view(commits.last()), slots.at_first)
        orchestrator = Orchestrator(parts)
        query = start(frame, settings, orchestrator)
        with claim.explaining(), contextlib.nullcontext() if topic is None else topic.explaining():
            ended = watch(query, settings, orchestrator, asked)
        write_progress(query, _measurements(settings, f"progress-{claim.epoch}"))
        return ended


def _batch_parts(
    settings: Settings,
    claim: DriverClaim,
    fleet: Fleet,
    commits: CommitLog,
    tasks: int,
    topic: KafkaTopic | None,
) -> BatchParts:
    checkpoint, state_path = local_path(settings.checkpoint), _state_path(settings)
    shards = range(settings.state.shards)
    journals = journals_at(state_path)
    query_id = commits.meta(settings.state.shards).query_id
    return BatchParts(
        settings=settings,
        epoch=claim.epoch,
        look=claim.look,
        fleet=fleet,
        commits=commits,
        checkpoint=Storage.at(str(checkpoint)),
        settle=partial(settle, checkpoint),
        publisher=Publisher(
            settings,
            query_id,
            {shard: journals.reader(shard) for shard in shards},
            _sinks(settings),
            KafkaSink.open(settings),
        ),
        tasks=tasks,
        note=DriverNote(os.environ.get(NOTE_VARIABLE, "")),
        topic=topic,
        ahead=RunAheadOrders.of(settings),
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
    slots = divide(context, settings.hosts, settings.host)
    check_source(settings)
    Registry.load(settings.tools)
    with ThreadPoolExecutor(1) as beside:  # both take seconds, mostly of imports
        model = beside.submit(lambda: asyncio.run(asyncio.wait_for(_check_model(settings.model), CHECK_TIMEOUT_S)))
        check_workers(context)
        model.result()
    return slots


def _fleet(context: SparkContext, launcher: HostLauncher, settings: Settings, query_id: str, epoch: int) -> Fleet:
    payload = HostPayload(
        index=0,
        token=secrets.token_urlsafe(32),
        driver="",
        address=settings.host.address,
        query_id=query_id,
        state_path=_state_path(settings),
        settings=to_json(settings).encode(),
        tool_file=Registry.read(settings.tools),
        machine="" if is_remote(_state_path(settings)) else machine_id(),
    )
    here = settings.host.address or str(context.getConf().get("spark.driver.host", "127.0.0.1"))
    return Fleet(launcher, payload, settings.host, DriverPlace(epoch, here))


async def _check_model(settings: ModelSettings) -> None:
    model = TritonModel(settings, tokenizer_of(settings))
    try:
        await model.check()
    finally:
        await model.close()


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

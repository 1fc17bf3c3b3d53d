"""Which settings make sense: bounds of each, and what must hold between them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from hermes_spark.errors import SettingsError
from hermes_spark.settings.load import Scalar, as_dict
from hermes_spark.settings.schema import Settings

MAX_SHARDS = 4096
"""A shard costs a journal and a RocksDB each; more than this only makes a flush round longer."""
MAX_ROW_BYTES = 67_108_864
"""64 MB: what the files source reads whole, so no event can be larger."""
STATE_URLS = ("file://", "s3://", "s3a://", "gs://", "az://", "azure://", "adl://", "abfs://", "abfss://")
"""How `state.path` may begin if it is a URL: what `state.storage` understands."""

_BOUNDS: dict[str, tuple[float, float]] = {
    "hosts": (0, math.inf),
    "source.max_files_per_trigger": (1, math.inf),
    "source.max_offsets_per_trigger": (1, math.inf),
    "run_ahead.max_records": (1, math.inf),
    "run_ahead.interval_ms": (0, math.inf),
    "source.rows_per_second": (1, math.inf),
    "source.ramp_up_s": (0, math.inf),
    "source.sessions": (1, math.inf),
    "source.partitions": (1, math.inf),
    "source.duration_s": (0, math.inf),
    "source.tick_ms": (1, math.inf),
    "trigger.interval_ms": (0, math.inf),
    "stop.idle_s": (0, math.inf),
    "stop.drain_s": (0, math.inf),
    "host.max_open_turns": (1, math.inf),
    "host.max_queued_bytes": (1, math.inf),
    "intake.max_event_bytes": (1, MAX_ROW_BYTES),
    "intake.dead_letter_bytes": (0, MAX_ROW_BYTES),
    "intake.chunk_rows": (1, math.inf),
    "intake.driver_rows": (0, 100_000),
    "state.shards": (1, MAX_SHARDS),
    "state.journal_file_bytes": (1_024, math.inf),
    "state.block_cache_bytes": (0, math.inf),
    "state.write_buffer_bytes": (65_536, math.inf),  # RocksDB's own least size of a memtable
    "state.max_open_files": (20, math.inf),  # RocksDB raises a smaller number to 20; -1 would be no bound at all
    "state.cache_bytes": (0, math.inf),
    "snapshot.every_commits": (0, math.inf),
    "snapshot.every_records": (0, math.inf),
    "state.ttl_s": (0, 3_155_760_000),  # 100 years
    "state.expire_slice": (1, 100_000),
    "snapshot.prune_interval_s": (0, math.inf),
    "agent.max_steps": (1, math.inf),
    "agent.max_tokens": (1, math.inf),
    "agent.token_budget": (1, math.inf),
    "agent.turn_timeout_ms": (1, math.inf),
    "agent.max_errors": (1, math.inf),
    "agent.max_calls": (1, math.inf),
    "agent.history_chars": (1, math.inf),
    "model.max_in_flight": (1, math.inf),
    "model.temperature": (0, math.inf),
    "model.top_k": (0, math.inf),
    "model.seed": (0, math.inf),
    "tools.max_in_flight": (1, math.inf),
    "tools.max_result_chars": (1, math.inf),
    "sink.publish_interval_ms": (0, math.inf),
}

_POSITIVE = (
    "host.start_timeout_s",
    "host.executors_wait_s",
    "host.restart_timeout_s",
    "host.silence_s",
    "intake.handoff_timeout_s",
    "model.connect_timeout_s",
    "model.timeout_s",
    "model.top_p",
    "tools.timeout_s",
    "tools.approval_timeout_s",
)
"""Waits without an end are not offered, so these are above zero and finite."""

_HOST_AND_PORT = re.compile(r"(\[[0-9a-fA-F:]+\]|[^\s:/\[\]]+):(\d{1,5})")


def validate(settings: Settings) -> None:
    """Raises `SettingsError` with every setting that is out of bounds or contradicts another; returns if all is well.

    Asks nothing outside: whether a directory exists or a server answers is found out at the start of the job.
    """
    problems = [*_out_of_bounds(as_dict(settings)), *_malformed(settings), *_contradictions(settings)]
    if problems:
        raise SettingsError("; ".join(problems))


def _out_of_bounds(values: dict[str, Scalar]) -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, float) and not math.isfinite(value):
            yield f"{name} is {value}; expected a finite number"
    for name, (least, most) in _BOUNDS.items():
        if not least <= float(values[name]) <= most:
            expected = f"{least} or more" if most == math.inf else f"{least} to {most}"
            yield f"{name} is {values[name]}; expected {expected}"
    for name in _POSITIVE:
        if float(values[name]) <= 0:
            yield f"{name} is {values[name]}; expected more than 0"


def _malformed(settings: Settings) -> Iterator[str]:
    if not settings.checkpoint:
        yield "checkpoint is empty; expected the directory that Spark's checkpoint and the sessions' state live in"
    elif "://" in settings.checkpoint and not settings.checkpoint.startswith("file://"):
        yield f"checkpoint is {settings.checkpoint}; expected a directory of this machine (state.path may lie elsewhere)"
    if not _is_host_and_port(settings.model.url):
        yield (
            f"model.url is {settings.model.url!r}; expected host:port of Triton's gRPC service without a scheme, "
            "such as 127.0.0.1:8001"
        )
    if not settings.model.name:
        yield "model.name is empty; expected the name of a model in Triton's repository"
    if settings.model.top_p > 1:
        yield f"model.top_p is {settings.model.top_p}; expected at most 1"
    base = settings.tools.base_url
    if base and not base.startswith(("http://", "https://")):
        yield f"tools.base_url is {base!r}; expected a URL that begins with http:// or https://"
    if "://" in settings.state.path and not settings.state.path.startswith(STATE_URLS):
        yield f"state.path is {settings.state.path!r}; expected a local directory or a URL with {', '.join(STATE_URLS)}"


def _contradictions(settings: Settings) -> Iterator[str]:
    source, intake, agent = settings.source, settings.intake, settings.agent
    if source.kind == "files" and not source.path:
        yield "source.path is empty; a files source needs the directory of its JSON lines"
    if source.kind == "kafka" and not source.topic:
        yield "source.topic is empty; a kafka source needs the topic of its events"
    topics = settings.sink.kafka
    uses_kafka = source.kind == "kafka" or topics.outcomes_topic or topics.calls_topic or topics.dead_letters_topic
    if uses_kafka and not settings.kafka.bootstrap_servers:
        yield "kafka.bootstrap_servers is empty; expected host:port of a broker, several with commas"
    if topics.mode == "early" and not topics.outcomes_topic:
        yield "sink.kafka.mode is early and sink.kafka.outcomes_topic is empty; expected the topic that outcomes are sent to"
    if settings.hosts > settings.state.shards:
        yield (
            f"hosts is {settings.hosts} and state.shards is {settings.state.shards}; "
            "expected at most one host per shard, more would have nothing to do"
        )
    tls = (settings.host.tls_certificate_file, settings.host.tls_key_file, settings.host.tls_ca_file)
    if any(tls) and not all(tls):
        yield "host.tls_certificate_file, tls_key_file and tls_ca_file are set in part; expected all three or none"
    if settings.host.max_queued_bytes < intake.max_event_bytes:
        yield (
            f"host.max_queued_bytes is {settings.host.max_queued_bytes}, less than the {intake.max_event_bytes} of "
            "intake.max_event_bytes; the largest event would never be taken"
        )
    if intake.handoff_timeout_s * 1000 <= agent.turn_timeout_ms:
        yield (
            f"intake.handoff_timeout_s is {intake.handoff_timeout_s:g}; expected more than agent.turn_timeout_ms "
            f"({agent.turn_timeout_ms / 1000:g} s), or a full host fails its batch before its turns can end"
        )
    if agent.token_budget < agent.max_tokens:
        yield f"agent.token_budget is {agent.token_budget}; expected at least agent.max_tokens, {agent.max_tokens}"


def _is_host_and_port(url: str) -> bool:
    match = _HOST_AND_PORT.fullmatch(url)
    return match is not None and 1 <= int(match[2]) <= 65_535

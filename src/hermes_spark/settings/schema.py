"""Every setting, with its type and default. `conf/hermes.yaml` lists the same ones with comments.

A setting's name is its path here: `state.shards` is `spark.hermes.state.shards` as a Spark conf, `HERMES_STATE_SHARDS` in the
environment and `state: {shards: ...}` in the file. Units end the name (`_ms`, `_s`, `_bytes`).
"""

from __future__ import annotations

from typing import Literal

import msgspec


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class SourceSettings(_Section, frozen=True):
    """Where events come from."""

    kind: Literal["rate", "files", "load", "kafka"] = "rate"
    topic: str = ""
    """kafka: the topic of the events; how to reach it says the section `kafka`."""
    starting_offsets: Literal["earliest", "latest"] = "earliest"
    """kafka: where a new checkpoint begins."""
    max_offsets_per_trigger: int = 10_000
    """kafka: records of one batch at most."""
    isolation_level: Literal["read_committed", "read_uncommitted"] = "read_committed"
    """kafka: whether records of transactions that are open or were given up are seen."""
    path: str = ""
    """files: the directory of JSON lines."""
    max_files_per_trigger: int = 100
    rows_per_second: int = 10
    """rate, load."""
    ramp_up_s: int = 0
    sessions: int = 50
    """rate, load: how many sessions take turns."""
    seed: int = 0
    """load: the same seed gives the same rows."""
    partitions: int = 1
    """load: how many partitions the rows are spread over."""
    duration_s: int = 0
    """load: stop making rows after so long; 0 means never."""
    tick_ms: int = 1000
    """How often a batch happens while no events arrive, so that finished turns are published."""

    @property
    def has_offsets(self) -> bool:
        """Whether a batch of this source is a range of offsets per partition; rate and files know no such thing."""
        return self.kind in ("load", "kafka")


class KafkaSettings(_Section, frozen=True):
    """How to reach Kafka, for the source, for run-ahead and for the sink. Secrets come from files and the environment."""

    bootstrap_servers: str = ""
    """host:port, several with commas."""
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    ca_file: str = ""
    """PEM file of the authorities that the brokers' certificates are checked against; empty: the system's."""
    certificate_file: str = ""
    """PEM file of our own certificate, for brokers that ask for one."""
    key_file: str = ""
    """PEM file of the unencrypted key of `certificate_file` (PKCS#8)."""
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    username_variable: str = "KAFKA_USERNAME"
    """The environment variable that holds the user's name."""
    password_variable: str = "KAFKA_PASSWORD"  # noqa: S105 - a variable's name
    """The environment variable that holds the password."""


class RunAheadSettings(_Section, frozen=True):
    """Hosts read the topic themselves, so that a turn begins when its event arrives. Only the kafka source knows it."""

    enabled: bool = True
    max_records: int = 10_000
    """How far a partition may be read ahead of the last commit."""
    interval_ms: int = 1000
    """The trigger's interval while hosts run ahead: batches then only commit and publish."""


class TriggerSettings(_Section, frozen=True):
    """When micro-batches happen."""

    interval_ms: int = 200
    available_now: bool = False
    """Take what is there, wait for its turns, publish, end."""


class StopSettings(_Section, frozen=True):
    """When the job ends by itself, and how long it may take."""

    idle_s: float = 0.0
    """End after so long without an event and without an open turn; 0 means never."""
    drain_s: float = 30.0
    """How long a graceful stop waits for open turns."""


class HostSettings(_Section, frozen=True):
    """Agent hosts."""

    start_timeout_s: float = 60.0
    executors_wait_s: float = 10.0
    """How long the start waits for another executor of a cluster, before it goes on with those that are there."""
    restart_timeout_s: float = 20.0
    silence_s: float = 15.0
    """A host that does not answer for so long is ended and started again."""
    address: str = ""
    """Interface address that hosts and driver listen on; empty: the address that Spark's driver uses."""
    tls_certificate_file: str = ""
    """PEM file of the certificate that driver and hosts show each other; empty: no TLS between them."""
    tls_key_file: str = ""
    """PEM file of its key."""
    tls_ca_file: str = ""
    """PEM file of the authorities that such certificates are checked against."""
    tls_server_name: str = ""
    """The name in the certificate, if it is not the address that is called."""
    max_open_turns: int = 1024
    """Open turns of one host; above it hand-offs of messages wait."""
    max_queued_bytes: int = 67_108_864
    """Bytes of events taken whose turn has not ended, per host; above it hand-offs of messages wait."""


class IntakeSettings(_Section, frozen=True):
    """Taking events."""

    max_event_bytes: int = 1_048_576
    dead_letter_bytes: int = 65_536
    """Bytes of a rejected row that are kept."""
    handoff_timeout_s: float = 150.0
    """A hand-off fails when so long nothing at all was taken and no turn ended."""
    chunk_rows: int = 256
    """Rows of one offer."""
    driver_rows: int = 256
    """A batch known to hold no more rows is offered by the driver, a larger one by tasks; 0: always by tasks."""


class StateSettings(_Section, frozen=True):
    """State on disk."""

    shards: int = 16
    """Fixed for a checkpoint at its first start."""
    path: str = ""
    """Empty: `<checkpoint>/hermes`. A local directory, or the URL of an object store."""
    journal_file_bytes: int = 8_388_608
    """A journal's file that has so many bytes is followed by a new one; older ones can be removed as a whole."""
    local_path: str = ""
    """Where hosts keep RocksDB; empty: a directory under the system's temporary one."""
    block_cache_bytes: int = 67_108_864
    """Per host, shared by its shards."""
    write_buffer_bytes: int = 33_554_432
    """Per host, shared by its shards."""
    max_open_files: int = 64
    """Per shard."""
    cache_bytes: int = 67_108_864
    """Decoded-state cache of idle sessions, per host, in encoded bytes."""
    ttl_s: float = 1800.0
    """A session without activity for so long is forgotten; 0: never. An event can say otherwise."""
    expire_slice: int = 100
    """Sessions that a host forgets at once; it does so at most ten times a second."""


class SnapshotSettings(_Section, frozen=True):
    """Snapshots of shards, so that a restart need not read the whole journal."""

    every_commits: int = 300
    """A shard that has changed gets one after so many commits; 0: never for that reason."""
    every_records: int = 5_000
    """Or when so many records lie behind the last one; 0: never for that reason."""
    prune_interval_s: float = 10.0
    """The least time between two rounds of removing what snapshots have made superfluous."""


class AgentSettings(_Section, frozen=True):
    """Bounds of a turn (`state.records.Limits`) and what the model is told first."""

    system_prompt: str = "You are a careful assistant. Use the tools when facts are needed, and answer briefly."
    thinking: bool = True
    max_steps: int = 3
    max_tokens: int = 1024
    token_budget: int = 200_000
    turn_timeout_ms: int = 120_000
    max_errors: int = 3
    max_calls: int = 8
    history_chars: int = 48_000


class ModelSettings(_Section, frozen=True):
    """The model behind Triton."""

    url: str = "127.0.0.1:8001"
    """host:port of Triton's gRPC service, without a scheme."""
    name: str = "qwen35b_a3b"
    tokenizer: str = ""
    """Local directory of the tokenizer; empty: the one beside the model in `model_repository/`."""
    format: Literal["qwen3.5", "hermes"] = "qwen3.5"
    max_in_flight: int = 256
    """Requests under way per host."""
    connect_timeout_s: float = 5.0
    timeout_s: float = 60.0
    """One completion, retries included."""
    temperature: float = 0.6
    top_p: float = 0.95
    top_k: int = 20
    seed: int = 0
    """0: none is sent."""


class ToolSettings(_Section, frozen=True):
    """Tools over HTTP."""

    file: str = "conf/tools.yaml"
    base_url: str = ""
    """Put before the `url` of tools that give a path only."""
    timeout_s: float = 15.0
    """Total time of one call, for tools that name none."""
    approval_timeout_s: float = 3600.0
    """How long somebody has to approve a call, for tools that need it and name no time of their own."""
    max_in_flight: int = 256
    """Calls under way per host."""
    max_result_chars: int = 8_000
    """A longer result is cut, and says so to the model."""


class KafkaSinkSettings(_Section, frozen=True):
    """Kafka topics that published rows go to; an empty name: none. How to reach them says the section `kafka`."""

    outcomes_topic: str = ""
    calls_topic: str = ""
    dead_letters_topic: str = ""
    mode: Literal["committed", "early"] = "committed"
    """early: hosts send outcomes as soon as they are durable; committed: batches send them."""


class SinkSettings(_Section, frozen=True):
    """Where outcomes, dead letters and controls go."""

    path: str = ""
    """Directory of the Parquet sink; empty: none."""
    console: bool = False
    publish_interval_ms: int = 1000
    """The least time between two publishes; 0 publishes with every batch."""
    expired: bool = False
    """Publish a row about every session that expires, with its history."""
    kafka: KafkaSinkSettings = KafkaSinkSettings()


class TelemetrySettings(_Section, frozen=True):
    """Logs and metrics."""

    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    turn_log: str = ""
    """Directory for one JSON line per durable outcome and host (ids and times only); empty: none."""


class Settings(_Section, frozen=True):
    """All settings of one job."""

    plan: Literal["resident"] = "resident"
    hosts: int = 0
    """Agent hosts; 0: one per two slots, at least one."""
    checkpoint: str = ""
    """Spark's checkpoint directory; required."""
    source: SourceSettings = SourceSettings()
    kafka: KafkaSettings = KafkaSettings()
    run_ahead: RunAheadSettings = RunAheadSettings()
    trigger: TriggerSettings = TriggerSettings()
    stop: StopSettings = StopSettings()
    host: HostSettings = HostSettings()
    intake: IntakeSettings = IntakeSettings()
    state: StateSettings = StateSettings()
    snapshot: SnapshotSettings = SnapshotSettings()
    agent: AgentSettings = AgentSettings()
    model: ModelSettings = ModelSettings()
    tools: ToolSettings = ToolSettings()
    sink: SinkSettings = SinkSettings()
    telemetry: TelemetrySettings = TelemetrySettings()

"""The source `kafka`: one topic through Spark's own connector, without a consumer group.

Where it begins is decided here, once, and kept in our metadata with the topic's id (`commit.Origin`): Spark is told explicit
offsets, so that the first batch is the same after a crash before it, and a topic that was deleted and made again is noticed
before offsets of the old one are looked for in the new one.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping

import msgspec
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name everybody knows it by

from hermes_spark.errors import CheckpointMismatch, KafkaError, StartError, StateError
from hermes_spark.kafka.connection import client_config, spark_options
from hermes_spark.kafka.records import partition_name
from hermes_spark.kafka.topics import Topics
from hermes_spark.settings import Settings
from hermes_spark.streaming.commit import CommitLog, Origin
from hermes_spark.telemetry import LAG

log = logging.getLogger(__name__)

LAG_INTERVAL_S = 1.0
"""How often the lag is asked for at most."""
_LOST = ("KAFKA_DATA_LOSS", "may have been lost", "may have been missed", "OffsetOutOfRange")
"""What Spark's errors say when offsets that it wants are not there."""
_CONSUMER = {
    "kafka.fetch.max.wait.ms": "10",  # half a second by default, which every batch would wait for
    "kafkaConsumer.pollTimeoutMs": "120000",  # a broker may be away for a minute
}


class KafkaTopic:
    """The topic that the job reads, as our metadata and the brokers know it."""

    def __init__(self, topics: Topics, origin: Origin, partitions: int, isolation_level: str) -> None:
        """`partitions`: how many the topic has now."""
        self._topics = topics
        self._partitions = partitions
        self._origin = origin
        self._isolation_level = isolation_level
        self._lag: int | None = None
        self._asked_at = -LAG_INTERVAL_S

    @classmethod
    def open(cls, settings: Settings, commits: CommitLog) -> KafkaTopic:
        """The topic of the settings; decides where to begin if that is not known.

        Raises `StartError` when there is no such topic or no broker answers, `CheckpointMismatch` when the checkpoint was made
        with another topic or another source.
        """
        name = settings.source.topic
        try:
            topics = Topics(client_config(settings.kafka))
            state = topics.state(name)
            if state is None:
                raise StartError(
                    f"source.topic {name} does not exist at {settings.kafka.bootstrap_servers}; create it, this job does not"
                )
            origin = commits.origin()
            if origin is None:
                if commits.last() is not None:
                    raise CheckpointMismatch(
                        "the checkpoint was made with another source than kafka; start on a new checkpoint"
                    )
                starts = topics.offsets(
                    name, range(state.partitions), settings.source.starting_offsets, settings.source.isolation_level
                )
                origin = commits.put_origin(Origin(name, state.id, starts))
        except KafkaError as exc:
            raise StartError(str(exc)) from None
        if origin.topic != name:
            raise CheckpointMismatch(
                f"the checkpoint reads topic {origin.topic} and source.topic is {name}; start on a new checkpoint"
            )
        topic = cls(topics, origin, state.partitions, settings.source.isolation_level)
        topic.check_id(state.id)
        return topic

    @property
    def first_offsets(self) -> str:
        """Where the first batch begins, as Spark writes offsets. Partitions that came after the decision begin at 0."""
        starts = {str(partition): self._origin.starts.get(partition, 0) for partition in range(self._partitions)}
        return msgspec.json.encode({self._origin.topic: starts}).decode()

    @property
    def first_ends(self) -> dict[str, int]:
        """The same as a commit writes ends: what stands for taken before the first commit."""
        return {partition_name(self._origin.topic, number): start for number, start in self._origin.starts.items()}

    def check(self) -> None:
        """Raise `CheckpointMismatch` when the topic was deleted, also if it was made again.

        A broker that does not answer is no reason to stop: the batch will find out.
        """
        try:
            state = self._topics.state(self._origin.topic)
        except KafkaError as exc:
            log.warning("the topic's id could not be compared: %s", exc)
            return
        if state is None:
            raise CheckpointMismatch(
                f"topic {self._origin.topic} was deleted; the job cannot go on without it: end it, or make the topic again "
                "and start on a new checkpoint"
            )
        self.check_id(state.id)
        self._partitions = state.partitions

    def check_id(self, found: str) -> None:
        """Raise `CheckpointMismatch` when `found` is not the id of the topic that this checkpoint was made with."""
        if found != self._origin.topic_id:
            raise CheckpointMismatch(
                f"topic {self._origin.topic} was deleted and made again (its id was {self._origin.topic_id} and is {found}), "
                "so the offsets of this checkpoint mean other records; start on a new checkpoint to read the new topic"
            )

    def lag(self, ends: Mapping[str, int], clock: Callable[[], float] = time.monotonic) -> int | None:
        """Records between `ends`, by partition as in a commit, and the log's end; at most a second old. None: unknown."""
        if clock() - self._asked_at < LAG_INTERVAL_S:
            return self._lag
        self._asked_at = clock()
        try:
            latest = self._topics.offsets(self._origin.topic, range(self._partitions), "latest", self._isolation_level)
        except KafkaError as exc:
            log.warning("the lag is not known: %s", exc)
            self._lag = None
            return None
        taken = {**self.first_ends, **ends}
        names = {partition: partition_name(self._origin.topic, partition) for partition in latest}
        self._lag = sum(max(0, end - taken.get(names[partition], 0)) for partition, end in latest.items())
        LAG.set(self._lag)
        return self._lag

    @contextlib.contextmanager
    def explaining(self) -> Iterator[None]:
        """Say in a sentence what a failure of Spark's query means, where the topic is the cause."""
        try:
            yield
        except PySparkException as exc:
            self.check()
            if not any(mark in str(exc) for mark in _LOST):
                raise
            raise StateError(
                f"records of topic {self._origin.topic} that were not read yet are gone (retention removed them, or somebody "
                "did); give the topic a longer retention, and start on a new checkpoint to go on with what is there"
            ) from None


def kafka_records(spark: SparkSession, settings: Settings, first_offsets: str) -> DataFrame:
    """A streaming DataFrame of the intake columns, with the timestamp as Spark has it.

    Raises `StartError` when Spark lacks the connector, `SettingsError` for files and variables that are missing.
    """
    reader = (
        spark.readStream.format("kafka")
        .options(**_CONSUMER, **spark_options(settings.kafka))
        .option("subscribe", settings.source.topic)
        .option("startingOffsets", first_offsets)
        .option("failOnDataLoss", "true")
        .option("maxOffsetsPerTrigger", settings.source.max_offsets_per_trigger)
        .option("kafka.isolation.level", settings.source.isolation_level)
    )
    try:
        records = reader.load()
    except AnalysisException as exc:
        if "data source" not in str(exc):
            raise
        raise StartError(
            "Spark lacks its Kafka connector; run scripts/kafka setup and start with scripts/dgx-spark-submit, or set "
            f"spark.jars.packages=org.apache.spark:spark-sql-kafka-0-10_2.13:{spark.version}"
        ) from None
    partition = F.concat("topic", F.lit("-"), F.col("partition").cast("string"))
    return records.select(
        partition.alias("partition"), "offset", F.col("timestamp").alias("timestamp_ms"), F.col("value")
    )


def kafka_ranges(start_offsets_json: str, end_offsets_json: str) -> dict[str, tuple[int, int]]:
    """A batch's records as partition -> (from, to), `to` exclusive; a partition without a start begins at 0."""
    start, end = _offsets(start_offsets_json), _offsets(end_offsets_json)
    return {
        partition_name(topic, number): (start.get(topic, {}).get(number, 0), stop)
        for topic, partitions in end.items()
        for number, stop in sorted(partitions.items())
    }


def _offsets(offsets_json: str) -> dict[str, dict[int, int]]:
    return msgspec.json.decode(offsets_json, type=dict[str, dict[int, int]])

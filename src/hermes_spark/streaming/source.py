"""Sources: one streaming DataFrame of intake columns, whatever the events come from (setting `source.kind`).

- `rate`: Spark's own `rate`; the tasks make the demo's events from its numbers. Rows come once a second, in a lump, and all
  seconds of a stop come at once.
- `load`: `hermes_load` (`load_source`): rows to the millisecond, for measurements. Spark 4 or newer.
- `files`: a directory of JSON lines (`*.json`, `*.jsonl`, `*.ndjson`, subdirectories included; names that begin with `.` or
  `_` are not seen). File and line are an event's identity, so a name is never used again and a file never changes: write it
  under another name and rename it when it is complete. One file is one row, at most `rows.MAX_FILE_BYTES`.
- `kafka`: a topic (`kafka_source`).

Events are decoded where they are handed over (`rows.decode`). A tick makes batches happen while no events arrive,
because a batch is what publishes finished turns. `rate` and `load` tick by themselves; for the others it is Spark's `rate`
with its rows filtered out: one batch a second, whatever `source.tick_ms` says. A batch whose events' offsets have not moved
needs no job; should one run all the same, Spark spends a task on the rows filtered out (it prunes no branch of a streaming
plan).
"""

from __future__ import annotations

import os
import re

import msgspec
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name everybody knows it by

from hermes_spark.errors import SettingsError, StartError
from hermes_spark.settings import Settings, SourceSettings
from hermes_spark.streaming.kafka_source import kafka_ranges, kafka_records
from hermes_spark.streaming.rows import INTAKE_SCHEMA, MAX_FILE_BYTES

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(//[^/]*)?")
"""`file:`, `file://`, `hdfs://host:8020`: what a path may carry in front."""
_PATTERN_SIGNS = frozenset("*?[{")
"""Spark would take a path with one of these for several directories, and file names are only unique within one."""
_MAX_FILE_AGE = "3650d"
"""Spark silently passes over files a week older than the newest it has seen; here nothing is passed over."""


def open_source(spark: SparkSession, settings: Settings, first_offsets: str = "") -> DataFrame:
    """A streaming DataFrame of the columns `rows.INTAKE_DDL`, with a tick.

    The source's own offsets are the first ones in Spark's log, before the tick's. Under `trigger.available_now` the tick
    stays, so that a checkpoint can be carried on by either trigger; it is then good for one batch at the start, which
    publishes what an earlier run left unpublished; sets one conf of `spark` for that. `first_offsets` is where a kafka
    source begins (`KafkaTopic.first_offsets`). Raises `SettingsError` when the
    directory is missing, `StartError` when this Spark is too old for `load`.
    """
    source = settings.source
    # With the wrapper files keep to `max_files_per_trigger` although the tick knows no end; without it everything there is
    # becomes one batch. A Python source must not be wrapped: Spark would take its end from a fresh initial offset.
    wrapped = source.kind in ("files", "kafka") and settings.trigger.available_now
    spark.conf.set("spark.sql.streaming.triggerAvailableNowWrapper.enabled", str(wrapped).lower())
    if source.kind == "rate":
        return _rate(spark, source)
    if source.kind == "load":
        return _load(spark, source)
    if source.kind == "kafka":
        records = kafka_records(spark, settings, first_offsets)
        return _intake(records, *(F.col(name) for name in INTAKE_SCHEMA.names)).unionByName(_tick(spark))
    return _files(spark, source).unionByName(_tick(spark))


def ranges(kind: str, start_offsets_json: str | None, end_offsets_json: str) -> dict[str, tuple[int, int]] | None:
    """The rows of a batch as partition -> (from, to), `to` exclusive, for sources whose offsets count rows; else None.

    The JSON texts are the source's lines of Spark's `offsets/<N-1>` (of the first batch of `load` None, of `kafka` where it
    began) and `offsets/<N>`.
    """
    if kind == "kafka":
        return kafka_ranges(start_offsets_json or "{}", end_offsets_json)
    if kind != "load":
        return None
    start, end = _counts(start_offsets_json or "{}"), _counts(end_offsets_json)
    return {f"load-{partition}": (start.get(partition, 0), end[partition]) for partition in sorted(end)}


def _counts(offset_json: str) -> dict[int, int]:
    offset = msgspec.json.decode(offset_json, type=dict[str, int])
    return {int(key): rows for key, rows in offset.items() if key.isdigit()}


def _rate(spark: SparkSession, source: SourceSettings) -> DataFrame:
    rate = (
        spark.readStream.format("rate")
        .option("rowsPerSecond", source.rows_per_second)
        .option("rampUpTime", f"{source.ramp_up_s}s")
        .option("numPartitions", 1)
        .load()
    )
    return _intake(rate, F.lit("rate"), F.col("value"), F.col("timestamp"), F.lit(None))


def _load(spark: SparkSession, source: SourceSettings) -> DataFrame:
    try:
        from hermes_spark.streaming.load_source import LoadSource
    except ImportError as exc:
        raise StartError(
            f"source.kind load needs Spark 4.0 or newer, this is {spark.version}; use rate, or a newer pyspark."
        ) from exc
    spark.dataSource.register(LoadSource)
    return (
        spark.readStream.format(LoadSource.name())
        .option("rowsPerSecond", source.rows_per_second)
        .option("rampUpTime", source.ramp_up_s)
        .option("durationSeconds", source.duration_s)
        .option("sessions", source.sessions)
        .option("partitions", source.partitions)
        .option("seed", source.seed)
        .option("tickMs", source.tick_ms)
        .load()
    )


def _files(spark: SparkSession, source: SourceSettings) -> DataFrame:
    if not source.path or _PATTERN_SIGNS & set(source.path):
        raise SettingsError(
            f"source.path is {source.path!r}; source.kind files expects one directory of JSON lines (no patterns)."
        )
    root = absolute(source.path)
    reader = (
        spark.readStream.format("binaryFile")
        .schema("path string, modificationTime timestamp, length long, content binary")
        .option("pathGlobFilter", "*.{json,jsonl,ndjson}")
        .option("recursiveFileLookup", "true")
        .option("maxFilesPerTrigger", source.max_files_per_trigger)
        .option("maxFileAge", _MAX_FILE_AGE)
    )
    try:
        files = reader.load(root)
    except AnalysisException as exc:
        raise SettingsError(
            f"source.path {source.path} cannot be read; expected a directory: {_first_line(exc)}"
        ) from exc
    # Both halves are one source to Spark. The second does not ask for `content`, so a file that is too large is never opened.
    whole = files.where(F.col("length") <= MAX_FILE_BYTES)
    too_large = files.where(F.col("length") > MAX_FILE_BYTES)
    before = len(_SCHEME.sub("", root, count=1).rstrip("/") + "/")
    path = F.substr(F.regexp_replace("path", f"^{_SCHEME.pattern}", ""), F.lit(before + 1))
    return _intake(whole, path, F.lit(0), F.col("modificationTime"), F.col("content")).unionByName(
        _intake(too_large, path, F.lit(0), F.col("modificationTime"), F.lit(None))
    )


def _tick(spark: SparkSession) -> DataFrame:
    rate = spark.readStream.format("rate").option("rowsPerSecond", 1).option("numPartitions", 1).load()
    nothing = rate.where("false")
    return _intake(nothing, F.lit(""), F.lit(0), F.col("timestamp"), F.lit(None))


def _intake(frame: DataFrame, partition: Column, offset: Column, timestamp: Column, value: Column) -> DataFrame:
    columns = (partition, offset.cast("long"), F.unix_millis(timestamp), value.cast("binary"))
    return frame.select(*(column.alias(name) for column, name in zip(columns, INTAKE_SCHEMA.names, strict=True)))


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def absolute(path: str) -> str:
    """`path` without `.`, `..` and doubled slashes; one without a scheme is taken from the driver's working directory.

    So Spark reports files below exactly this text, whatever it puts in front of it.
    """
    scheme = _SCHEME.match(path)
    if scheme is None:
        return os.path.abspath(path)  # noqa: PTH100  # Path.resolve would follow links, which Spark does not
    return scheme.group() + os.path.normpath("/" + path[scheme.end() :].lstrip("/"))

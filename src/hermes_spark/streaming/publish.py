"""Publishing: the sinks that take a batch's tables, and how to read what they wrote.

A sink is called once per publishing batch, and again with the same batch id and the same rows after a crash: what it does the
second time must leave the same result as the first. With `sink.publish_interval_ms` above the trigger's interval several
batches are published as one, which is what keeps the Parquet sink's files few: one per table, publish and query.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hermes_spark.streaming.table_schemas import TABLES
from hermes_spark.streaming.tables import build_tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "ConsoleSink",
    "ParquetSink",
    "Sink",
    "approvals",
    "audit",
    "build_tables",
    "controls",
    "dead_letters",
    "expired",
    "outcomes",
    "read_table",
]

REPLY_CHARS = 60
"""How much of a reply the console shows."""


class Sink(Protocol):
    """Where published tables go."""

    def publish(self, batch_id: int, tables: Mapping[str, pa.Table]) -> None:
        """Take the tables of `tables.build_tables`. Durable on return; any exception makes Spark run the batch again."""
        ...


class Bucket(Protocol):
    """What the Parquet sink asks of a storage (`state.storage.Storage`)."""

    def put(self, key: str, data: bytes) -> None:
        """Store an object whole, durably and atomically, replacing an older one."""
        ...


class ParquetSink:
    """Writes `<table>/batch_id=<N>/part-<query id>.parquet` in one atomic put each; a table without rows writes nothing.

    The query's id is in the name because batch ids begin at 0 again with a new checkpoint: a replay replaces its own files,
    never those of another query. The tables of a batch appear one after the other, and the replay of a crash in between
    completes them.
    """

    def __init__(self, storage: Bucket) -> None:
        self._storage = storage

    def publish(self, batch_id: int, tables: Mapping[str, pa.Table]) -> None:
        """Write the tables. Raises what the storage raises (`StorageFull` when there is no space)."""
        for name, table in tables.items():
            if table.num_rows:
                query_id = table["query_id"][0].as_py()
                self._storage.put(f"{name}/batch_id={batch_id}/part-{query_id}.parquet", parquet_bytes(table))


class ConsoleSink:
    """Prints a line per outcome, with the beginning of its reply. For trying things out: a replay prints again."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console()

    def publish(self, batch_id: int, tables: Mapping[str, pa.Table]) -> None:
        """Print the batch's outcomes, if it has any."""
        outcomes = tables["outcomes"]
        if not outcomes.num_rows:
            return
        shown = Table("session", "status", "calls", "reply", title=f"batch {batch_id}", title_justify="left", box=None)
        for row in outcomes.select(["session_id", "status", "reason", "calls", "reply"]).to_pylist():
            calls = ", ".join(f"{call['name']} {call['status']}" for call in row["calls"])
            text = " ".join((row["reply"] or row["reason"]).split())
            shown.add_row(escape(row["session_id"]), row["status"], escape(calls), escape(_cut(text)))
        self._console.print(shown)


def parquet_bytes(table: pa.Table) -> bytes:
    """A table as one Parquet file, without `batch_id`: readers take that column from the directory's name."""
    sink = pa.BufferOutputStream()
    pyarrow.parquet.write_table(table.drop_columns(["batch_id"]), sink)
    return bytes(sink.getvalue())


def read_table(path: str | Path, name: str) -> pa.Table:
    """All rows of a published table below a local directory, by publishing batch; empty when there are none. No Spark needed.

    Safe while the job writes: only whole files have the name that is looked for.
    """
    return read_files(table_files(path, name), name)


def table_files(path: str | Path, name: str) -> list[Path]:
    """The files of a published table below a local directory, as of now."""
    return sorted(Path(path).glob(f"{name}/batch_id=*/part-*.parquet"))


def read_files(files: Sequence[Path], name: str, where: pyarrow.dataset.Expression | None = None) -> pa.Table:
    """The rows of some `table_files` of the table `name`, those that fit `where`, by publishing batch."""
    schema = TABLES[name]
    if not files:
        return schema.empty_table()
    partitioning = pyarrow.dataset.partitioning(pa.schema([schema.field("batch_id")]), flavor="hive")
    dataset = pyarrow.dataset.dataset(
        [str(file) for file in files], schema=schema, format="parquet", partitioning=partitioning
    )
    return dataset.to_table(filter=where).sort_by(
        [("batch_id", "ascending"), ("shard", "ascending"), ("lsn", "ascending")]
    )


def outcomes(spark: SparkSession, path: str) -> DataFrame:
    """The `outcomes` table below the sink's directory; empty while there is none."""
    return _frame(spark, path, "outcomes")


def audit(spark: SparkSession, path: str) -> DataFrame:
    """One row per tool call of the outcomes, with its arguments, and the turn and session it belongs to."""
    turn = ["query_id", "batch_id", "shard", "lsn", "session_id", "turn_id", "event_id"]
    return outcomes(spark, path).selectExpr(*turn, "explode(calls) AS call").select(*turn, "call.*")


def dead_letters(spark: SparkSession, path: str) -> DataFrame:
    """The `dead_letters` table below the sink's directory; empty while there is none."""
    return _frame(spark, path, "dead_letters")


def controls(spark: SparkSession, path: str) -> DataFrame:
    """The `controls` table below the sink's directory; empty while there is none."""
    return _frame(spark, path, "controls")


def expired(spark: SparkSession, path: str) -> DataFrame:
    """The `expired` table below the sink's directory; empty while there is none."""
    return _frame(spark, path, "expired")


def approvals(spark: SparkSession, path: str) -> DataFrame:
    """The `approvals` table below the sink's directory: calls that wait, or waited, for somebody's approval."""
    return _frame(spark, path, "approvals")


def _frame(spark: SparkSession, path: str, name: str) -> DataFrame:
    from pyspark.errors import AnalysisException
    from pyspark.sql.pandas.types import from_arrow_schema

    schema = from_arrow_schema(TABLES[name])
    # The name's pattern hides what a storage has under way in the same directory.
    reader = spark.read.schema(schema).option("pathGlobFilter", "part-*.parquet")
    try:
        return reader.parquet(f"{path.rstrip('/')}/{name}").select(*TABLES[name].names)
    except AnalysisException as exc:
        # The class of the error has different accessors in Spark 3 and 4; its text begins with it in both.
        if not str(exc).startswith("[PATH_NOT_FOUND]"):
            raise
        return spark.createDataFrame([], schema)


def _cut(text: str) -> str:
    return text if len(text) <= REPLY_CHARS else text[: REPLY_CHARS - 1] + "…"

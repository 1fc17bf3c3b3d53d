"""The Python data source `hermes_state`: the live sessions of a checkpoint as a table, one row each.

::

    spark.dataSource.register(StateSource)
    spark.read.format("hermes_state").load(checkpoint)                      at the last commit
    spark.read.format("hermes_state").option("batch", 17).load(checkpoint)  at batch 17

The columns are those of `committed.SESSIONS`. One partition per shard; all of them read the commit that was found when the
query was planned, also when the job commits meanwhile. Workers must see the checkpoint's directory.

Needs Spark 4.0 or newer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from hermes_spark.errors import SettingsError
from hermes_spark.streaming.committed import SESSIONS, Committed


class StateOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The options of the source, under the names that Spark passes on (in lower case)."""

    path: str = ""
    batch: Annotated[int, msgspec.Meta(ge=0)] | None = None


class ShardPartition(InputPartition):  # type: ignore[misc]  # pyspark's class has no types
    """One shard at one commit."""

    def __init__(self, committed: Committed, shard: int) -> None:
        super().__init__(shard)
        self.committed = committed


class StateReader(DataSourceReader):  # type: ignore[misc]  # pyspark's class has no types
    """Reads the sessions of a checkpoint at one commit."""

    def __init__(self, options: StateOptions) -> None:
        # Here and not in `partitions`, so that what is wrong is said when the table is loaded.
        self._committed = Committed.at(options.path, options.batch)

    def partitions(self) -> list[ShardPartition]:
        """One per shard."""
        return [ShardPartition(self._committed, shard) for shard in self._committed.shards]

    def read(self, partition: ShardPartition) -> Iterator[pa.RecordBatch]:
        """The sessions of one shard."""
        return partition.committed.tables(partition.value)


class StateSource(DataSource):  # type: ignore[misc]  # pyspark's class has no types
    """`spark.read.format("hermes_state")`, once `spark.dataSource.register(StateSource)` has been called."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "hermes_state"

    def schema(self) -> StructType:
        """The columns of `committed.SESSIONS`."""
        return from_arrow_schema(SESSIONS)

    def reader(self, schema: StructType) -> StateReader:
        """A reader for these options; raises `SettingsError` when one of them is unusable or names nothing."""
        options = {name.lower(): value for name, value in self.options.items()}
        try:
            return StateReader(msgspec.convert(options, StateOptions, strict=False))
        except msgspec.ValidationError as exc:
            raise SettingsError(f"The options of hermes_state name no checkpoint and batch: {exc}.") from None

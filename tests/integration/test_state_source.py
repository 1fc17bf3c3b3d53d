"""The sessions of a checkpoint as a Spark table."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from checkpoints import Checkpoint, busy
from hermes_spark.state.arrow import AGENT_STATE, from_struct, to_struct
from hermes_spark.streaming.committed import SESSIONS, Committed
from small_spark import small_spark

pytest.importorskip("pyspark.sql.datasource", reason="Python data sources need Spark 4")
pytestmark = pytest.mark.spark

README = Path(__file__).parents[2] / "README.md"


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    from hermes_spark.streaming.state_source import StateSource

    with small_spark() as session:
        session.dataSource.register(StateSource)
        yield session


@pytest.fixture
def made(tmp_path) -> Checkpoint:
    return busy(tmp_path)


def test_a_row_per_session_with_all_of_its_state(spark, made):
    frame = spark.read.format("hermes_state").load(str(made.path))
    assert frame.columns == SESSIONS.names
    assert frame.rdd.getNumPartitions() == made.shards
    table = frame.toArrow()
    states = from_struct(table.select(AGENT_STATE.names).combine_chunks().to_struct_array().combine_chunks())
    committed = Committed.at(str(made.path))
    expected = [state for shard in committed.shards for state in committed.sessions(shard)]
    assert sorted(states, key=lambda state: state.session_id) == sorted(expected, key=lambda state: state.session_id)
    rows = {row["session_id"]: row for row in table.to_pylist()}
    assert {name: row["shard"] for name, row in rows.items()} == {name: committed.shard_of(name) for name in rows}
    assert {row["batch_id"] for row in rows.values()} == {2}
    assert rows["张三"]["messages"] == to_struct([made.states["张三"]]).to_pylist()[0]["messages"]


def test_an_earlier_batch(spark, made):
    frame = spark.read.format("hermes_state").option("batch", 1).load(str(made.path))
    rows = {row.session_id: row for row in frame.where("turn IS NOT NULL OR turns > 0").collect()}
    assert {name: row.turns for name, row in rows.items()} == {"张三": 2, "s-open": 0, "s-reset": 1}
    assert rows["s-open"].turn.calls[0].status == "sent"


def test_the_lines_of_the_readme(spark, tmp_path):
    made = Checkpoint(tmp_path, shards=1)
    made.turn("s1", "look", {"n": 1})
    for _ in range(42):
        made.commit()
    section = README.read_text(encoding="utf-8").partition("## Look at the state")[2].partition("\n## ")[0]
    block = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert block is not None
    *statements, expression = block[1].replace("/data/agent/checkpoint", str(made.path)).strip().splitlines()
    names = {"spark": spark}
    exec("\n".join(statements), names)
    assert [row.session_id for row in eval(expression, names).collect()] == ["s1"]


def test_all_partitions_read_the_commit_that_the_reader_found(made):
    from hermes_spark.streaming.state_source import StateOptions, StateReader

    reader = StateReader(StateOptions(path=str(made.path)))
    partitions = reader.partitions()
    made.commit()
    assert len(partitions) == made.shards
    assert sum(batch.num_rows for partition in partitions for batch in reader.read(partition)) == 4
    assert len(made.states) == 5


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch": "7"}, "no commit of batch 7; those of batches 0 to 2 are kept"),
        ({"batch": "last"}, "The options of hermes_state name no checkpoint and batch"),
        ({"batsch": "1"}, "batsch"),
        ({"path": "/nowhere"}, "/nowhere is no checkpoint of a job"),
    ],
)
def test_what_is_wrong_is_said(spark, made, options, said):
    chosen = {"path": str(made.path), **options}
    with pytest.raises(PySparkException, match=said):
        spark.read.format("hermes_state").options(**chosen).load().count()

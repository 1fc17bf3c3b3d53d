"""The model called from SQL and from DataFrames, on real Spark workers and a real Triton."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pandas as pd
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import _parse_datatype_string

from hermes_spark.errors import SettingsError
from hermes_spark.llm import udf
from hermes_spark.llm.udf import ANSWER, MESSAGES, ChatOptions, chat_udf
from hermes_spark.messages import ToolSpec
from hermes_spark.settings import ModelSettings

pytestmark = [pytest.mark.spark, pytest.mark.triton]

TOKENIZER = str(Path(__file__).parents[2] / "model_repository" / "qwen35b_a3b" / "tokenizer")
CUSTOMERS = ("张三", "李四", "王五", "赵六")
CRM = ToolSpec(
    "crm_query",
    "Look up a customer 客户 and the state of their orders 订单状态",
    {"type": "object", "properties": {"customer": {"type": "string", "description": "客户"}}, "required": ["customer"]},
)


@pytest.fixture(scope="module")
def spark():
    session = (
        SparkSession.builder.master("local[2]")
        .appName("test_model_udf")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    yield session
    session.stop()


@pytest.fixture(scope="module")
def settings(triton):
    return ModelSettings(url=triton, tokenizer=TOKENIZER)


def question(text):
    return [{"role": "user", "content": text}]


def test_it_runs_in_sql(spark, settings):
    spark.udf.register("chat", chat_udf(settings))
    row = spark.sql("SELECT chat(array(named_struct('role', 'user', 'content', 'hello'))).content AS content").first()
    assert row.content


def test_rows_are_answered_in_order_and_a_bad_row_harms_no_other(spark, settings):
    spark.udf.register("chat_crm", chat_udf(settings, ChatOptions(tools=(CRM,))))
    rows = [(n, question(f"查一下客户{CUSTOMERS[n % 4]}的订单状态")) for n in range(40)]
    rows[7] = (7, None)
    rows[8] = (8, [])
    rows[9] = (9, [{"role": "robot", "content": "x"}])
    rows[10] = (10, question("long " * 40_000))
    spark.createDataFrame(rows, f"n int, messages {MESSAGES}").createOrReplaceTempView("questions")
    answers = spark.sql("SELECT n, a.* FROM (SELECT n, chat_crm(messages) AS a FROM questions) ORDER BY n").collect()
    assert [row.n for row in answers] == list(range(40))
    bad = {row.n: row for row in answers if row.error is not None}
    assert {n: row.error.split(";")[0] for n, row in bad.items() if n != 10} == {
        7: "messages is null",
        8: "messages has the roles []",
        9: "messages has the roles ['robot']",
    }
    assert bad.pop(10).error.startswith("ModelContractError: ")
    assert all(row.content is None and row.calls is None and row.prompt_tokens is None for row in bad.values())
    for row in answers:
        if row.error is None:
            calls = [(call.name, json.loads(call.arguments)) for call in row.calls]
            assert calls == [("crm_query", {"customer": CUSTOMERS[row.n % 4]})]
            assert (row.finish_reason, row.truncated, row.errors) == ("stop", False, [])
            assert row.reasoning
            assert row.prompt_tokens > row.completion_tokens > 0


def test_a_query_that_takes_out_two_fields_asks_the_model_once(spark, settings):
    answered = spark.createDataFrame([(question("hello"),)], f"messages {MESSAGES}").select(
        chat_udf(settings)("messages").alias("a")
    )
    plan = answered.select(F.col("a.content"), F.col("a.error"))._jdf.queryExecution().executedPlan().toString()
    assert plan.count("chat(messages") == 1


def test_a_server_that_is_down_fails_rows_not_the_query(spark):
    with socket.create_server(("127.0.0.1", 0)) as port:
        address = f"127.0.0.1:{port.getsockname()[1]}"
    down = ModelSettings(url=address, tokenizer=TOKENIZER, timeout_s=0.5)
    frame = spark.createDataFrame([(question("hello"),)] * 2, f"messages {MESSAGES}")
    rows = frame.select(chat_udf(down)("messages").alias("a")).select("a.*").collect()
    assert [row.error.split(":")[0] for row in rows] == ["ModelUnavailable"] * 2
    assert [row.content for row in rows] == [None] * 2


def test_without_a_tokenizer_it_fails_before_any_job():
    with pytest.raises(SettingsError, match=r"model\.tokenizer"):
        chat_udf(ModelSettings(tokenizer=""))


def test_the_frame_has_the_fields_of_the_type(spark, settings):
    answers = udf.answer_batch(pd.Series([question("hello")]), settings, ChatOptions())
    assert list(answers.columns) == [field.name for field in _parse_datatype_string(ANSWER)]
    assert udf._worker() is udf._worker()
    assert list(udf._workers) == [os.getpid()]

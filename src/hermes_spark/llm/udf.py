"""The model in SQL: a `pandas_udf` from messages to a struct, over the same Triton client as the agent hosts.

::

    spark.udf.register("chat", chat_udf(settings.model))
    SELECT chat(array(named_struct('role', 'user', 'content', question))).content FROM questions

Every Python worker process has one event loop thread and one connection, made when its first batch comes (never before the
fork) and kept for later batches. So the bound `max_in_flight` holds per worker process here.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import pandas as pd
from pyspark.sql.functions import pandas_udf

from hermes_spark.errors import ModelError, SettingsError
from hermes_spark.llm.client import ChatModel, CompletionRequest
from hermes_spark.llm.tokenizer import ChatTokenizer
from hermes_spark.llm.triton import TritonModel
from hermes_spark.messages import Message, ToolSpec
from hermes_spark.settings import ModelSettings

MESSAGES = "array<struct<role:string,content:string>>"
"""The argument's type."""
ANSWER = (
    "struct<content:string,reasoning:string,calls:array<struct<name:string,arguments:string>>,errors:array<string>,"
    "truncated:boolean,finish_reason:string,prompt_tokens:int,completion_tokens:int,error:string>"
)
"""The result's type: a `Completion`, its calls' arguments as JSON text. A row without a completion has `error`, else nulls."""

_FIELDS = (
    "content",
    "reasoning",
    "calls",
    "errors",
    "truncated",
    "finish_reason",
    "prompt_tokens",
    "completion_tokens",
    "error",
)
_ROLES = ("system", "user", "assistant", "tool")


class ChatOptions(msgspec.Struct, frozen=True):
    """What every row's completion is asked with."""

    tools: tuple[ToolSpec, ...] = ()
    max_tokens: int = 1024
    thinking: bool = True


def chat_udf(settings: ModelSettings, options: ChatOptions = ChatOptions()) -> Any:  # noqa: B008 - frozen
    """A `pandas_udf` from `MESSAGES` to `ANSWER`, for DataFrames and for `spark.udf.register`.

    `settings.tokenizer` names a directory that every worker can read. The rows of a batch run concurrently; each has
    `settings.timeout_s`. A row whose completion fails fills its `error` and harms no other. The function counts as
    non-deterministic, so that Spark does not call it again for every field that a query takes out of its result.
    Raises `SettingsError` when no tokenizer is named.
    """
    if not settings.tokenizer:
        raise SettingsError(
            "model.tokenizer is empty; chat_udf needs the name of a directory that every worker can read."
        )

    def chat(messages: pd.Series) -> pd.DataFrame:
        # Imported in the worker: this function travels by value, with a copy of what it names.
        from hermes_spark.llm.udf import answer_batch

        answers: pd.DataFrame = answer_batch(messages, settings, options)
        return answers

    return pandas_udf(chat, ANSWER).asNondeterministic()


def answer_batch(messages: pd.Series, settings: ModelSettings, options: ChatOptions) -> pd.DataFrame:
    """One batch: lists of messages in, a frame of `ANSWER`'s fields out, in the same order. Blocks until all are answered."""
    worker = _worker()
    answers = asyncio.run_coroutine_threadsafe(worker.answer_all(messages.tolist(), settings, options), worker.loop)
    # Every row has every field: pandas would fill a gap with NaN, which is no null to Spark.
    rows = [[answer.get(field) for field in _FIELDS] for answer in answers.result()]
    frame: pd.DataFrame = pd.DataFrame(rows, columns=list(_FIELDS), dtype=object)
    return frame


class _Worker:
    """The event loop thread of this process, with one model per settings."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._models: dict[ModelSettings, ChatModel] = {}
        threading.Thread(target=self.loop.run_forever, name="hermes-chat-udf", daemon=True).start()

    async def answer_all(self, rows: list[Any], settings: ModelSettings, options: ChatOptions) -> list[dict[str, Any]]:
        model = self._model(settings)
        # A row's time starts when its turn comes, however many rows stand before it.
        slots = asyncio.Semaphore(settings.max_in_flight)

        async def answer(row: Any) -> dict[str, Any]:
            async with slots:
                return await _answer(model, row, settings.timeout_s, options)

        return await asyncio.gather(*map(answer, rows))

    def _model(self, settings: ModelSettings) -> ChatModel:
        model = self._models.get(settings)
        if model is None:
            tokenizer = ChatTokenizer.load(settings.tokenizer, format=settings.format)
            model = self._models[settings] = TritonModel(settings, tokenizer)
        return model


_workers: dict[int, _Worker] = {}
"""By process id: Spark forks its workers, and a thread does not live on in a fork."""


def _worker() -> _Worker:
    worker = _workers.get(os.getpid())
    if worker is None:
        worker = _workers[os.getpid()] = _Worker()
    return worker


async def _answer(model: ChatModel, row: Any, timeout_s: float, options: ChatOptions) -> dict[str, Any]:
    problem = _problem(row)
    if problem:
        return {"error": problem}
    request = CompletionRequest(
        messages=tuple(Message(message["role"], message["content"] or "") for message in row),
        tools=options.tools,
        max_tokens=options.max_tokens,
        thinking=options.thinking,
        timeout_s=timeout_s,
    )
    try:
        completion = await model.complete(request)
    except ModelError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    reply = completion.reply
    return {
        "content": reply.content,
        "reasoning": reply.reasoning,
        "calls": [
            {"name": call.name, "arguments": msgspec.json.encode(call.arguments).decode()} for call in reply.calls
        ],
        "errors": list(reply.errors),
        "truncated": reply.truncated,
        "finish_reason": completion.finish_reason,
        "prompt_tokens": completion.usage.prompt_tokens,
        "completion_tokens": completion.usage.completion_tokens,
    }


def _problem(row: Iterable[Mapping[str, Any] | None] | None) -> str:
    """Why a row is no chat; empty if it is one."""
    if row is None:
        return "messages is null; expected an array of structs with role and content"
    roles = [message["role"] if message is not None else None for message in row]
    if not roles or any(role not in _ROLES for role in roles):
        return f"messages has the roles {roles}; expected at least one message, each a {', '.join(_ROLES)}"
    return ""

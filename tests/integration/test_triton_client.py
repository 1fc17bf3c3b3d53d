"""The Triton client against real Triton servers: what it answers, and what each way of failing becomes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket

import pytest
from prometheus_client import REGISTRY

from hermes_spark.errors import ModelBusy, ModelContractError, ModelError, ModelTimeout, ModelUnavailable
from hermes_spark.llm.client import CompletionRequest
from hermes_spark.llm.tokenizer import ChatTokenizer
from hermes_spark.llm.triton import TritonModel
from hermes_spark.messages import Message, ToolSpec
from hermes_spark.settings import ModelSettings
from triton_models import QWEN, serving, write_repository

pytestmark = pytest.mark.triton

CRM = ToolSpec(
    "crm_query",
    "Look up a customer 客户 and the state of their orders 订单状态",
    {"type": "object", "properties": {"customer": {"type": "string", "description": "客户"}}, "required": ["customer"]},
)
QUESTION = (Message("system", "Answer briefly."), Message("user", "查一下客户张三的订单状态"))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The address of a Triton with all models of `write_repository`."""
    with serving(write_repository(tmp_path_factory.mktemp("repository"))) as (address, _):
        yield address


@pytest.fixture(scope="module")
def tokenizer():
    return ChatTokenizer.load(QWEN / "tokenizer", format="qwen3.5")


@pytest.fixture
async def connect(tokenizer):
    """Makes clients that are closed after the test."""
    made = []

    def make(url, name="qwen35b_a3b", **settings):
        made.append(TritonModel(ModelSettings(url=url, name=name, **settings), tokenizer))
        return made[-1]

    yield make
    for model in made:
        await model.close()


def ask(timeout_s=20.0, messages=QUESTION, **options):
    return CompletionRequest(messages, timeout_s=timeout_s, **options)


def count(name, **labels):
    return REGISTRY.get_sample_value(name, labels) or 0.0


async def until(condition, what):
    for _ in range(2_000):
        if condition():
            return
        await asyncio.sleep(0.01)
    pytest.fail(f"{what} did not happen within 20 s")


async def test_a_question_becomes_a_call_and_its_result_an_answer(models, connect):
    model = connect(models)
    await model.check()
    first = await model.complete(ask(tools=(CRM,)))
    assert [(call.name, call.arguments) for call in first.reply.calls] == [("crm_query", {"customer": "张三"})]
    assert first.reply.errors == ()
    assert first.finish_reason == "stop"
    assert first.usage.prompt_tokens == model._tokenizer.encode(QUESTION, (CRM,), thinking=True).size
    assert first.usage.completion_tokens > 0
    asked = Message("assistant", first.reply.content, first.reply.reasoning, first.reply.calls)
    answer = await model.complete(
        ask(messages=(*QUESTION, asked, Message("tool", '{"status": "已发货"}')), tools=(CRM,))
    )
    assert "已发货" in answer.reply.content
    assert answer.reply.calls == ()


@pytest.mark.parametrize("thinking", [True, False])
async def test_thinking_is_told_from_content(models, connect, thinking):
    completion = await connect(models).complete(ask(thinking=thinking))
    assert bool(completion.reply.reasoning) is thinking
    assert completion.reply.content
    assert "think>" not in completion.reply.content


async def test_a_short_limit_cuts_the_reply(models, connect):
    completion = await connect(models).complete(ask(max_tokens=3, tools=(CRM,)))
    assert completion.finish_reason == "length"
    assert completion.reply.truncated
    assert completion.usage.completion_tokens == 3


async def test_many_at_once_over_one_connection(models, connect):
    before = count("hermes_model_requests_total", result="ok")
    model = connect(models, max_in_flight=16)
    replies = await asyncio.gather(*(model.complete(ask(tools=(CRM,))) for _ in range(64)))
    assert {reply.reply.calls[0].name for reply in replies} == {"crm_query"}
    assert count("hermes_model_requests_total", result="ok") == before + 64
    assert count("hermes_model_in_flight") == 0


async def test_a_prompt_that_is_too_long_is_a_contract_error(models, connect):
    with pytest.raises(ModelContractError, match="INVALID_ARGUMENT"):
        await connect(models).complete(ask(messages=(Message("user", "long " * 40_000),)))


async def test_a_model_that_is_not_there(models, connect):
    model = connect(models, name="no_such_model")
    with pytest.raises(ModelUnavailable, match=r"no_such_model is not ready at .*has not loaded it.*model\.name"):
        await model.check()
    with pytest.raises(ModelUnavailable, match="NOT_FOUND"):
        await model.complete(ask())


async def test_a_server_that_is_not_there(connect):
    with socket.create_server(("127.0.0.1", 0)) as port:
        address = f"127.0.0.1:{port.getsockname()[1]}"
    model = connect(address)
    with pytest.raises(ModelUnavailable, match=rf"{address} failed .*refused.*model\.url"):
        await model.check()
    before = count("hermes_model_requests_total", result="unavailable")
    with pytest.raises(ModelUnavailable, match="refused"):
        await model.complete(ask(timeout_s=1.0))
    assert count("hermes_model_requests_total", result="unavailable") == before + 1


async def test_a_server_that_never_speaks(connect):
    with socket.create_server(("127.0.0.1", 0)) as port:  # the kernel accepts, nobody reads
        model = connect(f"127.0.0.1:{port.getsockname()[1]}", connect_timeout_s=0.3)
        with pytest.raises(ModelUnavailable):
            await model.check()
        with pytest.raises((ModelUnavailable, ModelTimeout)):
            await model.complete(ask(timeout_s=1.0))


async def test_a_closed_client_says_so(models, connect):
    model = connect(models)
    await model.close()
    with pytest.raises(ModelUnavailable, match="closed"):
        await model.complete(ask())


async def test_a_full_model_is_tried_again(models, connect):
    model = connect(models, name="narrow")
    before = count("hermes_model_refusals_total", reason="busy")
    await asyncio.gather(*(model.complete(ask()) for _ in range(4)))
    assert count("hermes_model_refusals_total", reason="busy") > before


@pytest.mark.parametrize("way", ["deadline", "cancellation"])
async def test_what_is_given_up_leaves_the_server(models, connect, way):
    """The model serves one request at a time, so the second is served only when the server has let go of the first."""
    model = connect(models, name="endless")
    refused = count("hermes_model_refusals_total", reason="busy")
    first = asyncio.create_task(model.complete(ask(timeout_s=2.0 if way == "deadline" else 60.0)))
    await until(lambda: count("hermes_model_in_flight") == 1, "the request")
    await model.check()  # over the same connection, so the first request has gone before the second
    second = asyncio.create_task(model.complete(ask(timeout_s=12.0)))
    await until(lambda: count("hermes_model_refusals_total", reason="busy") > refused, "a refusal")
    if way == "cancellation":
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
    else:
        with pytest.raises(ModelTimeout, match=r"model\.timeout_s"):
            await first
    with pytest.raises(ModelTimeout):  # ModelBusy if the first were still there for most of the time
        await second


async def test_waiting_for_a_slot_counts_towards_the_deadline(models, connect):
    model = connect(models, name="endless", max_in_flight=1)
    first = asyncio.create_task(model.complete(ask(timeout_s=60.0)))
    await until(lambda: count("hermes_model_in_flight") == 1, "the request")
    with pytest.raises(ModelTimeout):
        await model.complete(ask(timeout_s=0.3))
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert count("hermes_model_in_flight") == 0


async def test_a_server_killed_in_mid_request_costs_no_request_when_it_is_back_in_time(connect):
    with serving(QWEN.parent, "--set=first_token_ms=600000") as (address, pid):
        model = connect(address)
        short, long = (asyncio.create_task(model.complete(ask(timeout_s=timeout_s))) for timeout_s in (5.0, 100.0))
        await until(lambda: count("hermes_model_in_flight") == 2, "the requests")
        await model.check()  # over the same connection, so the requests have gone before
        os.killpg(pid, signal.SIGKILL)
        with pytest.raises(ModelUnavailable):
            await short
    with contextlib.ExitStack() as back:
        port = address.rpartition(":")[2]
        await asyncio.to_thread(
            back.enter_context, serving(QWEN.parent, "--set=first_token_ms=1", f"--grpc-port={port}")
        )
        assert (await long).reply.content


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("promises_less", "output sequence_length is missing"),
        ("promises_else", "input top_p is FP64"),
    ],
)
async def test_a_model_that_promises_something_else(models, connect, name, sentence):
    with pytest.raises(ModelContractError, match=rf"{name} at 127.* {sentence}.*Serve model_repository"):
        await connect(models, name=name).check()


@pytest.mark.parametrize(
    ("name", "error", "sentence"),
    [
        ("lacks_output", ModelContractError, "lacks the output finish_reason"),
        ("wrong_type", ModelContractError, "output_ids as float32"),
        ("wrong_shape", ModelContractError, "sequence_length"),
        ("wrong_ids", ModelContractError, r"model\.tokenizer"),
        ("full", ModelBusy, r"takes no more requests .*too much.*model\.max_in_flight"),
        ("raises", ModelUnavailable, "INTERNAL.*a fault"),
    ],
)
async def test_a_model_that_breaks_its_promise(models, connect, name, error, sentence):
    model = connect(models, name=name)
    await model.check()
    with pytest.raises(ModelError, match=sentence) as caught:
        await model.complete(ask(timeout_s=2.0 if name == "full" else 20.0))
    assert type(caught.value) is error

"""The reference model on a real Triton server: contract, concurrency, bounds, cancellation, and the server's own script."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import psutil
import pytest
import tritonclient.grpc.aio as grpc
from tritonclient.utils import InferenceServerException

from hermes_spark.messages import Message
from reference import MODEL, TOKENIZER, TOOLS
from servers import TritonServer, running_triton, triton

pytestmark = pytest.mark.triton
NAME = "qwen35b_a3b"
MAX_IN_FLIGHT = 40


@pytest.fixture(scope="module")
def server() -> Iterator[TritonServer]:
    with running_triton(first_token_ms=50, tokens_per_second=0, max_in_flight=MAX_IN_FLIGHT) as running:
        yield running


@pytest.fixture
async def client(server: TritonServer) -> AsyncIterator[grpc.InferenceServerClient]:
    made = grpc.InferenceServerClient(server.grpc_url)
    yield made
    await made.close()


def tensors(message: str, **changed: Any) -> list[grpc.InferInput]:
    ids = TOKENIZER.encode([Message("user", message)], TOOLS, thinking=changed.pop("thinking", True))
    arrays = {
        "input_ids": ids[None],
        "input_lengths": np.array([[len(ids)]], np.int32),
        "request_output_len": np.array([[1024]], np.int32),
    }
    made = []
    for name, array in (arrays | changed).items():
        kind = {"i": "INT32", "f": "FP32", "u": "UINT64", "O": "BYTES"}[array.dtype.kind]
        made.append(grpc.InferInput(name, array.shape, kind))
        made[-1].set_data_from_numpy(array)
    return made


def reply(result: grpc.InferResult) -> str:
    return TOKENIZER.decode(result.as_numpy("output_ids")[0, 0])


async def test_a_request_is_answered_by_the_contract(client: grpc.InferenceServerClient) -> None:
    sampling = {
        "temperature": np.array([[0.7]], np.float32),
        "top_p": np.array([[0.8]], np.float32),
        "top_k": np.array([[20]], np.int32),
        "seed": np.array([[7]], np.uint64),
        "end_id": np.array([[TOKENIZER.end_id]], np.int32),
        "stop_words": np.array([[b"\xe2\x98\x83", b"zzz"]], np.object_),
    }
    for optional in ({}, sampling):
        request = tensors("查一下客户张三的订单状态", **optional)
        result = await client.infer(NAME, request, client_timeout=30)
        assert "<function=crm_query>\n<parameter=customer>\n张三\n" in reply(result)
        assert result.as_numpy("finish_reason").tolist() == [[b"stop"]]
        count = result.as_numpy("output_ids").shape[2]
        assert result.as_numpy("sequence_length").tolist() == result.as_numpy("num_output_tokens").tolist() == [[count]]
        assert result.as_numpy("num_input_tokens").tolist() == [[request[0].shape()[1]]]


async def test_an_empty_reply_is_an_empty_tensor(client: grpc.InferenceServerClient) -> None:
    result = await client.infer(NAME, tensors("hello [[empty]]", thinking=False), client_timeout=30)
    assert result.as_numpy("output_ids").shape == (1, 1, 0)
    assert result.as_numpy("sequence_length").tolist() == [[0]]


async def test_http_serves_the_same_model(server: TritonServer) -> None:
    arrays = [(tensor.name(), list(tensor.shape())) for tensor in tensors("hello")]
    ids = TOKENIZER.encode([Message("user", "hello")], TOOLS, thinking=True).tolist()
    data = [ids, [len(ids)], [1024]]
    inputs = [
        {"name": name, "shape": shape, "datatype": "INT32", "data": values}
        for (name, shape), values in zip(arrays, data, strict=True)
    ]
    url = f"{server.http_url}/v2/models/{NAME}/infer"
    async with aiohttp.ClientSession() as http, http.post(url, json={"inputs": inputs}) as response:
        assert response.status == 200
        outputs = {output["name"]: output["data"] for output in (await response.json())["outputs"]}
    assert outputs["finish_reason"] == ["stop"]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"request_output_len": np.array([[0]], np.int32)}, "request_output_len is 0"),
        ({"input_lengths": np.array([[99_999]], np.int32)}, "input_lengths is 99999"),
        ({"input_lengths": np.array([[40]], np.int32)}, "no user message"),
        ({"request_output_len": np.array([[50_000]], np.int32)}, "exceed the model's 32768 tokens"),
    ],
)
async def test_what_cannot_be_served_is_an_invalid_argument(
    client: grpc.InferenceServerClient, changed: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InferenceServerException, match=reason) as caught:
        await client.infer(NAME, tensors("hello", **changed), client_timeout=30)
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"


async def test_requests_run_concurrently_up_to_the_bound_and_cancelled_ones_free_their_place(
    client: grpc.InferenceServerClient,
) -> None:
    """None of these would end in time: those that end were refused, and all others are being served at once."""
    request = tensors("hello [[slow:600000]]")
    asked = {asyncio.ensure_future(client.infer(NAME, request)) for _ in range(MAX_IN_FLIGHT + 20)}
    ended: set[asyncio.Future[grpc.InferResult]] = set()
    while len(ended) < 20:
        done, _ = await asyncio.wait(asked - ended, return_when=asyncio.FIRST_COMPLETED, timeout=30)
        assert done, "20 requests above the bound were not refused within 30 s"
        ended |= done
    for served in asked - ended:
        served.cancel()
    await asyncio.wait(asked, timeout=10)
    errors = [future.exception() for future in ended]
    assert {(error.status(), error.message()) for error in errors} == {
        ("StatusCode.UNAVAILABLE", f"busy: {MAX_IN_FLIGHT} requests are in flight (max_in_flight); try again later")
    }
    await until_free(client)


async def test_a_slow_request_holds_up_no_other(client: grpc.InferenceServerClient) -> None:
    slow = asyncio.ensure_future(client.infer(NAME, tensors("hello [[slow:600000]]")))
    for _ in range(3):
        assert reply(await client.infer(NAME, tensors("hello"), client_timeout=30))
    assert not slow.done()
    slow.cancel()
    await asyncio.wait({slow}, timeout=10)


async def until_free(client: grpc.InferenceServerClient) -> None:
    end = time.monotonic() + 30
    while await is_busy(client):
        assert time.monotonic() < end, "the places of cancelled requests were not free within 30 s"


async def is_busy(client: grpc.InferenceServerClient) -> bool:
    try:
        await client.infer(NAME, tensors("hello"), client_timeout=30)
    except InferenceServerException as error:
        if error.status() != "StatusCode.UNAVAILABLE":
            raise
        return True
    return False


def test_the_script_is_safe_to_repeat_and_leaves_nothing(tmp_path: Path) -> None:
    ports = ("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0")
    assert triton(tmp_path, "stop", timeout=60).stdout == "not running\n"
    assert triton(tmp_path, "start", *ports, timeout=120).returncode == 0
    again = triton(tmp_path, "start", *ports, timeout=120)
    assert (again.returncode, again.stdout.partition(":")[0]) == (0, "already running")
    assert triton(tmp_path, "status", timeout=60).stdout.startswith("ready: pid ")
    pid = int(triton(tmp_path, "status", timeout=60).stdout.split()[2].rstrip(","))
    processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    listening = {
        connection.laddr.ip for connection in psutil.Process(pid).net_connections() if connection.status == "LISTEN"
    }
    assert all(address.removeprefix("::ffff:") == "127.0.0.1" for address in listening)
    assert triton(tmp_path, "stop", timeout=60).stdout == "stopped\n"
    _, alive = psutil.wait_procs(processes, timeout=10)
    assert alive == []
    assert triton(tmp_path, "status", timeout=60).returncode != 0


def test_the_script_says_what_is_wrong(tmp_path: Path) -> None:
    ports = ("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0")
    for arguments, reason in (
        (("--set", "speed=1"), "the model has no such parameter; it has engine, tokenizer"),
        (("--set", "engine=tensorrt_llm"), "engine tensorrt_llm is not in this version"),
        (("--model-repository", str(MODEL)), "holds no model"),
    ):
        failed = triton(tmp_path, "start", *ports, *arguments, timeout=120)
        assert failed.returncode == 1
        assert failed.stderr.startswith("scripts/triton: ")
        assert reason in failed.stderr
        assert triton(tmp_path, "status", timeout=60).returncode != 0


def test_a_killed_server_leaves_no_process_and_can_be_started_again(tmp_path: Path) -> None:
    with running_triton() as killed:
        processes = [psutil.Process(killed.pid), *psutil.Process(killed.pid).children(recursive=True)]
        os.kill(killed.pid, 9)
        _, alive = psutil.wait_procs(processes, timeout=30)
        assert alive == []
        again = triton(
            killed.log.parent, "start", "--http-port", "0", "--grpc-port", "0", "--metrics-port", "0", timeout=120
        )
        assert again.stdout.startswith("ready: ")

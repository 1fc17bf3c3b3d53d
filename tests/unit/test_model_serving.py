"""The Triton model without Triton: its tensors are checked, its requests run at once, bounded, and each is answered once."""

from __future__ import annotations

import asyncio
import queue
from typing import Any

import numpy as np
import pytest

import engines
import serving
import tensors

REQUEST = engines.GenerationRequest(np.array([1], np.int32), 8)
DONE = engines.Generation((1, 2, 3), "stop")
WAIT_S = 10.0


class Answer:
    """Collects what one request is answered."""

    def __init__(self) -> None:
        self.given: queue.Queue[Any] = queue.Queue()
        self.gone = False

    def send(self, generation: engines.Generation) -> None:
        self.given.put(generation)

    def refuse(self, refusal: serving.Refusal, reason: str) -> None:
        self.given.put((refusal, reason))

    def cancelled(self) -> bool:
        return self.gone

    def wait(self) -> Any:
        return self.given.get(timeout=WAIT_S)


class Gate:
    """An engine that answers when the test lets it, or fails."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.open = asyncio.Event()

    async def generate(self, request: engines.GenerationRequest) -> engines.Generation:
        if self.error is not None:
            raise self.error
        await self.open.wait()
        return DONE


def submit(server: serving.Server) -> Answer:
    answer = Answer()
    server.submit(REQUEST, answer)
    return answer


def test_requests_run_at_once_and_those_above_the_bound_are_refused() -> None:
    gate = Gate()
    server = serving.Server(gate, max_in_flight=2)
    first, second, third = submit(server), submit(server), submit(server)
    refusal, reason = third.wait()
    assert refusal is serving.Refusal.BUSY
    assert reason.startswith("busy: 2 requests are in flight")
    server._loop.call_soon_threadsafe(gate.open.set)
    assert (first.wait(), second.wait()) == (DONE, DONE)
    assert submit(server).wait() == DONE  # the places are free again
    server.close()
    assert all(answer.given.empty() for answer in (first, second, third))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (engines.InvalidRequest("no user"), (serving.Refusal.INVALID, "no user")),
        (KeyError("x"), (serving.Refusal.FAILED, "KeyError")),
    ],
)
def test_failures_are_answers(error: Exception, expected: tuple[serving.Refusal, str]) -> None:
    server = serving.Server(Gate(error), max_in_flight=2)
    refusal, reason = submit(server).wait()
    assert refusal is expected[0]
    assert expected[1] in reason
    server.close()


def test_what_nobody_waits_for_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "CANCEL_CHECK_S", 0.01)
    server = serving.Server(Gate(), max_in_flight=2)
    gone, waiting = submit(server), submit(server)
    gone.gone = True
    assert gone.wait()[0] is serving.Refusal.CANCELLED
    assert waiting.given.empty()
    server.close()
    assert waiting.wait()[0] is serving.Refusal.BUSY


def test_closing_refuses_what_is_in_flight_and_ends_the_thread() -> None:
    server = serving.Server(Gate(), max_in_flight=2)
    answer = submit(server)
    server.close()
    assert answer.wait() == (serving.Refusal.BUSY, "busy: the model is stopping; try again later")
    assert not server._thread.is_alive()


def inputs(**changed: Any) -> dict[str, Any]:
    arrays: dict[str, Any] = {
        "input_ids": np.array([[5, 6, 7]], np.int32),
        "input_lengths": np.array([[3]], np.int32),
        "request_output_len": np.array([[8]], np.int32),
    }
    return arrays | changed


def test_a_request_is_read_from_its_tensors() -> None:
    optional = {
        "temperature": np.array([[0.5]], np.float32),
        "top_k": np.array([[20]], np.int32),
        "stop_words": np.array([["停".encode(), b""]], np.object_),
        "end_id": np.array([[9]], np.int32),
    }
    request = tensors.read_request(inputs(input_lengths=np.array([[2]], np.int32), **optional), 10)
    assert request.input_ids.tolist() == [5, 6]
    assert (request.max_tokens, request.stop_words, request.end_id) == (8, ("停",), 9)
    assert request.sampling == engines.Sampling(temperature=0.5, top_k=20)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"input_lengths": np.array([[4]])}, "input_lengths is 4; it must be between 1 and the 3 tokens"),
        ({"input_lengths": np.array([[0]])}, "input_lengths is 0"),
        ({"input_lengths": np.array([[1, 2]])}, "input_lengths holds 2 values"),
        ({"input_ids": np.zeros((2, 3), np.int32)}, "2 sequences; send one per request"),
        ({"request_output_len": np.array([[0]])}, "request_output_len is 0; it must be at least 1"),
        ({"request_output_len": np.array([[98]])}, "exceed the model's 100 tokens"),
        ({"temperature": np.array([[-1.0]])}, "temperature is -1.0"),
        ({"temperature": np.array([[np.nan]])}, "temperature is nan"),
        ({"top_p": np.array([[0.0]])}, "top_p is 0.0"),
        ({"top_k": np.array([[-1]])}, "top_k is -1"),
        ({"stop_words": np.array([[b"\xff"]], np.object_)}, "no UTF-8"),
    ],
)
def test_tensors_that_cannot_be_served_are_named(changed: dict[str, Any], reason: str) -> None:
    with pytest.raises(engines.InvalidRequest, match=reason):
        tensors.read_request(inputs(**changed), 100)


def test_a_generation_is_written_with_its_counts() -> None:
    written = tensors.write_response(engines.Generation((), "length"), 7)
    assert written["output_ids"].shape == (1, 1, 0)
    shapes = {name: (array.shape, array.dtype.name) for name, array in tensors.write_response(DONE, 7).items()}
    assert shapes == {
        "output_ids": ((1, 1, 3), "int32"),
        "sequence_length": ((1, 1), "int32"),
        "finish_reason": ((1, 1), "object"),
        "num_input_tokens": ((1, 1), "int32"),
        "num_output_tokens": ((1, 1), "int32"),
    }

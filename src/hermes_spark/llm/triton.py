"""The model behind Triton's gRPC service. The only module that knows tritonclient and its errors.

A completion passes three layers that know nothing of each other's business: the deadline and the bound in flight
(`_within_deadline`), retries of what Triton refuses as UNAVAILABLE (`_retrying`), and one call (`_attempt`). Every foreign
error is translated in one place, `_translated`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import stamina
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from prometheus_client import Counter, Gauge, Histogram
from tritonclient.utils import InferenceServerException

from hermes_spark.errors import ModelBusy, ModelContractError, ModelError, ModelTimeout, ModelUnavailable
from hermes_spark.llm.attempts import Attempts
from hermes_spark.llm.chat_format import parse_reply
from hermes_spark.llm.client import Completion, CompletionRequest
from hermes_spark.llm.tokenizer import ChatTokenizer, Ids
from hermes_spark.llm.triton_contract import (
    INPUTS,
    Array,
    Generation,
    Tensor,
    broken_promises,
    prompt_inputs,
    read_outputs,
    sampling_inputs,
)
from hermes_spark.settings import ModelSettings

REQUESTS = Counter("hermes_model_requests", "Completions asked for, by result", ["result"])
REFUSALS = Counter(
    "hermes_model_refusals", "Calls that Triton refused or that did not reach it, before any retry", ["reason"]
)
IN_FLIGHT = Gauge("hermes_model_in_flight", "Completions under way at Triton")
SECONDS = Histogram(
    "hermes_model_seconds",
    "Time of a completion, retries and waiting included",
    buckets=(0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60),
)

_RETRY_FIRST_S = 0.05
_RETRY_MOST_S = 2.0
_RETRY_JITTER_S = 0.1
_MESSAGE_CHARS = 300

ERRORS: Mapping[str | None, type[ModelError]] = {
    "StatusCode.UNAVAILABLE": ModelUnavailable,  # or ModelBusy: `_refusal` finds out
    "StatusCode.DEADLINE_EXCEEDED": ModelTimeout,
    "StatusCode.RESOURCE_EXHAUSTED": ModelBusy,  # Triton does not say so, a proxy before it does
    # What a later request may find mended: the model is absent, its process died or failed, a proxy wants credentials.
    "StatusCode.NOT_FOUND": ModelUnavailable,
    "StatusCode.CANCELLED": ModelUnavailable,
    "StatusCode.ABORTED": ModelUnavailable,
    "StatusCode.INTERNAL": ModelUnavailable,
    "StatusCode.UNKNOWN": ModelUnavailable,
    "StatusCode.DATA_LOSS": ModelUnavailable,
    "StatusCode.PERMISSION_DENIED": ModelUnavailable,
    "StatusCode.UNAUTHENTICATED": ModelUnavailable,
    # What stays wrong however often it is sent.
    "StatusCode.INVALID_ARGUMENT": ModelContractError,
    "StatusCode.FAILED_PRECONDITION": ModelContractError,
    "StatusCode.OUT_OF_RANGE": ModelContractError,
    "StatusCode.UNIMPLEMENTED": ModelContractError,
    "StatusCode.ALREADY_EXISTS": ModelContractError,
    None: ModelContractError,  # raised by tritonclient itself, before anything is sent
}
"""What each gRPC status means for us."""

_REMEDIES: Mapping[type[ModelError], str] = {
    ModelUnavailable: "see Triton's log, start Triton with this model, or correct model.url and model.name",
    ModelBusy: "repeat later, lower model.max_in_flight or serve more instances",
    ModelTimeout: "raise model.timeout_s or ask for fewer tokens",
    ModelContractError: "serve a model that keeps the tensor contract, and keep prompts within its limits",
}


class TritonModel:
    """A `ChatModel` over one long-lived gRPC connection. Belongs to the event loop that first uses it.

    `settings.url` has no scheme. The connection is made at the first use, so an instance may be made before the loop runs.
    """

    def __init__(self, settings: ModelSettings, tokenizer: ChatTokenizer) -> None:
        self._settings = settings
        self._tokenizer = tokenizer
        self._slots = asyncio.Semaphore(settings.max_in_flight)
        self._client: triton_aio.InferenceServerClient | None = None
        self._closed = False
        # Without an end of its own: the deadline around it ends it, so a Triton that starts again in time costs no turns.
        self._retrying = stamina.AsyncRetryingCaller(
            attempts=None,
            timeout=None,
            wait_initial=_RETRY_FIRST_S,
            wait_max=_RETRY_MOST_S,
            wait_jitter=_RETRY_JITTER_S,
        ).on(_was_refused)
        self._sampling = _as_infer_inputs(sampling_inputs(settings, tokenizer.end_id))

    async def complete(self, request: CompletionRequest) -> Completion:
        """See `ChatModel.complete`. Waiting for a free slot and all retries count towards `request.timeout_s`."""
        with SECONDS.time(), _counted():
            ids = self._tokenizer.encode(request.messages, request.tools, thinking=request.thinking)
            generation = await self._within_deadline(ids, request)
            text = self._tokenizer.decode(generation.ids)
        reply = parse_reply(
            text,
            tools=request.tools,
            format=self._settings.format,
            finish_reason=generation.finish_reason,
            # Qwen3.5's prompt ends inside an open think block; Hermes' models open it themselves.
            in_thinking=request.thinking and self._settings.format == "qwen3.5",
        )
        return Completion(reply, generation.usage, generation.finish_reason)

    async def check(self) -> None:
        """See `ChatModel.check`: Triton answers, the model is ready, its metadata keeps the contract."""
        try:
            metadata = await self._metadata(self._settings.connect_timeout_s)
        except (ModelTimeout, ModelBusy) as error:
            raise ModelUnavailable(str(error)) from error
        broken = broken_promises(_tensors(metadata.inputs), _tensors(metadata.outputs), seed=self._settings.seed)
        if broken:
            raise ModelContractError(
                f"The model {self._settings.name} at {self._settings.url} does not keep the tensor contract: "
                f"{'; '.join(broken)}. Serve model_repository/qwen35b_a3b, or give the model these tensors."
            )

    async def close(self) -> None:
        """See `ChatModel.close`. Completions still under way end as if their tasks were cancelled."""
        self._closed = True
        if self._client is not None:
            await self._client.close()

    async def _within_deadline(self, ids: Ids, request: CompletionRequest) -> Generation:
        attempts = Attempts(request.timeout_s)
        inputs = self._sampling + _as_infer_inputs(prompt_inputs(ids, request.max_tokens))
        try:
            return await asyncio.wait_for(self._in_slot(inputs, attempts), request.timeout_s)
        except ModelTimeout as error:  # gRPC's clock was the first to say so
            raise attempts.obstacle() or error from error.__cause__
        except asyncio.TimeoutError:
            raise attempts.obstacle() or ModelTimeout(
                f"The model {self._settings.name} at {self._settings.url} gave no completion within {request.timeout_s:g} s; "
                f"{_REMEDIES[ModelTimeout]}."
            ) from None

    async def _in_slot(self, inputs: list[triton.InferInput], attempts: Attempts) -> Generation:
        async with self._slots:
            with IN_FLIGHT.track_inprogress():
                try:
                    return await self._attempt(inputs, attempts)
                except (
                    ModelError
                ) as error:  # retries are set up only when one is needed: that costs as much as a request
                    if not _was_refused(error):
                        raise
                await asyncio.sleep(_RETRY_FIRST_S)
                return await self._retrying(self._attempt, inputs, attempts)

    async def _attempt(self, inputs: list[triton.InferInput], attempts: Attempts) -> Generation:
        attempts.begin()
        try:
            return await self._infer(inputs, attempts.left_s())
        except ModelError as error:
            if not _was_refused(error):
                raise
            attempts.refusal = await self._refusal(error, attempts.left_s())
            raise attempts.refusal from error.__cause__

    async def _infer(self, inputs: list[triton.InferInput], left_s: float) -> Generation:
        client = self._connected()
        with self._translated():
            result = await client.infer(self._settings.name, inputs, client_timeout=left_s)
        try:
            return read_outputs(result.as_numpy)
        except ValueError as error:  # a tensor whose bytes do not fill its shape
            raise ModelContractError(
                f"The model {self._settings.name} at {self._settings.url} answered a tensor that cannot be read ({error}); "
                f"{_REMEDIES[ModelContractError]}."
            ) from error

    async def _refusal(self, error: ModelError, left_s: float) -> ModelError:
        """Tell a model that is full from one that is not there: gRPC says UNAVAILABLE for both."""
        try:
            await self._check_ready(min(self._settings.connect_timeout_s, left_s))
        except ModelError:
            REFUSALS.labels("unavailable").inc()
            return error
        REFUSALS.labels("busy").inc()
        return ModelBusy(
            f"The model {self._settings.name} at {self._settings.url} is ready but takes no more requests "
            f"({error.__cause__}); {_REMEDIES[ModelBusy]}."
        )

    async def _metadata(self, limit_s: float) -> Any:
        await self._check_ready(limit_s)
        with self._translated():
            return await self._connected().get_model_metadata(self._settings.name, client_timeout=limit_s)

    async def _check_ready(self, limit_s: float) -> None:
        client = self._connected()
        with self._translated():
            ready = await client.is_model_ready(self._settings.name, client_timeout=limit_s)
            starting = not ready and not await client.is_server_ready(client_timeout=limit_s)
        if not ready:
            why = "Triton is still starting, or a model failed to load" if starting else "Triton has not loaded it"
            raise ModelUnavailable(
                f"The model {self._settings.name} is not ready at {self._settings.url}: {why}; {_REMEDIES[ModelUnavailable]}."
            )

    def _connected(self) -> triton_aio.InferenceServerClient:
        if self._closed:
            raise ModelUnavailable(f"The connection to {self._settings.url} is closed; make a new TritonModel.")
        if self._client is None:
            self._client = triton_aio.InferenceServerClient(
                self._settings.url, channel_args=_channel_args(self._settings.connect_timeout_s)
            )
        return self._client

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """The one place where an error of tritonclient becomes one of ours."""
        try:
            yield
        except InferenceServerException as error:
            kind = ERRORS.get(error.status(), ModelUnavailable)
            text = (error.message() or "no reason given").splitlines()[0][:_MESSAGE_CHARS]
            raise kind(
                f"The model {self._settings.name} at {self._settings.url} failed ({error.status()}: {text}); "
                f"{_REMEDIES[kind]}."
            ) from error


def _was_refused(error: Exception) -> bool:
    cause = error.__cause__
    return isinstance(cause, InferenceServerException) and cause.status() == "StatusCode.UNAVAILABLE"


@contextmanager
def _counted() -> Iterator[None]:
    result = "failed"
    try:
        yield
        result = "ok"
    except asyncio.CancelledError:
        result = "cancelled"
        raise
    except ModelError as error:
        result = type(error).__name__.removeprefix("Model").lower()
        raise
    finally:
        REQUESTS.labels(result).inc()


def _as_infer_inputs(arrays: Mapping[str, Array]) -> list[triton.InferInput]:
    inputs = []
    for name, array in arrays.items():
        tensor = triton.InferInput(name, list(array.shape), INPUTS[name].datatype)
        inputs.append(tensor.set_data_from_numpy(array))
    return inputs


def _tensors(listed: Any) -> dict[str, Tensor]:
    return {tensor.name: Tensor(tensor.datatype, len(tensor.shape)) for tensor in listed}


def _channel_args(connect_timeout_s: float) -> list[tuple[str, int]]:
    """Options of the channel.

    A connection attempt is given up after `min_reconnect_backoff_ms`, whatever the name says; gRPC's default is 20 s. No
    keep-alive pings: Triton answers more than two in five minutes by closing the connection with all its calls.
    """
    connect_ms = max(int(connect_timeout_s * 1000), 100)
    return [
        ("grpc.min_reconnect_backoff_ms", connect_ms),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", -1),
    ]

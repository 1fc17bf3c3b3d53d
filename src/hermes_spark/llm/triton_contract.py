"""The tensors of the model behind Triton: what is sent, what comes back, and what its metadata must promise.

One request holds one sequence, so every tensor has a leading batch dimension of 1. The names are those that TensorRT-LLM's own
Triton models use; `model_repository/qwen35b_a3b/config.pbtxt` is the other side. Knows nothing of gRPC.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hermes_spark.errors import ModelContractError
from hermes_spark.messages import Usage
from hermes_spark.settings import ModelSettings

Array = npt.NDArray[Any]


class Tensor(NamedTuple):
    """One tensor of the contract."""

    datatype: str
    """Triton's name of it."""
    rank: int
    """Number of dimensions, the batch's included."""


INPUTS: Mapping[str, Tensor] = {
    "input_ids": Tensor("INT32", 2),
    "input_lengths": Tensor("INT32", 2),
    "request_output_len": Tensor("INT32", 2),
    "temperature": Tensor("FP32", 2),
    "top_p": Tensor("FP32", 2),
    "top_k": Tensor("INT32", 2),
    "seed": Tensor("UINT64", 2),
    "end_id": Tensor("INT32", 2),
}
"""Inputs that this package sends; the last five are optional in the model. It never sends `stop_words`: a reply ends at
`end_id`, and stop texts would cut calls whose arguments hold them."""

OUTPUTS: Mapping[str, Tensor] = {
    "output_ids": Tensor("INT32", 3),
    "sequence_length": Tensor("INT32", 2),
    "finish_reason": Tensor("BYTES", 2),
    "num_input_tokens": Tensor("INT32", 2),
    "num_output_tokens": Tensor("INT32", 2),
}

NUMPY_TYPES: Mapping[str, npt.DTypeLike] = {
    "INT32": np.int32,
    "FP32": np.float32,
    "UINT64": np.uint64,
    "BYTES": np.object_,
}


class Generation(NamedTuple):
    """What the model generated, unread."""

    ids: npt.NDArray[np.int32]
    """The first beam, shape `[tokens]`, without the prompt."""
    finish_reason: str
    """`stop` or `length`."""
    usage: Usage


def sampling_inputs(settings: ModelSettings, end_id: int) -> dict[str, Array]:
    """The inputs that are the same for every request, shape `[1, 1]` each. Seed 0 sends none."""
    values: dict[str, float] = {
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "top_k": settings.top_k,
        "end_id": end_id,
    }
    if settings.seed:
        values["seed"] = settings.seed
    return {name: _one(name, value) for name, value in values.items()}


def prompt_inputs(ids: npt.NDArray[np.int32], max_tokens: int) -> dict[str, Array]:
    """The inputs of one request: `input_ids` of shape `[1, tokens]`, the two lengths of shape `[1, 1]`."""
    return {
        "input_ids": ids.reshape(1, -1),
        "input_lengths": _one("input_lengths", ids.size),
        "request_output_len": _one("request_output_len", max_tokens),
    }


def read_outputs(get: Callable[[str], Array | None]) -> Generation:
    """Read a reply; `get` gives an output by name, or None. Raises `ModelContractError` where the contract is broken."""
    outputs = {name: _output(name, get(name)) for name in OUTPUTS}
    ids, lengths = outputs["output_ids"], outputs["sequence_length"]
    if not (ids.shape[1] and lengths.shape[1] and 0 <= lengths[0, 0] <= ids.shape[2]):
        raise ModelContractError(
            f"The model answered output_ids of shape {list(ids.shape)} with sequence_length {lengths.tolist()}; expected "
            "[1, beams, tokens] with at least one beam and no length above tokens. Serve a model that keeps the contract."
        )
    reason = outputs["finish_reason"].flat[0]
    finish_reason = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
    if finish_reason not in ("stop", "length"):
        raise ModelContractError(
            f"The model answered finish_reason {finish_reason[:40]!r}; expected 'stop' or 'length'. Serve a model that keeps "
            "the contract."
        )
    usage = Usage(int(outputs["num_input_tokens"].flat[0]), int(outputs["num_output_tokens"].flat[0]))
    return Generation(ids[0, 0, : lengths[0, 0]], finish_reason, usage)


def broken_promises(inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor], *, seed: int) -> list[str]:
    """What a model's metadata says that the contract does not allow, one clause each; empty if it keeps the contract.

    A model may have more inputs and outputs. It may lack the input `seed` unless the setting asks for one.
    """
    sent = {name: tensor for name, tensor in INPUTS.items() if name != "seed" or seed}
    found = []
    for side, expected, actual in (("input", sent, inputs), ("output", OUTPUTS, outputs)):
        for name, tensor in expected.items():
            if name not in actual:
                found.append(f"{side} {name} is missing ({tensor.datatype}, {tensor.rank} dimensions with the batch's)")
            elif actual[name] != tensor:
                is_now = actual[name]
                found.append(
                    f"{side} {name} is {is_now.datatype} with {is_now.rank} dimensions instead of {tensor.datatype} with "
                    f"{tensor.rank}, the batch's included"
                )
    return found


def _one(name: str, value: float) -> Array:
    return np.array([[value]], NUMPY_TYPES[INPUTS[name].datatype])


def _output(name: str, array: Array | None) -> Array:
    expected = OUTPUTS[name]
    if array is None:
        raise ModelContractError(f"The model's answer lacks the output {name}; serve a model that keeps the contract.")
    # Text comes back as bytes objects, or as numpy's fixed-width bytes when it travels outside the raw buffers.
    if array.dtype != NUMPY_TYPES[expected.datatype] and not (expected.datatype == "BYTES" and array.dtype.kind == "S"):
        raise ModelContractError(
            f"The model answered {name} as {array.dtype}; expected {expected.datatype}. Serve a model that keeps the contract."
        )
    if (
        array.ndim != expected.rank
        or array.shape[0] != 1
        or (array.size != 1 and name not in ("output_ids", "sequence_length"))
    ):
        raise ModelContractError(
            f"The model answered {name} of shape {list(array.shape)}; expected {expected.rank} dimensions and one sequence. "
            "Serve a model that keeps the contract."
        )
    return array

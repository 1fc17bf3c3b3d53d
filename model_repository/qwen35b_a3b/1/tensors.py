"""The model's tensors, read and written: numpy arrays on one side, the engines' values on the other.

Knows nothing of Triton, so that it can be tested without one. Shapes include Triton's batch dimension, which must be 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engines import Generation, GenerationRequest, Ids, InvalidRequest, Sampling

Array = NDArray[Any]

OPTIONAL_INPUTS = ("temperature", "top_p", "top_k", "seed", "stop_words", "end_id")
INPUTS = ("input_ids", "input_lengths", "request_output_len", *OPTIONAL_INPUTS)


def read_request(tensors: Mapping[str, Array], max_sequence_length: int) -> GenerationRequest:
    """The request that `tensors` hold, by the names of `INPUTS`. Raises `InvalidRequest`."""
    ids = _prompt(tensors)
    max_tokens = int(_scalar(tensors, "request_output_len"))
    if max_tokens < 1:
        raise InvalidRequest(f"request_output_len is {max_tokens}; it must be at least 1")
    if len(ids) + max_tokens > max_sequence_length:
        raise InvalidRequest(
            f"the prompt of {len(ids)} tokens and request_output_len {max_tokens} exceed the model's "
            f"{max_sequence_length} tokens together; shorten the prompt or ask for less"
        )
    return GenerationRequest(
        input_ids=ids,
        max_tokens=max_tokens,
        sampling=_sampling(tensors),
        stop_words=_stop_words(tensors),
        end_id=int(_scalar(tensors, "end_id")) if "end_id" in tensors else None,
    )


def write_response(generation: Generation, num_input_tokens: int) -> dict[str, Array]:
    """The output tensors of one generation, by name."""
    count = len(generation.output_ids)
    return {
        "output_ids": np.array(generation.output_ids, dtype=np.int32).reshape(1, 1, count),
        "sequence_length": np.array([[count]], dtype=np.int32),
        "finish_reason": np.array([[generation.finish_reason]], dtype=np.object_),
        "num_input_tokens": np.array([[num_input_tokens]], dtype=np.int32),
        "num_output_tokens": np.array([[count]], dtype=np.int32),
    }


def _prompt(tensors: Mapping[str, Array]) -> Ids:
    """The ids that count, copied: the tensor's memory belongs to the server."""
    ids = tensors["input_ids"]
    if ids.shape[0] != 1:
        raise InvalidRequest(
            f"the request holds {ids.shape[0]} sequences; send one per request, the server gathers them into batches"
        )
    length = int(_scalar(tensors, "input_lengths"))
    if not 1 <= length <= ids.shape[1]:
        raise InvalidRequest(
            f"input_lengths is {length}; it must be between 1 and the {ids.shape[1]} tokens that input_ids holds"
        )
    return np.array(ids[0, :length], dtype=np.int32)


def _sampling(tensors: Mapping[str, Array]) -> Sampling:
    found = {name: _scalar(tensors, name) for name in ("temperature", "top_p", "top_k", "seed") if name in tensors}
    sampling = Sampling(**found)
    if sampling.temperature is not None and not 0 <= sampling.temperature < np.inf:
        raise InvalidRequest(f"temperature is {sampling.temperature}; it must be at least 0")
    if sampling.top_p is not None and not 0 < sampling.top_p <= 1:
        raise InvalidRequest(f"top_p is {sampling.top_p}; it must be above 0 and at most 1")
    if sampling.top_k is not None and sampling.top_k < 0:
        raise InvalidRequest(f"top_k is {sampling.top_k}; it must be at least 0")
    return sampling


def _stop_words(tensors: Mapping[str, Array]) -> tuple[str, ...]:
    if "stop_words" not in tensors:
        return ()
    try:
        words = [bytes(word).decode() for word in tensors["stop_words"].flatten()]
    except UnicodeDecodeError:
        raise InvalidRequest("stop_words holds bytes that are no UTF-8 text") from None
    return tuple(word for word in words if word)


def _scalar(tensors: Mapping[str, Array], name: str) -> Any:
    """The one number of a [1, 1] tensor."""
    values = tensors[name]
    if values.size != 1:
        raise InvalidRequest(f"{name} holds {values.size} values; it must hold one")
    return values.item()

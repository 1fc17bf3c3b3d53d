"""Triton's entry point to the model: turns its requests into the engines' values and back, nothing else.

Responses are sent by response senders when each generation ends, so `execute` never waits and a slow request holds up no
other. The model is not decoupled: one response a request, and both gRPC and HTTP can ask for it.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

import engines
import tensors
from serving import Refusal, Server

ERROR_CODES = {
    Refusal.INVALID: "INVALID_ARG",
    Refusal.BUSY: "UNAVAILABLE",
    Refusal.CANCELLED: "CANCELLED",
    Refusal.FAILED: "INTERNAL",
}
"""Names of constants of `TritonError`, which the stub adds to `pb_utils` only after it has imported this module."""


class SenderAnswer:
    """Answers one request through its response sender."""

    def __init__(self, sender: Any) -> None:
        self._sender = sender
        self.num_input_tokens = 0

    def send(self, generation: engines.Generation) -> None:
        """Answer with a generation."""
        arrays = tensors.write_response(generation, self.num_input_tokens)
        self._final(pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in arrays.items()]))

    def refuse(self, refusal: Refusal, reason: str) -> None:
        """Answer with an error."""
        code = getattr(pb_utils.TritonError, ERROR_CODES[refusal])
        self._final(pb_utils.InferenceResponse(error=pb_utils.TritonError(reason, code)))

    def cancelled(self) -> bool:
        """Whether the client has given the request up."""
        return bool(self._sender.is_cancelled())

    def _final(self, response: Any) -> None:
        self._sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


class TritonPythonModel:
    """The class that Triton's python backend looks for."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the engine; an error here fails the model's load and shows in the server's log."""
        logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
        config = json.loads(args["model_config"])
        values = {name: value["string_value"] for name, value in config["parameters"].items()}
        parameters = engines.Parameters(values, Path(__file__).resolve().parent.parent)
        self._max_sequence_length = parameters.count("max_sequence_length", 32768)
        self._server = Server(engines.load(parameters), parameters.count("max_in_flight", 256))

    def execute(self, requests: list[Any]) -> None:
        """Start the generations of a batch; each answers for itself later."""
        for request in requests:
            answer = SenderAnswer(request.get_response_sender())
            inputs = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
            try:
                work = tensors.read_request(inputs, self._max_sequence_length)
            except engines.InvalidRequest as error:
                answer.refuse(Refusal.INVALID, str(error))
                continue
            answer.num_input_tokens = len(work.input_ids)
            self._server.submit(work, answer)

    def finalize(self) -> None:
        """Stop; called once, when the model is unloaded."""
        self._server.close()

"""For tests of the Triton client: the reference model at three paces, and models that break the contract."""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import servers

QWEN = servers.ROOT / "model_repository" / "qwen35b_a3b"

MODEL = '''
"""Breaks the contract in the way that its name says."""

import numpy as np
import triton_python_backend_utils as pb_utils


def outputs(name):
    tensors = {
        "output_ids": np.array([[[72, 105]]], np.int32),
        "sequence_length": np.array([[2]], np.int32),
        "finish_reason": np.array([["stop"]], np.object_),
        "num_input_tokens": np.array([[1]], np.int32),
        "num_output_tokens": np.array([[2]], np.int32),
    }
    if name == "lacks_output":
        del tensors["finish_reason"]
    if name == "wrong_type":
        tensors["output_ids"] = tensors["output_ids"].astype(np.float32)
    if name == "wrong_shape":
        tensors["sequence_length"] = np.array([[9]], np.int32)
    if name == "wrong_ids":
        tensors["output_ids"][:] = 10_000_000
    return [pb_utils.Tensor(*item) for item in tensors.items()]


class TritonPythonModel:
    def initialize(self, args):
        self.name = args["model_name"]

    def answer(self):
        if self.name == "full":
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("too much", pb_utils.TritonError.UNAVAILABLE))
        if self.name == "raises":
            raise RuntimeError("a fault")
        return pb_utils.InferenceResponse(outputs(self.name))

    def execute(self, requests):
        return [self.answer() for _ in requests]
'''
KEPT = (
    "full",
    "raises",
    "lacks_output",
    "wrong_type",
    "wrong_shape",
    "wrong_ids",
)  # promise the contract, and break it


def reference(name: str, **values: object) -> str:
    """The config of the reference model under another name and with other parameters."""
    config = (QWEN / "config.pbtxt").read_text().replace('name: "qwen35b_a3b"', f'name: "{name}"')
    for key, value in values.items():
        config, found = re.subn(rf'(key: "{key}" value: \{{ string_value: )"[^"]*"', rf'\g<1>"{value}"', config)
        assert found == 1
    return config


def write_repository(directory: Path) -> Path:
    """One repository with the reference model at three paces, and with models that break the contract in one way each."""
    configs = {
        "qwen35b_a3b": reference("qwen35b_a3b", first_token_ms=1, tokens_per_second=0),
        "narrow": reference("narrow", first_token_ms=100, tokens_per_second=0, max_in_flight=1),
        "endless": reference("endless", first_token_ms=600_000, max_in_flight=1),
    }
    for name, config in configs.items():
        (directory / name).mkdir()
        (directory / name / "config.pbtxt").write_text(config)
        for part in ("1", "tokenizer"):
            (directory / name / part).symlink_to(QWEN / part)
    broken = {name: reference(name) for name in KEPT}
    broken["promises_less"] = reference("promises_less").replace('name: "sequence_length"', 'name: "lengths"')
    broken["promises_else"] = reference("promises_else").replace(
        '{ name: "top_p" data_type: TYPE_FP32', '{ name: "top_p" data_type: TYPE_FP64'
    )
    for name, config in broken.items():
        (directory / name / "1").mkdir(parents=True)
        (directory / name / "config.pbtxt").write_text(config)
        (directory / name / "1" / "model.py").write_text(MODEL)
    return directory


@contextlib.contextmanager
def serving(repository: Path, *options: str) -> Iterator[tuple[str, int]]:
    """A Triton with these models: its gRPC address and its process group."""
    with tempfile.TemporaryDirectory() as directory:
        state = Path(directory)
        # A later --grpc-port wins.
        ports = ("--http-port=0", "--metrics-port=0", "--grpc-port=0")
        started = servers.triton(
            state, "start", f"--model-repository={repository}", *ports, *options, timeout=servers.START_TIMEOUT_S
        )
        try:
            assert started.returncode == 0, started.stderr
            facts = json.loads((state / "server.json").read_text())
            yield f"127.0.0.1:{facts['grpc_port']}", facts["pid"]
        finally:
            servers.triton(state, "stop", timeout=servers.STOP_TIMEOUT_S)

"""What an engine is: token ids in, token ids out. The rest of the model (tensors, bounds, errors) is the same for all.

An engine is a class with `generate`; `load` finds it by the name in the model's parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]
"""Token ids, one dimension."""


class InvalidRequest(ValueError):
    """The request cannot be served as it is; the text is one sentence for its sender."""


class LoadError(RuntimeError):
    """The model cannot be loaded with these parameters; the text says which and what was expected."""


@dataclass(frozen=True)
class Sampling:
    """How to choose tokens. None: the engine's own default."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None


@dataclass(frozen=True)
class GenerationRequest:
    """One sequence to continue."""

    input_ids: Ids
    max_tokens: int
    """At least 1."""
    sampling: Sampling = Sampling()
    stop_words: tuple[str, ...] = ()
    """Generation ends before the first of them."""
    end_id: int | None = None
    """The id that ends a reply; None: the tokenizer's end of turn."""


@dataclass(frozen=True)
class Generation:
    """What an engine wrote."""

    output_ids: tuple[int, ...]
    """Without the prompt and the end id; at most `max_tokens` of them."""
    finish_reason: str
    """`stop` or `length`."""


class Engine(Protocol):
    """Continues token sequences."""

    async def generate(self, request: GenerationRequest) -> Generation:
        """Continue one sequence.

        Called concurrently on one event loop, which it must not block for long. Cancelling the task gives the request up.
        Raises `InvalidRequest`.
        """
        ...


@dataclass(frozen=True)
class Parameters:
    """The parameters of `config.pbtxt`, read as what they are meant to be."""

    values: Mapping[str, str]
    model_directory: Path
    """Holds `config.pbtxt`; relative paths start here."""

    def text(self, name: str, default: str) -> str:
        """A parameter as it stands."""
        return self.values.get(name, default)

    def number(self, name: str, default: float) -> float:
        """A parameter that must be a number, 0 or above."""
        text = self.text(name, str(default))
        try:
            number = float(text)
        except ValueError:
            number = -1.0
        if not 0 <= number < float("inf"):
            raise LoadError(f"parameter {name} of config.pbtxt must be a number of at least 0, not {text!r}")
        return number

    def count(self, name: str, default: int) -> int:
        """A parameter that must be a whole number, 1 or above."""
        number = self.number(name, default)
        if number < 1 or number != int(number):
            raise LoadError(f"parameter {name} of config.pbtxt must be a whole number of at least 1, not {number:g}")
        return int(number)

    def directory(self, name: str, default: str) -> Path:
        """A parameter that must name an existing directory."""
        path = (self.model_directory / self.text(name, default)).resolve()
        if not path.is_dir():
            raise LoadError(f"parameter {name} of config.pbtxt must name a directory, and {path} is none")
        return path


def load(parameters: Parameters) -> Engine:
    """The engine that the parameters name. Raises `LoadError`."""
    name = parameters.text("engine", "reference")
    if name == "reference":
        from engines.reference import ReferenceEngine

        return ReferenceEngine.load(parameters)
    if name == "tensorrt_llm":
        raise LoadError("engine tensorrt_llm is not in this version of the model: set parameter engine to reference")
    raise LoadError(f"parameter engine of config.pbtxt must be reference or tensorrt_llm, not {name!r}")

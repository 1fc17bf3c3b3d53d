"""The engine itself: reads, plans, writes, waits."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from engines import Generation, GenerationRequest, Parameters
from engines.reference.misbehaviour import read_marks
from engines.reference.prompt import PromptReader
from engines.reference.reply import text_before, write
from engines.reference.toolbox import CallFormat
from engines.reference.vocabulary import Markup, Vocabulary


@dataclass(frozen=True)
class LatencyProfile:
    """How long a served model would take. The defaults are those of `config.pbtxt`: about 131 ms for 40 tokens."""

    first_token_ms: float = 112.0
    tokens_per_second: float = 2180.0
    """Of one sequence, however many are in flight; 0: no time per token."""

    def seconds(self, tokens: int) -> float:
        """For a reply of `tokens` tokens."""
        decoding = tokens / self.tokens_per_second if self.tokens_per_second else 0.0
        return self.first_token_ms / 1000 + decoding


class ReferenceEngine:
    """Plans by rules instead of a model; see the package's docstring. Sampling settings change nothing."""

    def __init__(self, vocabulary: Vocabulary, profile: LatencyProfile) -> None:
        self._vocabulary = vocabulary
        self._profile = profile
        self._reader = PromptReader(vocabulary)

    @classmethod
    def load(cls, parameters: Parameters) -> ReferenceEngine:
        """From the model's parameters. Raises `LoadError`."""
        return cls(
            Vocabulary.load(parameters.directory("tokenizer", "tokenizer")),
            LatencyProfile(
                parameters.number("first_token_ms", LatencyProfile.first_token_ms),
                parameters.number("tokens_per_second", LatencyProfile.tokens_per_second),
            ),
        )

    async def generate(self, request: GenerationRequest) -> Generation:
        """Continue one prompt, then wait as long as a served model would take. Raises `InvalidRequest`."""
        generation, slow_ms = self.answer(request)
        await asyncio.sleep(self._profile.seconds(len(generation.output_ids)) + slow_ms / 1000)
        return generation

    def answer(self, request: GenerationRequest) -> tuple[Generation, int]:
        """The reply to one prompt, and the extra milliseconds its message asks to wait. Raises `InvalidRequest`."""
        mischief, prompt = read_marks(self._reader.read(request.input_ids))
        call_format = prompt.toolbox.format if prompt.toolbox else CallFormat.QWEN35
        pieces = mischief.spoil(write(mischief.plan(prompt), prompt.thinking, call_format))
        if request.stop_words:
            pieces = text_before(pieces, request.stop_words)
        ids = self._vocabulary.encode(pieces)
        if request.end_id is not None and request.end_id in ids:
            ids = ids[: ids.index(request.end_id)]
        cut = mischief.cut(ids, self._id_of)
        limited = (ids if cut is None else cut)[: request.max_tokens]
        whole = cut is None and len(ids) <= request.max_tokens
        return Generation(tuple(limited), "stop" if whole else "length"), mischief.slow_ms

    def _id_of(self, markup: Markup) -> int:
        return self._vocabulary.ids[markup]

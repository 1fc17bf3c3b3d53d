"""Token ids and text, over a `tokenizer.json` with Qwen's special tokens."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path

from tokenizers import Tokenizer

from engines import Ids, LoadError


class Markup(Enum):
    """The tokens that structure prompts and replies. Text never becomes one of them, even if it looks the same."""

    TURN_OPEN = "<|im_start|>"
    TURN_CLOSE = "<|im_end|>"
    THINK_OPEN = "<think>"
    THINK_CLOSE = "</think>"
    CALL_OPEN = "<tool_call>"
    CALL_CLOSE = "</tool_call>"
    RESPONSE_OPEN = "<tool_response>"
    RESPONSE_CLOSE = "</tool_response>"


Piece = str | Markup
"""Plain text, or one structural token."""


@dataclass(frozen=True)
class Vocabulary:
    """Encodes and decodes; `ids` gives the id of every markup token."""

    tokenizer: Tokenizer
    plain: Tokenizer
    """The same without added tokens, so that no text can become markup."""
    ids: dict[Markup, int]

    @classmethod
    def load(cls, directory: Path) -> Vocabulary:
        """Load `tokenizer.json` from `directory`. Raises `LoadError`."""
        path = directory / "tokenizer.json"
        if not path.is_file():
            raise LoadError(f"{path} is missing; parameter tokenizer of config.pbtxt names the directory that holds it")
        source = path.read_text(encoding="utf-8")
        tokenizer = Tokenizer.from_str(source)
        found = {markup: tokenizer.token_to_id(markup.value) for markup in Markup}
        missing = [markup.value for markup, token_id in found.items() if token_id is None]
        if missing:
            raise LoadError(f"{path} lacks the tokens {', '.join(missing)}; the reference engine needs Qwen's")
        plain = Tokenizer.from_str(json.dumps({**json.loads(source), "added_tokens": []}))
        return cls(tokenizer, plain, {markup: token_id for markup, token_id in found.items() if token_id is not None})

    @property
    def size(self) -> int:
        """Ids are in `[0, size)`."""
        return self.tokenizer.get_vocab_size(with_added_tokens=True)

    def text(self, ids: Ids) -> str:
        """The text of some ids, markup included."""
        return self.tokenizer.decode(ids.tolist(), skip_special_tokens=False)

    def encode(self, pieces: Iterable[Piece]) -> list[int]:
        """The ids of a reply."""
        ids: list[int] = []
        for piece in pieces:
            if isinstance(piece, Markup):
                ids.append(self.ids[piece])
            else:
                ids.extend(_encode(self.plain, piece))
        return ids


@lru_cache(maxsize=4096)
def _encode(plain: Tokenizer, text: str) -> list[int]:
    """Cached: most pieces of replies are fixed phrases and names of tools and parameters."""
    return list(plain.encode(text, add_special_tokens=False).ids)

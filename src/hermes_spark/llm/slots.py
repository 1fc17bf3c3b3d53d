"""Takes the strings from outside out of a chat before a chat template sees it, so that they cannot become markup."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


class Slots:
    """Outside strings, taken out of a chat and replaced by numbered placeholders."""

    def __init__(self, is_word: Callable[[str], bool], values: Sequence[str] = ()) -> None:
        self.values = list(values)
        self._is_word = is_word

    def put(self, text: str) -> str:
        """A placeholder for `text`; empty text stays, so that templates can ask whether there is any."""
        if not text:
            return ""
        self.values.append(text)
        return f"\x1a{len(self.values) - 1}\x1a"

    def word(self, text: str) -> str:
        """As `put`, but names and schema words (`type`, `string`) stay: templates look at them, and they cannot hurt."""
        return text if self._is_word(text) else self.put(text)

    def tree(self, value: Any, leaf: Callable[[str], str]) -> Any:
        """A copy of a JSON value with `leaf` of its strings and `word` of its keys."""
        if isinstance(value, str):
            return leaf(value)
        if isinstance(value, dict):
            return {self.word(key): self.tree(item, leaf) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.tree(item, leaf) for item in value]
        return value

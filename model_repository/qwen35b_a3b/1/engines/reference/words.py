"""Cuts a text into the words that the planner compares."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from engines.reference.lexicon import CONCEPTS, IGNORED

_CONCEPT_OF = {word: concept for concept, words in CONCEPTS.items() for word in words.split("|")}


def _alternatives(words: list[str]) -> str:
    return "|".join(re.escape(word) for word in sorted(words, key=lambda word: (-len(word), word)))


_PHRASES = [word for word in _CONCEPT_OF if word.isascii() and not word.isalpha()]
_CHINESE = [word for word in (*_CONCEPT_OF, *IGNORED) if not word.isascii()]
_TOKEN = re.compile(
    rf"(?P<phrase>\b(?:{_alternatives(_PHRASES)})\b)|(?P<english>[a-z]+)|(?P<known>{_alternatives(_CHINESE)})"
    r"|(?P<chinese>[\u3400-\u9fff])"
)
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_PLURAL = re.compile(r"(?<=[a-z]{3})(?<![sui])s$")
_LATIN = re.compile(r"[A-Za-z]+")
_CJK = re.compile(r"[\u3400-\u9fff]")


@dataclass(frozen=True)
class Word:
    """A word of a text: what it means, and where it stands."""

    feature: str
    """Its concept, or itself; empty for a word that means nothing."""
    start: int
    end: int
    known: bool
    """Whether the lexicon has it; what it does not have may be a name."""


@lru_cache(maxsize=2048)
def cut(text: str) -> tuple[Word, ...]:
    """The words of `text` in order. A run of unknown Chinese characters is one word: there are no spaces to go by."""
    words: list[Word] = []
    for match in _TOKEN.finditer(_lower(text)):
        start, end = match.span()
        if match.lastgroup == "chinese":
            last = words[-1] if words else None
            if last is not None and not last.known and last.end == start and _CJK.match(text, last.start):
                words[-1] = Word(text[last.start : end], last.start, end, known=False)
            else:
                words.append(Word(match[0], start, end, known=False))
        else:
            words.append(_word(match[0], start, end))
    return tuple(words)


def features(text: str) -> frozenset[str]:
    """What `text` speaks of: concepts, unknown words, and the pairs of characters in unknown Chinese."""
    found: set[str] = set()
    for word in cut(text):
        if word.feature and not word.known and len(word.feature) > 2 and _CJK.match(word.feature):
            found.update(word.feature[i : i + 2] for i in range(len(word.feature) - 1))
        elif word.feature:
            found.add(word.feature)
    return frozenset(found)


def spaced(identifier: str) -> str:
    """`orderId` and `order_id` as words."""
    return _CAMEL.sub(" ", identifier).replace("_", " ").replace("-", " ")


def is_chinese(text: str) -> bool:
    """Whether `text` is mostly Chinese: a Chinese name alone does not make it so, nor does a foreign one the opposite."""
    return len(_CJK.findall(text)) > len(_LATIN.findall(text))


def _lower(text: str) -> str:
    """Lower case of the same length, so that places in it are places in `text`."""
    lowered = text.lower()
    if len(lowered) == len(text):
        return lowered
    return "".join(character.lower() if len(character.lower()) == 1 else character for character in text)


def _word(text: str, start: int, end: int) -> Word:
    if text in IGNORED:
        return Word("", start, end, known=True)
    singular = _PLURAL.sub("", text)
    for form in (text, singular):
        if form in _CONCEPT_OF:
            return Word(_CONCEPT_OF[form], start, end, known=True)
    return Word(singular, start, end, known=False)

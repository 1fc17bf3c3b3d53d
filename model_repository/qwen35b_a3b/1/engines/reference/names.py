"""Finds names of people, places and things in a message: 张三, Alice Smith, Oslo."""

from __future__ import annotations

import re

from engines.reference.spans import quoted
from engines.reference.words import Word, cut

_CAPITALISED = re.compile(r"[A-Z][\w.'&-]*[\w](?:[ ]+(?:of |de |van |von |and Sons\b)?[A-Z][\w.'&-]*[\w])*", re.ASCII)
_POSSESSIVE = re.compile(r"'s\b.*", re.DOTALL)
_CHINESE_NAME = re.compile(r"[\u3400-\u9fff·]{2,12}")


def find_names(text: str, about: frozenset[str], *, guess: bool) -> list[str]:
    """The names in `text`, the likeliest first.

    `about` holds the features of the parameter to fill: a name after one of its words (`客户张三`, `customer Alice`) comes
    first. With `guess` false only such names count.
    """
    words = cut(text)
    anchors = [word for word in words if word.feature in about]
    quotes = quoted(text)
    found = [*((text.index(quote), quote) for quote in quotes), *_chinese(text, words), *_capitalised(text, words)]
    after = [
        (min(gap), -len(name), name)
        for start, name in found
        if (gap := [start - anchor.end for anchor in anchors if 0 <= start - anchor.end <= 12])
    ]
    named = [name for _, _, name in sorted(after)] or _lower_case(text, words, anchors)
    if not guess:
        return named
    return list(dict.fromkeys([*named, *quotes, *(name for _, name in sorted(found))]))


def _chinese(text: str, words: tuple[Word, ...]) -> list[tuple[int, str]]:
    """Runs of Chinese characters that are no known words."""
    runs = [(word.start, text[word.start : word.end]) for word in words if not word.known]
    return [(start, run) for start, run in runs if _CHINESE_NAME.fullmatch(run)]


def _capitalised(text: str, words: tuple[Word, ...]) -> list[tuple[int, str]]:
    """Runs of capitalised words, without words that the lexicon knows at their beginning (`Find Alice`) and identifiers."""
    known = {word.start: word.end for word in words if word.known}
    found: list[tuple[int, str]] = []
    for match in _CAPITALISED.finditer(text):
        start = match.start()
        while start in known and known[start] < match.end():
            start = known[start] + 1
        name = _POSSESSIVE.sub("", text[start : match.end()])
        if name and start not in known and not any(character.isdigit() for character in name):
            found.append((start, name))
    return found


def _lower_case(text: str, words: tuple[Word, ...], anchors: list[Word]) -> list[str]:
    """An unknown lower-case word straight after one that speaks of the parameter: `customer alice`."""
    for anchor in anchors:
        for word in words:
            if word.start >= anchor.end and not word.known and text[anchor.end : word.start].strip(" :=") == "":
                spelled = text[word.start : word.end]
                if spelled.isascii():
                    return [spelled]
    return []

"""Fills the parameters of a tool from a message, by the parameters' schemas and the words around."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from engines.reference.lexicon import ACTIONS
from engines.reference.names import find_names
from engines.reference.spans import DATE, EMAIL, IDENTIFIER, NUMBER, quoted
from engines.reference.toolbox import JsonObject, Kind, Parameter, Tool
from engines.reference.words import Word, cut, features

_NEGATION = re.compile(r"(?:\b(?:no|not|without|don't|dont|never)\b|不要|不|无|没有|别)\s*\w{0,6}\s*$", re.IGNORECASE)
_PREPOSITIONS = frozenset({"about", "for", "titled", "called", "named", "on", "of", "saying", "that", "because"})
_TRIMMED = " \t\r\n.,;:!?。，；：！？、\"'“”「」"


@dataclass(frozen=True)
class Filled:
    """Arguments, and the names of the required parameters for which the message holds nothing."""

    arguments: JsonObject
    missing: tuple[str, ...]


@dataclass(frozen=True)
class _Search:
    """One parameter to fill from one text."""

    parameter: Parameter
    text: str
    naming: frozenset[str]

    @property
    def words(self) -> tuple[Word, ...]:
        return cut(self.text)

    def anchors(self) -> list[Word]:
        """The words of the text that speak of the parameter."""
        return [word for word in self.words if word.feature in self.parameter.features]


def fill(tool: Tool, text: str) -> Filled:
    """The arguments that `text` gives for `tool`."""
    return _fill(tool.parameters, text, tool.naming)


def _fill(parameters: tuple[Parameter, ...], text: str, naming: frozenset[str]) -> Filled:
    arguments: JsonObject = {}
    missing: list[str] = []
    for parameter in parameters:
        value = _FINDERS[parameter.kind](_Search(parameter, text, naming))
        if value is None and parameter.required:
            value = parameter.schema.get("default")
        if value is not None:
            arguments[parameter.name] = value
        elif parameter.required:
            missing.append(parameter.name)
    return Filled(arguments, tuple(missing))


def _choice(search: _Search) -> Any:
    """The listed value that the text names, in its own words or in another's (`urgent` is `high`)."""
    spoken = features(search.text)
    lowered = search.text.lower()
    for value in search.parameter.schema["enum"]:
        if not isinstance(value, str):
            continue
        if re.search(rf"(?<![a-z]){re.escape(value.lower())}(?![a-z])", lowered) or features(value) & spoken - ACTIONS:
            return value
    return _ordinary(search.parameter) if search.parameter.required else None


def _ordinary(parameter: Parameter) -> Any:
    """The choice that nobody needs to name, such as `normal`."""
    return next((value for value in parameter.schema["enum"] if "normal" in features(str(value))), None)


def _integer(search: _Search) -> int | None:
    number = _number(search)
    return int(number) if number is not None and number == int(number) else None


def _number(search: _Search) -> int | float | None:
    """The number next to a word that speaks of the parameter; any number at all if it is required."""
    found = [match for match in NUMBER.finditer(search.text) if not _inside_identifier(match, search.text)]
    near = [match for match in found if any(_adjacent(match, word, search.text) for word in search.anchors())]
    chosen = near or (found if search.parameter.required else [])
    if not chosen:
        return None
    text = chosen[0][0]
    return float(text) if "." in text else int(text)


def _adjacent(match: re.Match[str], word: Word, text: str) -> bool:
    between = text[word.end : match.start()] if word.end <= match.start() else text[match.end() : word.start]
    return len(between) <= 6 and not any(character in between for character in ",.;，。；")


def _inside_identifier(match: re.Match[str], text: str) -> bool:
    return any(
        found.start() <= match.start() and match.end() <= found.end() and not found[0].isdigit()
        for found in IDENTIFIER.finditer(text)
    )


def _boolean(search: _Search) -> bool | None:
    anchors = search.anchors()
    if not anchors:
        return False if search.parameter.required else None
    return not _NEGATION.search(search.text[: anchors[0].start])


def _identifier(search: _Search) -> str | None:
    """The identifier nearest to a word that speaks of the parameter, after it rather than before."""
    dates = [match.span() for match in DATE.finditer(search.text)]
    found = [match for match in IDENTIFIER.finditer(search.text) if not any(a <= match.start() < b for a, b in dates)]
    found = [match for match in found if _fits(match[0], search.parameter.schema)]
    if not found:
        return None
    anchors = search.anchors()

    def distance(match: re.Match[str]) -> int:
        ahead = [match.start() - word.end for word in anchors if word.end <= match.start()]
        behind = [1000 + word.start - match.end() for word in anchors if match.end() <= word.start]
        return min(ahead + behind, default=0)

    return min(found, key=distance)[0].lstrip("#").rstrip("-")


def _fits(identifier: str, schema: JsonObject) -> bool:
    """Whether the schema's pattern allows an identifier. A pattern that Python cannot read allows all."""
    pattern = schema.get("pattern")
    if not isinstance(pattern, str):
        return True
    try:
        return re.search(pattern, identifier.lstrip("#")) is not None
    except re.error:
        return True


def _email(search: _Search) -> str | None:
    match = EMAIL.search(search.text)
    return match[0] if match else None


def _date(search: _Search) -> str | None:
    match = DATE.search(search.text)
    return match[0] if match else None


def _name(search: _Search) -> str | None:
    names = find_names(search.text, search.parameter.features, guess=search.parameter.required)
    return names[0] if names else None


def _list(search: _Search) -> list[Any] | None:
    """The listed values that the text names; names or quoted texts if the list is required."""
    items = search.parameter.schema.get("items")
    choices = items.get("enum") if isinstance(items, dict) else None
    if choices:
        lowered = search.text.lower()
        return [value for value in choices if str(value).lower() in lowered] or None
    if not search.parameter.required:
        return None
    return quoted(search.text) or find_names(search.text, search.parameter.features, guess=True) or None


def _object(search: _Search) -> JsonObject | None:
    if not search.parameter.required:
        return None
    filled = _fill(search.parameter.fields, search.text, search.naming)
    return None if filled.missing else filled.arguments


def _text(search: _Search) -> str | None:
    """Free text: what is quoted, else what follows a colon, else the message without the words that ask for the tool."""
    if not search.parameter.required:
        return None
    quotes = quoted(search.text)
    if quotes:
        return quotes[0]
    colon = re.search(r"[:：]\s*(?=\S)", search.text)
    rest = search.text[colon.end() :] if colon else _without_request(search)
    return rest.strip(_TRIMMED) or None


def _without_request(search: _Search) -> str:
    """The text after its leading words that only name the tool or mean nothing."""
    text = search.text
    end = 0
    for word in search.words:
        spelled = text[word.start : word.end].lower()
        names_the_tool = word.feature in search.naming or word.feature in ACTIONS
        if text[end : word.start].strip(_TRIMMED) or not (
            names_the_tool or not word.feature or spelled in _PREPOSITIONS
        ):
            break
        end = word.end
    return text[end:]


_FINDERS: dict[Kind, Callable[[_Search], Any]] = {
    Kind.CHOICE: _choice,
    Kind.INTEGER: _integer,
    Kind.NUMBER: _number,
    Kind.BOOLEAN: _boolean,
    Kind.LIST: _list,
    Kind.OBJECT: _object,
    Kind.IDENTIFIER: _identifier,
    Kind.EMAIL: _email,
    Kind.DATE: _date,
    Kind.TEXT: _text,
    Kind.NAME: _name,
}

"""Tool calls as they stand in the history of a prompt, in either format. Only names and texts of arguments are read."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

_FUNCTION = re.compile(r"<function=([^>\n]*)>\n(.*)</function>", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]*)>\n(.*?)\n</parameter>\n", re.DOTALL)


@dataclass(frozen=True)
class AskedCall:
    """A call the assistant has made before. An unreadable one has no name: it still takes its place in the order."""

    name: str = ""
    arguments: tuple[tuple[str, str], ...] = ()
    """Names and texts, in the order of the call."""


def read_call(body: str) -> AskedCall:
    """The call inside one `<tool_call>` block; templates render one call a block."""
    if body.lstrip().startswith("{"):
        return _read_json(body)
    function = _FUNCTION.search(body)
    if function is None:
        return AskedCall()
    return AskedCall(function[1], tuple((name, value) for name, value in _PARAMETER.findall(function[2])))


def _read_json(body: str) -> AskedCall:
    try:
        call = json.loads(body)
    except json.JSONDecodeError:
        return AskedCall()
    if not (isinstance(call, dict) and isinstance(call.get("name"), str) and isinstance(call.get("arguments"), dict)):
        return AskedCall()
    return AskedCall(call["name"], tuple((name, str(value)) for name, value in call["arguments"].items()))

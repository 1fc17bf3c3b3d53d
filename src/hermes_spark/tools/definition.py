"""What a tool's definition may hold. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from hermes_spark.tools.arguments import quoted, schema_fault

if TYPE_CHECKING:
    from hermes_spark.tools.registry import Tool

MAX_TIMEOUT_S = 600.0
MAX_APPROVAL_S = 31_622_400.0
"""A year."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_OWN_HEADERS = frozenset({"idempotency-key", "content-type", "content-length", "transfer-encoding", "host"})


def tool_fault(tool: Tool) -> str:
    """Why `tool` cannot be used whatever other tools there are, as a sentence; empty when it can."""
    if not _NAME.fullmatch(tool.name):
        return "a name is a letter or _ and then at most 63 letters, digits, _, . or -"
    if tool.timeout_s is not None and not 0 < tool.timeout_s <= MAX_TIMEOUT_S:
        return f"timeout_s is {tool.timeout_s}; expected seconds above 0, at most {MAX_TIMEOUT_S:g}"
    if tool.approval_timeout_s is not None and not 0 < tool.approval_timeout_s <= MAX_APPROVAL_S:
        return (
            f"approval_timeout_s is {tool.approval_timeout_s}; expected seconds above 0, at most {MAX_APPROVAL_S:.0f}"
        )
    return (
        _url_fault(tool.url) or _reconcile_fault(tool) or _header_fault(tool.headers) or schema_fault(tool.parameters)
    )


def undo_fault(tool: Tool, tools: Mapping[str, Tool]) -> str:
    """Why the undo that `tool` names cannot be made with `tools`; empty when it can, or when it names none."""
    if tool.undo is None:
        return ""
    undo = tools.get(tool.undo.tool)
    if undo is None:
        return f"undo names {quoted(tool.undo.tool)}, which is no tool of this file"
    if undo.policy != "idempotent":
        return f"undo names {quoted(undo.name)}, whose policy is {undo.policy}; an undo may be sent again: make it idempotent"
    for name, pointer in tool.undo.arguments.items():
        if not re.fullmatch(r"/(arguments|result)(/[^/]+)*", pointer):
            return f"undo: argument {name} comes from {quoted(pointer)}; expected /arguments/... or /result/..."
    return ""


def _reconcile_fault(tool: Tool) -> str:
    if (tool.policy == "reconcile") != bool(tool.reconcile_url):
        return "the policy reconcile and a reconcile_url go together; give both or neither"
    return tool.reconcile_url and _url_fault(tool.reconcile_url).replace("url", "reconcile_url", 1)


def _url_fault(url: str) -> str:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port or an IPv6 address that is none
        usable = False
    if "@" in url.partition("?")[0]:
        return "url holds a user name; put credentials into headers as ${ENV_NAME}"
    if not usable or not url.isprintable() or " " in url:
        return "url is none; expected http(s)://host[:port]/path without spaces"
    return ""


def _header_fault(headers: dict[str, str]) -> str:
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or name.lower() in _OWN_HEADERS:
            return f"header {quoted(name)} cannot be set; expected an HTTP header that calls do not use themselves"
        if not _HEADER_VALUE.fullmatch(value):
            return f"header {name} holds a character that HTTP does not allow (a line break?)"
    return ""

"""What a tool's HTTP answer means to the model. Pure: status, content type and bytes in, a short text out."""

from __future__ import annotations

import functools
import json
import re
from email.message import Message as _Header
from http.client import responses
from typing import Any, Literal

import msgspec

ERROR_CHARS = 500
"""Characters of a tool's own error text that the model reads."""

_UNSENDABLE = re.compile("[\0\ud800-\udfff]")
_ESCAPED_NUL = re.compile(r"(\\\\)|\\u0000")
_ERROR_FIELDS = ("error", "message", "detail")


class Answer(msgspec.Struct, frozen=True):
    """A tool's answer as the model reads it."""

    status: Literal["ok", "error", "timeout", "unknown", "not_run"]
    content: str


def read_answer(status: int, content_type: str, body: bytes, *, cut: bool, max_chars: int) -> Answer:
    """The answer behind an HTTP response; never raises.

    2xx with JSON gives the JSON, compact, or the text itself if it is a JSON string; 2xx with plain text gives the text; all
    else gives an error. `cut` says that `body` is only the answer's beginning. `max_chars` bounds the content.
    """
    kind, charset = _content_type(content_type)
    if not 200 <= status < 300:
        return Answer("error", _http_error(status, kind, _text(body, charset)))
    if not body:
        return Answer("ok", "(done; the tool answered without content)")
    if not (kind == "text/plain" or _is_json(kind)):
        return Answer("error", f"the tool answered {_kind_text(kind)}; expected JSON or plain text")
    text = _text(body, charset)
    if _is_json(kind) and not cut:
        try:
            text = _compact(json.loads(text))
        except (ValueError, RecursionError):
            return Answer("error", "the tool answered something that calls itself JSON and is none")
    return Answer("ok", _bounded(_clean(text), max_chars, cut=cut))


@functools.lru_cache(maxsize=64)
def _content_type(header: str) -> tuple[str, str]:
    """The media type in lower case and the charset of a Content-Type header."""
    parsed = _Header()
    parsed["Content-Type"] = header
    return header.partition(";")[0].strip().lower(), parsed.get_content_charset("utf-8")


def _is_json(kind: str) -> bool:
    return kind == "application/json" or kind.endswith("+json")


def _kind_text(kind: str) -> str:
    if kind in {"text/html", "application/xhtml+xml"}:
        return "HTML (a login page or a proxy?)"
    return kind or "content of no stated type"


def _text(body: bytes, charset: str) -> str:
    try:
        return body.decode(charset, "replace")
    except LookupError:  # a charset that nobody knows
        return body.decode("utf-8", "replace")


def _compact(value: Any) -> str:
    """`value` as compact JSON with readable Chinese and without NULs; a string as it is."""
    if isinstance(value, str):
        return value
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return _ESCAPED_NUL.sub(lambda match: match[1] or "", text)


def _clean(text: str) -> str:
    """`text` without NULs, and with half surrogate pairs (JSON can hold them, UTF-8 cannot) replaced."""
    return _UNSENDABLE.sub(lambda match: "" if match[0] == "\0" else "�", text)


def _http_error(status: int, kind: str, text: str) -> str:
    reason = f" ({responses[status]})" if status in responses else ""
    if 300 <= status < 400:
        return f"the tool answered HTTP {status}{reason}, a redirect, which is not followed"
    detail = _clean(_error_detail(kind, text)).strip()
    if not detail:
        return f"the tool answered HTTP {status}{reason}"
    return f"the tool answered HTTP {status}{reason}: {_bounded(detail, ERROR_CHARS, cut=False)}"


def _error_detail(kind: str, text: str) -> str:
    """The error in a tool's own words: a JSON body's error, message or detail, or a plain text; a page tells nothing."""
    if not _is_json(kind):
        return text if kind in {"text/plain", ""} else f"it sent {_kind_text(kind)}"
    try:
        value = json.loads(text)
        for _ in range(2):  # {"error": {"message": ...}} is common
            field = next((name for name in _ERROR_FIELDS if isinstance(value, dict) and value.get(name)), None)
            value = value if field is None else value[field]
        return _compact(value)
    except (ValueError, RecursionError):
        return text


def _bounded(text: str, max_chars: int, *, cut: bool) -> str:
    """`text`, or its beginning and a note that it was cut, at most `max_chars` characters together."""
    if len(text) <= max_chars and not cut:
        return text
    note = f"\n[cut: the answer has {'more than ' if cut else ''}{len(text)} characters; only its beginning is shown]"
    return (text[: max(0, max_chars - len(note))] + note)[:max_chars]

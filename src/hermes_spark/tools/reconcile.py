"""What a tool answers when it is asked what became of a call. Pure.

The question is the call's own request (same body, same `Idempotency-Key`), sent to the tool's `reconcile_url`. The answer is
2xx with a JSON object, one of::

    {"status": "done", "result": ...}       it happened; `result` is what the call would have answered
    {"status": "failed", "error": "..."}    it was tried and changed nothing
    {"status": "not_run"}                   it was never seen, **and the tool has blocked its id for ever**
    {"status": "running"}                   ask again

"Not found" is no `not_run`: the call's request may still be on its way, and would run after somebody was told that it did not.
"""

from __future__ import annotations

import json
from typing import Any

from hermes_spark.tools.answer import Answer, read_answer

NOT_RUN = "interrupted: the service restarted before this call was made; it did not happen, and may be asked for again"


def read_reconciled(status: int, content_type: str, body: bytes, *, cut: bool, max_chars: int) -> Answer | None:
    """The result of the call in question; None when this answer settles nothing, and the tool may be asked again."""
    said = _object(body) if 200 <= status < 300 and not cut else {}
    if said.get("status") == "not_run":
        return Answer("not_run", NOT_RUN)
    if said.get("status") == "done" and "result" in said:
        return _as_if(200, said["result"], max_chars)
    if said.get("status") == "failed":
        return _as_if(500, {"error": said.get("error") or "the call failed"}, max_chars)
    return None


def _object(body: bytes) -> dict[str, Any]:
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _as_if(status: int, value: object, max_chars: int) -> Answer:
    """The answer that the call itself would have got."""
    body = json.dumps(value, ensure_ascii=True).encode()
    answer = read_answer(status, "application/json", body, cut=False, max_chars=max_chars)
    if status == 200:
        return answer
    return Answer("error", answer.content.removeprefix("the tool answered HTTP 500 (Internal Server Error): "))

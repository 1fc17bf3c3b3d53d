"""What a tool's answer to "what became of this call?" means."""

from __future__ import annotations

import json

import pytest

from hermes_spark.tools.reconcile import NOT_RUN, read_reconciled


@pytest.mark.parametrize(
    ("status", "said", "expected"),
    [
        (200, {"status": "done", "result": {"a": "张"}}, ("ok", '{"a":"张"}')),
        (200, {"status": "done", "result": "text"}, ("ok", "text")),
        (200, {"status": "done", "result": None}, ("ok", "null")),
        (200, {"status": "failed", "error": "no stock"}, ("error", "no stock")),
        (200, {"status": "failed"}, ("error", "the call failed")),
        (200, {"status": "not_run"}, ("not_run", NOT_RUN)),
        (200, {"status": "running"}, None),
        (200, {"status": "done"}, None),
        (200, {"status": "not_found"}, None),
        (404, {"status": "not_run"}, None),
        (200, ["not_run"], None),
    ],
)
def test_only_a_plain_statement_settles_a_call(status, said, expected):
    body = json.dumps(said).encode()
    answer = read_reconciled(status, "application/json", body, cut=False, max_chars=100)
    assert (answer and (answer.status, answer.content)) == expected


def test_what_is_no_json_settles_nothing():
    for body in (b"", b"<html>", b"[" * 100_000):
        assert read_reconciled(200, "application/json", body, cut=False, max_chars=100) is None


def test_a_long_result_is_cut_as_that_of_a_call():
    body = json.dumps({"status": "done", "result": "x" * 1000}).encode()
    answer = read_reconciled(200, "application/json", body, cut=False, max_chars=200)
    assert answer is not None
    assert len(answer.content) == 200

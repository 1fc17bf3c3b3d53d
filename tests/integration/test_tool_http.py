"""Calls over real HTTP: what is sent, what each kind of answer becomes, and what is never done twice."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import msgspec
import pytest
import pytest_asyncio
from aiohttp import web

from hermes_spark.settings import ToolSettings
from hermes_spark.tools.answer import read_answer
from hermes_spark.tools.http import CONNECT_ATTEMPTS, HttpToolCaller
from hermes_spark.tools.registry import Tool, ToolRequest, ToolResult

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
SETTINGS = ToolSettings(timeout_s=10.0, max_result_chars=200)
REQUEST = ToolRequest("c1", "s1", "t1", {"名": "张三", "n": 2**63})


class Service:
    """A server whose one answer a test sets; keeps what it was sent."""

    def __init__(self) -> None:
        self.answer: Answer = lambda _: _done(web.json_response({}))
        self.seen: list[tuple[dict[str, str], Any]] = []
        self.port = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.seen.append((dict(request.headers), json.loads(await request.read() or b"null")))
        return await self.answer(request)

    def tool(self, **fields: Any) -> Tool:
        url = f"http://127.0.0.1:{self.port}/x?key=s3cret"
        return Tool(**{"name": "t", "description": "", "parameters": {"type": "object"}, "url": url, **fields})


async def _done(response: web.StreamResponse) -> web.StreamResponse:
    return response


@pytest_asyncio.fixture
async def service() -> AsyncIterator[Service]:
    made = Service()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", made.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.port = runner.addresses[0][1]
    yield made
    await runner.cleanup()


@pytest_asyncio.fixture
async def caller() -> AsyncIterator[HttpToolCaller]:
    made = HttpToolCaller(SETTINGS)
    yield made
    await made.close()


async def test_the_request_carries_ids_arguments_and_headers(service: Service, caller: HttpToolCaller) -> None:
    tool = service.tool(headers={"Authorization": "Bearer b"})
    assert await caller.call(tool, REQUEST) == ToolResult("ok", "{}", 1)
    headers, body = service.seen[0]
    assert body == {"call_id": "c1", "session_id": "s1", "turn_id": "t1", "arguments": {"名": "张三", "n": 2**63}}
    assert headers["Idempotency-Key"] == "c1"
    assert headers["Authorization"] == "Bearer b"
    assert headers["Content-Type"] == "application/json"


JSON, TEXT, HTML = "application/json", "text/plain; charset=utf-8", "text/html"


@pytest.mark.parametrize(
    ("status", "kind", "body", "expected"),
    [
        (
            200,
            JSON,
            b'{"a": [1, 12345678901234567890123, "\\u5f20"]}',
            ("ok", '{"a":[1,12345678901234567890123,"张"]}'),
        ),
        (201, "application/vnd.x+json", b'"just text"', ("ok", "just text")),
        (200, TEXT, "好".encode(), ("ok", "好")),
        (200, "text/plain; charset=gbk", "好".encode("gbk"), ("ok", "好")),
        (200, "text/plain; charset=nonsense", b"x", ("ok", "x")),
        (204, "", b"", ("ok", "(done; the tool answered without content)")),
        (200, JSON, b'{"a":"x\\u0000y\\\\u0000","b":"\\ud83d"}', ("ok", '{"a":"xy\\\\u0000","b":"�"}')),
        (200, TEXT, b"a\0b", ("ok", "ab")),
        (
            200,
            HTML,
            b"<html>",
            ("error", "the tool answered HTML (a login page or a proxy?); expected JSON or plain text"),
        ),
        (200, "image/png", b"x", ("error", "the tool answered image/png; expected JSON or plain text")),
        (200, JSON, b"<html>", ("error", "the tool answered something that calls itself JSON and is none")),
        (200, JSON, b"[" * 100_000, ("error", "the tool answered something that calls itself JSON and is none")),
        (404, JSON, b'{"error": "no such order"}', ("error", "the tool answered HTTP 404 (Not Found): no such order")),
        (400, JSON, b'{"error": {"message": "m"}}', ("error", "the tool answered HTTP 400 (Bad Request): m")),
        (409, JSON, b'{"detail": [1]}', ("error", "the tool answered HTTP 409 (Conflict): [1]")),
        (500, TEXT, b"boom", ("error", "the tool answered HTTP 500 (Internal Server Error): boom")),
        (
            502,
            HTML,
            b"<html>x",
            ("error", "the tool answered HTTP 502 (Bad Gateway): it sent HTML (a login page or a proxy?)"),
        ),
        (599, JSON, b"", ("error", "the tool answered HTTP 599")),
    ],
)
async def test_answers(
    service: Service, caller: HttpToolCaller, status: int, kind: str, body: bytes, expected: tuple[str, str]
) -> None:
    headers = {"Content-Type": kind} if kind else {}
    service.answer = lambda _: _done(web.Response(status=status, body=body, headers=headers))
    result = await caller.call(service.tool(), REQUEST)
    assert result.content == expected[1]
    assert (result.status, result.attempts, len(service.seen)) == (expected[0], 1, 1)


async def test_long_answers_are_cut_and_say_so(service: Service, caller: HttpToolCaller) -> None:
    service.answer = lambda _: _done(web.json_response("x" * 300))
    cut = (await caller.call(service.tool(), REQUEST)).content
    assert len(cut) == 200
    assert cut.endswith("x\n[cut: the answer has 300 characters; only its beginning is shown]")

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        while request.transport is not None and not request.transport.is_closing():
            await response.write(b"y" * 65_536)
        return response

    service.answer = endless
    result = await caller.call(service.tool(), REQUEST)
    assert result.status == "ok"
    assert "more than 1048576 characters" in result.content
    assert len(result.content) == 200


async def test_redirects_are_not_followed(service: Service, caller: HttpToolCaller) -> None:
    service.answer = lambda _: _done(web.Response(status=307, headers={"Location": "/elsewhere"}))
    result = await caller.call(service.tool(headers={"Authorization": "b"}), REQUEST)
    assert result.status == "error"
    assert "a redirect, which is not followed" in result.content
    assert len(service.seen) == 1


async def test_no_answer_in_time_may_have_happened_and_is_not_asked_again(
    service: Service, caller: HttpToolCaller
) -> None:
    release = asyncio.Event()

    async def hang(_: web.Request) -> web.Response:
        await release.wait()
        return web.Response()

    service.answer = hang
    result = await caller.call(service.tool(timeout_s=0.3), REQUEST)
    release.set()
    assert result == ToolResult("timeout", "no answer within 0.3 s; it may or may not have happened", 1)
    assert len(service.seen) == 1


async def test_a_connection_that_breaks_after_sending_is_not_asked_again(
    service: Service, caller: HttpToolCaller
) -> None:
    async def drop(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    service.answer = drop
    for _ in range(2):
        result = await caller.call(service.tool(), REQUEST)
        assert (result.status, result.attempts) == ("unknown", 1)
        assert result.content.endswith("it may or may not have happened")
    assert len(service.seen) == 2


async def test_a_refused_connection_is_tried_again_and_was_not_made(service: Service, caller: HttpToolCaller) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/x?key=s3cret"
        result = await caller.call(service.tool(url=url), REQUEST)
    assert result == ToolResult(
        "error", "the tool could not be reached; the call was not made (connection refused)", CONNECT_ATTEMPTS, False
    )


async def test_a_service_that_comes_up_between_attempts_is_reached(service: Service, caller: HttpToolCaller) -> None:
    connector: Any = caller._opened().connector
    create, refusals = connector._create_connection, []

    async def refuse_once(*args: Any) -> Any:
        if not refusals:
            refusals.append(1)
            raise aiohttp.ClientConnectorError(args[0].connection_key, ConnectionRefusedError(111, "refused"))
        return await create(*args)

    connector._create_connection = refuse_once
    assert await caller.call(service.tool(), REQUEST) == ToolResult("ok", "{}", 2)
    assert len(service.seen) == 1


async def test_calls_in_flight_are_bounded_and_waiting_ones_are_not_made(service: Service) -> None:
    caller = HttpToolCaller(msgspec.structs.replace(SETTINGS, max_in_flight=2))
    release, arrived = asyncio.Event(), asyncio.Semaphore(0)

    async def hang(_: web.Request) -> web.Response:
        arrived.release()
        await release.wait()
        return web.json_response("late")

    service.answer = hang
    held = [asyncio.ensure_future(caller.call(service.tool(), REQUEST)) for _ in range(2)]
    for _ in held:
        await asyncio.wait_for(arrived.acquire(), 10)
    waiting = await caller.call(service.tool(timeout_s=0.2), REQUEST)
    assert waiting.status == "error"
    assert waiting.content.endswith("the call was not made")
    assert len(service.seen) == 2
    release.set()
    assert [result.content for result in await asyncio.gather(*held)] == ["late", "late"]
    await caller.close()


async def test_secrets_of_the_url_never_reach_the_model(service: Service, caller: HttpToolCaller) -> None:
    broken = [service.tool(url=url) for url in ("http://127.0.0.1:1/?key=s3cret", "http://nowhere.invalid/?key=s3cret")]
    for tool in broken:
        result = await caller.call(tool, REQUEST)
        assert result.status == "error"
        assert "s3cret" not in result.content


def test_a_cut_in_the_middle_of_json_is_still_shown() -> None:
    answer = read_answer(200, "application/json", b'{"a": "abc', cut=True, max_chars=500)
    assert answer.status == "ok"
    assert answer.content.startswith('{"a": "abc\n[cut: ')


async def test_a_call_is_reconciled_at_its_own_place_and_asked_about_until_the_tool_knows(
    service: Service, caller: HttpToolCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hermes_spark.tools.http.RECONCILE_PAUSE_S", 0.01)
    answers = iter([web.Response(status=503), web.json_response({"status": "running"})])
    done = web.json_response({"status": "done", "result": {"id": 7}})
    service.answer = lambda _: _done(next(answers, done))
    place = f"http://127.0.0.1:{service.port}/became"
    tool = service.tool(policy="reconcile", reconcile_url=place, headers={"Authorization": "Bearer b"})
    assert await caller.reconcile(tool, REQUEST) == ToolResult("ok", '{"id":7}', 1)
    assert len(service.seen) == 3
    assert {headers["Idempotency-Key"] for headers, _ in service.seen} == {"c1"}
    assert service.seen[0][0]["Authorization"] == "Bearer b"


async def test_a_tool_that_never_says_what_became_of_a_call_leaves_it_unknown(
    service: Service, caller: HttpToolCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hermes_spark.tools.http.RECONCILE_PAUSE_S", 0.05)
    service.answer = lambda _: _done(web.json_response({"status": "running"}))
    place = f"http://127.0.0.1:{service.port}/became"
    tool = service.tool(policy="reconcile", reconcile_url=place, timeout_s=0.2)
    assert (await caller.reconcile(tool, REQUEST)).status == "unknown"
    assert 1 < len(service.seen) < 10

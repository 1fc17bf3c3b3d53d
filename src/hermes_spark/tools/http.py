"""Tool calls over HTTP: one POST per call, sent at most once, bounded in time, size and number; and asking about them later.

The request is `POST <tool.url>` with `{"call_id", "session_id", "turn_id", "arguments"}` and the header
`Idempotency-Key: <call_id>`. A tool answers 2xx with JSON or plain text; anything else is told to the model as an error.
"""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any, Protocol, TypeVar

import aiohttp
import msgspec
import stamina

from hermes_spark.settings import ToolSettings
from hermes_spark.tools.answer import Answer, read_answer
from hermes_spark.tools.reconcile import read_reconciled
from hermes_spark.tools.registry import Tool, ToolRequest, ToolResult

CONNECT_TIMEOUT_S = 5.0
CONNECT_ATTEMPTS = 3
"""How often a connection that cannot be opened is tried; nothing has been sent then."""
MAX_BODY_BYTES = 1_048_576
"""Bytes of an answer that are read; the rest is dropped with the connection."""
KEEPALIVE_S = 4.0
"""Idle connections are dropped before common servers do it (uvicorn after 5 s): a request sent into a closing connection
fails without anybody knowing whether it arrived."""

RECONCILE_PAUSE_S = 0.5
"""Between two questions about the same call."""
NOT_RECONCILED = (
    "interrupted: the service restarted while this call was under way, and the tool did not say what became of it"
)

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

logger = logging.getLogger(__name__)


class _NotSent(Exception):
    """The connection could not be opened, so the request is certain not to have been sent."""


class _Progress(msgspec.Struct):
    """How far one call has come."""

    attempts: int = 0
    sent: bool = False
    """From here on the call may have happened."""


class Reader(Protocol[T_co]):
    """Reads an HTTP answer, as `read_answer` does."""

    def __call__(self, status: int, content_type: str, body: bytes, *, cut: bool, max_chars: int) -> T_co:
        """What the answer means."""
        ...


class HttpToolCaller:
    """A `ToolCaller` over one aiohttp session with keep-alive.

    At most `settings.max_in_flight` calls are on the wire; further ones wait, within their own time limit. Redirects are not
    followed (a tool's headers are meant for its own host), cookies are not kept, proxies of the environment are not used.
    """

    def __init__(self, settings: ToolSettings) -> None:
        self._settings = settings
        self._session: aiohttp.ClientSession | None = None

    async def call(self, tool: Tool, request: ToolRequest) -> ToolResult:
        """See `ToolCaller.call`. The time limit covers waiting for a free connection, connecting and the whole answer."""
        limit_s = tool.timeout_s or self._settings.timeout_s
        progress = _Progress()
        try:
            answer = await self._with_retries(tool, request, limit_s, progress)
        except _NotSent as exc:
            answer = Answer("error", f"the tool could not be reached; the call was not made ({exc})")
        except asyncio.TimeoutError:
            answer = _timed_out(limit_s, progress)
        except aiohttp.ClientError as exc:
            logger.warning("call %s of %s failed: %s", request.call_id, tool.name, type(exc).__name__)
            answer = _broken(progress)
        return ToolResult(answer.status, answer.content, progress.attempts, progress.sent)

    async def reconcile(self, tool: Tool, request: ToolRequest) -> ToolResult:
        """See `ToolCaller.reconcile`. Asks again until the tool knows or the time limit of a call has passed."""
        asked = msgspec.structs.replace(tool, url=tool.reconcile_url)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (tool.timeout_s or self._settings.timeout_s)
        while True:
            answer: Answer | None = None
            try:
                answer = await self._post(asked, request, deadline, _Progress(), read_reconciled)
            except (_NotSent, asyncio.TimeoutError, aiohttp.ClientError) as exc:
                logger.warning("call %s of %s not reconciled: %s", request.call_id, tool.name, type(exc).__name__)
            if answer is not None:
                return ToolResult(answer.status, answer.content, 1)
            if loop.time() + RECONCILE_PAUSE_S >= deadline:
                return ToolResult("unknown", NOT_RECONCILED, 1)
            await asyncio.sleep(RECONCILE_PAUSE_S)

    async def close(self) -> None:
        """Close all connections; calls under way end as errors."""
        if self._session is not None:
            await self._session.close()

    async def _with_retries(self, tool: Tool, request: ToolRequest, limit_s: float, progress: _Progress) -> Answer:
        deadline = asyncio.get_running_loop().time() + limit_s
        try:
            return await self._post(tool, request, deadline, progress, read_answer)
        except _NotSent:
            pass  # only now: setting up retries costs a fifth of a whole call
        async for attempt in stamina.retry_context(
            on=_NotSent, attempts=CONNECT_ATTEMPTS - 1, timeout=limit_s, wait_initial=0.1, wait_max=0.5, wait_jitter=0.1
        ):
            with attempt:
                return await self._post(tool, request, deadline, progress, read_answer)
        raise AssertionError("stamina returns or raises")  # for the type checker

    async def _post(self, tool: Tool, request: ToolRequest, deadline: float, progress: _Progress, read: Reader[T]) -> T:
        """One attempt, its answer read by `read`. Raises `_NotSent`, `asyncio.TimeoutError`, `aiohttp.ClientError`."""
        progress.attempts += 1
        left_s = deadline - asyncio.get_running_loop().time()
        if left_s <= 0:  # to aiohttp, 0 would mean no limit
            raise asyncio.TimeoutError
        try:
            async with self._opened().post(
                tool.url,
                data=msgspec.json.encode(request),
                headers={**tool.headers, "Idempotency-Key": request.call_id, "Content-Type": "application/json"},
                timeout=aiohttp.ClientTimeout(total=left_s, sock_connect=CONNECT_TIMEOUT_S),
                allow_redirects=False,
                trace_request_ctx=progress,
            ) as response:
                body = await _read(response.content)
                return read(
                    response.status,
                    response.headers.get("Content-Type", ""),
                    body,
                    cut=len(body) == MAX_BODY_BYTES,
                    max_chars=self._settings.max_result_chars,
                )
        except aiohttp.ClientConnectorError as exc:
            logger.warning("call %s of %s not sent: %s", request.call_id, tool.name, type(exc).__name__)
            raise _NotSent(_why_unreachable(exc)) from None

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            trace = aiohttp.TraceConfig()
            trace.on_request_headers_sent.append(_mark_sent)
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._settings.max_in_flight, keepalive_timeout=KEEPALIVE_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"Accept": "application/json, text/plain", "User-Agent": "hermes-spark"},
                trace_configs=[trace],
            )
        return self._session


async def _mark_sent(_session: aiohttp.ClientSession, context: SimpleNamespace, _params: Any) -> None:
    """Runs just before a request's first byte leaves."""
    context.trace_request_ctx.sent = True


async def _read(content: aiohttp.StreamReader) -> bytes:
    """The body, at most `MAX_BODY_BYTES` of it."""
    body = bytearray()
    async for chunk in content.iter_chunked(65_536):
        body += chunk
        if len(body) >= MAX_BODY_BYTES:
            break
    return bytes(body[:MAX_BODY_BYTES])


def _timed_out(limit_s: float, progress: _Progress) -> Answer:
    if progress.sent:
        return Answer("timeout", f"no answer within {limit_s:g} s; it may or may not have happened")
    return Answer("error", "no connection to the tool came about in time; the call was not made")


def _broken(progress: _Progress) -> Answer:
    if progress.sent:
        return Answer("unknown", "the connection broke before the answer was complete; it may or may not have happened")
    return Answer("error", "the connection to the tool broke; the call was not made")


def _why_unreachable(exc: aiohttp.ClientConnectorError) -> str:
    """A few words without any address: what the model reads may be shown to anybody."""
    if isinstance(exc, aiohttp.ClientSSLError):
        return "TLS failed"
    if isinstance(exc, aiohttp.ClientConnectorDNSError):
        return "its host name is not known"
    return "connection refused" if isinstance(exc.os_error, ConnectionRefusedError) else "no connection"

"""The demo's tool service: the shop's tools over HTTP, and hooks that make it hang, fail or answer nonsense.

::

    POST /tools/<name>   {"call_id", "session_id", "turn_id", "arguments"}  ->  JSON
    POST /reconcile      the same body  ->  what became of that call: see `tools.reconcile`
    GET  /counters       {"executions": {call_id: n}, "by_tool": {...}, "total": n, "started": n, "hanging": n}
    POST /control        {"hang": ["session ids"]}   calls of those sessions hang until they are released
                         {"release": true}           they go on, and nothing hangs any more
                         {"mode": "ok" | "html" | "error" | "slow"}    how every call is answered from now on

A call counts as started when it arrives and as executed when its effect is committed, before the answer is sent. Call ids are
not remembered: asked again, a call executes again, so that repeats show. Only `create_ticket` honours the `Idempotency-Key`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Mapping
from typing import Literal

import msgspec
from aiohttp import web

from hermes_spark.messages import JsonObject
from hermes_spark.tools.demo.shop import Shop, ToolRefused
from hermes_spark.tools.registry import ToolRequest

MAX_HANG_S = 600.0
"""A hanging call that nobody releases goes on after so long."""


class Delays(msgspec.Struct, frozen=True):
    """How long the tools take, in milliseconds."""

    default_ms: int = 30
    by_tool_ms: Mapping[str, int] = {}
    jitter_ms: int = 0
    """A call takes up to so much longer; how much follows from its id, so that runs can be compared."""
    slow_ms: int = 20_000
    """In mode `slow`, in place of the others."""

    def of(self, tool: str, call_id: str) -> float:
        """Seconds that this call takes."""
        jitter = int.from_bytes(hashlib.blake2b(call_id.encode(), digest_size=4).digest(), "big") % (self.jitter_ms + 1)
        return (self.by_tool_ms.get(tool, self.default_ms) + jitter) / 1000


class _Control(msgspec.Struct, forbid_unknown_fields=True):
    hang: list[str] | None = None
    release: Literal[True] | None = None
    mode: Literal["ok", "html", "error", "slow"] | None = None


class ToolService:
    """The aiohttp application over one shop. Not shared between event loops."""

    def __init__(self, shop: Shop, delays: Delays) -> None:
        self._shop = shop
        self._delays = delays
        self._mode = "ok"
        self._hung_sessions: set[str] = set()
        self._released = asyncio.Event()
        self._hanging = 0

    def application(self) -> web.Application:
        """The routes."""
        app = web.Application()
        app.router.add_post("/tools/{name}", self._call)
        app.router.add_post("/reconcile", self._reconcile)
        app.router.add_get("/counters", self._counters)
        app.router.add_post("/control", self._control)
        return app

    async def _call(self, request: web.Request) -> web.Response:
        tool = request.match_info["name"]
        if tool not in self._shop.tools:
            return _json({"error": f"there is no tool {tool!r}"}, 404)
        try:
            call = msgspec.json.decode(await request.read(), type=ToolRequest)
        except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
            return _json({"error": f"not a call: {exc}"}, 400)
        self._shop.start(call.call_id, tool)
        if call.session_id in self._hung_sessions:
            await self._hang()
        await asyncio.sleep(
            self._delays.slow_ms / 1000 if self._mode == "slow" else self._delays.of(tool, call.call_id)
        )
        if self._mode == "html":
            return web.Response(text="<html><body><h1>Sign in</h1></body></html>", content_type="text/html")
        if self._mode == "error":
            return _json({"error": "the shop's database is down"}, 500)
        try:
            return _json(self._shop.execute(call.call_id, tool, call.arguments))
        except ToolRefused as refused:
            return _json({"error": refused.reason}, refused.status)

    async def _reconcile(self, request: web.Request) -> web.Response:
        try:
            call = msgspec.json.decode(await request.read(), type=ToolRequest)
        except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
            return _json({"error": f"not a call: {exc}"}, 400)
        return _json(self._shop.reconcile(call.call_id))

    async def _hang(self) -> None:
        self._hanging += 1
        try:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._released.wait(), MAX_HANG_S)
        finally:
            self._hanging -= 1

    async def _counters(self, _request: web.Request) -> web.Response:
        return _json({**self._shop.counters(), "hanging": self._hanging})

    async def _control(self, request: web.Request) -> web.Response:
        try:
            control = msgspec.json.decode(await request.read(), type=_Control)
        except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
            return _json({"error": f"not a control: {exc}"}, 400)
        if control.hang is not None:
            self._hung_sessions |= set(control.hang)
        if control.release:
            self._hung_sessions.clear()
            self._released.set()
            self._released = asyncio.Event()
        if control.mode is not None:
            self._mode = control.mode
        return _json({"hang": sorted(self._hung_sessions), "mode": self._mode, "hanging": self._hanging})


def _json(value: JsonObject, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")

"""The demo's tool service as a process of its own: its tools, its counters, its hooks, its death."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import ClientSession

from hermes_spark.settings import ToolSettings
from hermes_spark.tools.demo.service import Delays
from hermes_spark.tools.demo.shop import Shop, ToolRefused
from hermes_spark.tools.http import HttpToolCaller
from hermes_spark.tools.registry import Registry, ToolRequest, ToolResult

ROOT = Path(__file__).parents[2]
START_S = 30.0


class Running:
    """One service process on one SQLite file; can be killed and started again."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    def start(self, *options: str) -> None:
        port_file = self._directory / "port"
        port_file.unlink(missing_ok=True)
        command = [sys.executable, "-m", "hermes_spark.tools.demo", "--port", "0", "--delay-ms", "1"]
        files = ["--db", str(self._directory / "shop.sqlite"), "--port-file", str(port_file)]
        self._process = subprocess.Popen([*command, *files, *options], stdout=subprocess.PIPE, text=True)
        deadline = time.monotonic() + START_S
        while not port_file.exists():
            assert self._process.poll() is None, "the service died at its start"
            assert time.monotonic() < deadline, "the service did not start"
            time.sleep(0.02)
        self.url = f"http://127.0.0.1:{int(port_file.read_text())}"

    def end(self, number: signal.Signals) -> tuple[int, str]:
        assert self._process is not None
        self._process.send_signal(number)
        output, _ = self._process.communicate(timeout=START_S)
        return self._process.returncode, output


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Running]:
    running = Running(tmp_path)
    running.start()
    yield running
    running.end(signal.SIGKILL)


@pytest_asyncio.fixture
async def client() -> Any:
    async with ClientSession() as session:
        yield session


async def ask(service: Running, tool: str, call_id: str, session_id: str = "s", **arguments: Any) -> ToolResult:
    """The call as the runtime makes it: the shipped tool file, the real caller."""
    file = "tools-approvals.yaml" if tool == "refund_order" else "tools.yaml"
    settings = ToolSettings(file=str(ROOT / "conf" / file), base_url=service.url)
    registry = Registry.load(settings)
    assert registry.check(tool, arguments, None) == ""
    found = registry.get(tool)
    assert found is not None
    caller = HttpToolCaller(settings)
    result = await caller.call(found, ToolRequest(call_id, session_id, "t", arguments))
    await caller.close()
    return result


async def counters(client: ClientSession, service: Running) -> Any:
    async with client.get(f"{service.url}/counters") as response:
        return await response.json()


async def control(client: ClientSession, service: Running, **body: Any) -> int:
    async with client.post(f"{service.url}/control", json=body) as response:
        return response.status


async def test_the_five_tools(service: Running, client: ClientSession) -> None:
    crm = json.loads((await ask(service, "crm_query", "c1", customer="张三")).content)
    assert crm["orders"][0] == {"id": "A-1001", "status": "shipped", "item": "keyboard"}
    few = await ask(service, "crm_query", "c2", customer="alice johnson", fields=["city"])
    assert json.loads(few.content) == {"customer": "Alice Johnson", "city": "Boston"}
    order = json.loads((await ask(service, "order_status", "c3", order_id="A-1003")).content)
    assert order == {"order_id": "A-1003", "status": "delivered", "item": "desk lamp", "customer": "Alice Johnson"}
    found = json.loads((await ask(service, "kb_search", "c4", query="退货", top_k=1)).content)
    assert [article["title"] for article in found["articles"]] == ["退货政策"]
    ticket = json.loads((await ask(service, "create_ticket", "c5", title="坏了", priority="high")).content)
    cancelled = await ask(service, "cancel_ticket", "c6", ticket_id=ticket["ticket_id"])
    assert json.loads(cancelled.content) == {"ticket_id": ticket["ticket_id"], "status": "cancelled"}
    missing = await ask(service, "order_status", "c7", order_id="A-9")
    assert (missing.status, missing.content) == (
        "error",
        "the tool answered HTTP 404 (Not Found): there is no order 'A-9'",
    )
    counted = await counters(client, service)
    assert counted["executions"] == {f"c{n}": 1 for n in range(1, 8)}
    assert counted["by_tool"] == {
        "crm_query": 2, "order_status": 2, "kb_search": 1, "create_ticket": 1, "cancel_ticket": 1, "refund_order": 0
    }  # fmt: skip
    assert (counted["total"], counted["started"], counted["hanging"]) == (7, 7, 0)


async def test_a_ticket_is_created_once_per_key(service: Running, client: ClientSession) -> None:
    first = await ask(service, "create_ticket", "c", title="a", priority="low")
    service.end(signal.SIGKILL)
    service.start()
    assert await ask(service, "create_ticket", "c", title="a", priority="low") == first
    counted = await counters(client, service)
    assert (counted["executions"], counted["started"]) == ({"c": 1}, 2)


async def became(service: Running, call_id: str) -> ToolResult:
    settings = ToolSettings(file=str(ROOT / "conf" / "tools-approvals.yaml"), base_url=service.url)
    tool = Registry.load(settings).get("refund_order")
    assert tool is not None
    caller = HttpToolCaller(settings)
    result = await caller.reconcile(tool, ToolRequest(call_id, "s", "t", {}))
    await caller.close()
    return result


async def test_a_refund_says_what_became_of_it_and_what_did_not_happen_never_will(service: Running) -> None:
    done = await ask(service, "refund_order", "r1", order_id="A-1003")
    assert json.loads(done.content) == {"refund_id": "R-1", "order_id": "A-1003"}
    assert (await became(service, "r1")).content == done.content
    assert (await became(service, "r2")).status == "not_run"
    late = await ask(service, "refund_order", "r2", order_id="A-1003")
    assert (late.status, "never will" in late.content) == ("error", True)
    assert (await became(service, "r2")).status == "not_run"
    await ask(service, "refund_order", "r3", order_id="A-9")
    assert (await became(service, "r3")).status == "error"


async def test_a_repeat_shows_and_counters_survive_sigkill(service: Running, client: ClientSession) -> None:
    await ask(service, "order_status", "same", order_id="A-1003")
    await ask(service, "order_status", "same", order_id="A-1003")
    await ask(service, "crm_query", "other", customer="李四")
    service.end(signal.SIGKILL)
    service.start()
    counted = await counters(client, service)
    assert counted["executions"] == {"same": 2, "other": 1}
    assert (counted["total"], counted["started"]) == (3, 3)
    third = json.loads((await ask(service, "create_ticket", "third", title="b", priority="low")).content)
    assert third["ticket_id"] == "T-105"


async def test_hanging_sessions_are_started_and_not_executed_until_released(
    service: Running, client: ClientSession
) -> None:
    assert await control(client, service, hang=["stuck"]) == 200
    held = asyncio.ensure_future(ask(service, "crm_query", "h1", "stuck", customer="王芳"))
    deadline = time.monotonic() + START_S
    while (await counters(client, service))["hanging"] == 0:
        assert time.monotonic() < deadline
    assert (await ask(service, "crm_query", "free", "other", customer="王芳")).status == "ok"
    counted = await counters(client, service)
    assert counted["executions"] == {"free": 1}
    assert (counted["started"], counted["hanging"]) == (2, 1)
    assert not held.done()
    assert await control(client, service, release=True) == 200
    assert (await held).status == "ok"
    assert (await ask(service, "crm_query", "h2", "stuck", customer="王芳")).status == "ok"
    assert (await counters(client, service))["executions"] == {"free": 1, "h1": 1, "h2": 1}


async def test_modes_answer_badly_without_executing(service: Running, client: ClientSession) -> None:
    await control(client, service, mode="html")
    assert "HTML" in (await ask(service, "crm_query", "m1", customer="王芳")).content
    await control(client, service, mode="error")
    result = await ask(service, "crm_query", "m2", customer="王芳")
    assert (result.status, result.content.endswith("the shop's database is down")) == ("error", True)
    await control(client, service, mode="ok")
    assert (await ask(service, "crm_query", "m3", customer="王芳")).status == "ok"
    counted = await counters(client, service)
    assert (counted["executions"], counted["started"]) == ({"m3": 1}, 3)


async def test_bad_requests_are_answered(service: Running, client: ClientSession) -> None:
    assert await control(client, service, mode="party") == 400
    assert await control(client, service, release=False) == 400
    call = {"call_id": "c", "session_id": "s", "turn_id": "t", "arguments": {}}
    for path, body, status in (("nothing", call, 404), ("crm_query", {"x": 1}, 400), ("crm_query", call, 400)):
        async with client.post(f"{service.url}/tools/{path}", json=body) as response:
            assert response.status == status
            assert "error" in await response.json()


def test_the_process_says_its_url_and_ends_when_told(tmp_path: Path) -> None:
    running = Running(tmp_path)
    running.start("--tool-delay-ms", "crm_query=5")
    code, output = running.end(signal.SIGTERM)
    assert (code, output) == (0, f"tool service: {running.url}\n")


def test_delays_follow_from_the_call() -> None:
    delays = Delays(default_ms=30, by_tool_ms={"crm_query": 50}, jitter_ms=10)
    assert Delays().of("order_status", "a") == 0.03
    assert 0.05 <= delays.of("crm_query", "a") <= 0.06
    assert delays.of("crm_query", "a") == delays.of("crm_query", "a")
    assert len({delays.of("crm_query", str(n)) for n in range(100)}) == 11


def test_an_effect_and_its_count_are_one_transaction(tmp_path: Path) -> None:
    shop = Shop(tmp_path / "shop.sqlite")
    tickets = "SELECT count(*) FROM tickets"
    before = shop._db.execute(tickets).fetchone()[0]
    shop._db.execute("CREATE TRIGGER full BEFORE INSERT ON calls BEGIN SELECT RAISE(ABORT, 'disk full'); END")
    with pytest.raises(Exception, match="disk full"):
        shop.execute("c", "create_ticket", {"title": "a"})
    assert shop._db.execute(tickets).fetchone()[0] == before
    shop._db.execute("DROP TRIGGER full")
    with pytest.raises(ToolRefused, match="no ticket"):
        shop.execute("c", "cancel_ticket", {"ticket_id": "T-x"})
    assert shop.counters()["executions"] == {"c": 1}
    shop.close()

"""The demo's shop on a SQLite file: what its tools do, and how often each call was executed.

A call's effect and its count are one transaction, so the counters tell exactly which effects happened. They survive the death
of the process (WAL; not that of the machine, since commits are not synced one by one). A call that comes twice is executed
twice, on purpose: tests read the counters to see that it never comes twice. Only `create_ticket` remembers its calls: asked
again, it gives the first answer again. `refund_order` can be asked what became of a call.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from hermes_spark.messages import JsonObject
from hermes_spark.tools.demo.catalogue import ARTICLES, CUSTOMERS, ORDERS, TICKETS

_SCHEMA = """
CREATE TABLE IF NOT EXISTS customers (name TEXT PRIMARY KEY, city TEXT, level TEXT);
CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, customer TEXT, status TEXT, item TEXT);
CREATE TABLE IF NOT EXISTS tickets (number INTEGER PRIMARY KEY, title TEXT, priority TEXT, status TEXT DEFAULT 'open');
CREATE TABLE IF NOT EXISTS articles (title TEXT PRIMARY KEY, text TEXT);
CREATE TABLE IF NOT EXISTS calls (call_id TEXT, tool TEXT, started INTEGER, executed INTEGER, PRIMARY KEY (call_id, tool))
    WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS answers (call_id TEXT PRIMARY KEY, answer BLOB) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS blocked (call_id TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS refunds (number INTEGER PRIMARY KEY, order_id TEXT);
"""
_REMEMBERED = ("create_ticket", "refund_order")
"""Tools whose answers are kept: to be given again, or to say what became of a call."""


class ToolRefused(Exception):
    """The shop cannot do what it was asked for; carries the HTTP status and a sentence."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(status, reason)
        self.status = status
        self.reason = reason


class _CrmQuery(msgspec.Struct, forbid_unknown_fields=True):
    customer: str
    fields: list[Literal["city", "level", "orders"]] | None = None


class _OrderStatus(msgspec.Struct, forbid_unknown_fields=True):
    order_id: str


class _KbSearch(msgspec.Struct, forbid_unknown_fields=True):
    query: str
    top_k: int = 3


class _CreateTicket(msgspec.Struct, forbid_unknown_fields=True):
    title: str
    priority: Literal["low", "normal", "high"] = "normal"


class _CancelTicket(msgspec.Struct, forbid_unknown_fields=True):
    ticket_id: str


class _RefundOrder(msgspec.Struct, forbid_unknown_fields=True):
    order_id: str


class Shop:
    """The tools and the counters over one SQLite file. One thread uses it; every call takes well under a millisecond."""

    def __init__(self, path: Path) -> None:
        """Open the file, or make and fill it."""
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.row_factory = sqlite3.Row
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.executescript(_SCHEMA)
        self._fill()
        self._tools: dict[str, Callable[[JsonObject], JsonObject]] = {
            "crm_query": self._crm_query,
            "order_status": self._order_status,
            "kb_search": self._kb_search,
            "create_ticket": self._create_ticket,
            "cancel_ticket": self._cancel_ticket,
            "refund_order": self._refund_order,
        }

    @property
    def tools(self) -> tuple[str, ...]:
        """The names of the tools."""
        return tuple(self._tools)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def start(self, call_id: str, tool: str) -> None:
        """Count that a call has arrived."""
        self._count(call_id, tool, started=1, executed=0)

    def execute(self, call_id: str, tool: str, arguments: JsonObject) -> JsonObject:
        """Do what `tool` does and count it, in one transaction. Raises `ToolRefused`; that counts as executed too."""
        refusal: ToolRefused | None = None
        answer: JsonObject = {}
        self._db.execute("BEGIN IMMEDIATE")
        with self._db:
            if self._db.execute("SELECT 1 FROM blocked WHERE call_id = ?", (call_id,)).fetchone():
                raise ToolRefused(409, "somebody was told that this call did not happen; it never will")
            if tool == "create_ticket" and (known := self._answer(call_id)) is not None:
                return known
            try:
                answer = self._tools[tool](arguments)
                if tool in _REMEMBERED:
                    self._db.execute(
                        "INSERT OR REPLACE INTO answers VALUES (?, ?)", (call_id, msgspec.json.encode(answer))
                    )
            except msgspec.ValidationError as exc:
                refusal = ToolRefused(400, str(exc))
            except ToolRefused as exc:
                refusal = exc
            self._count(call_id, tool, started=0, executed=1)
        if refusal is not None:
            raise refusal
        return answer

    def reconcile(self, call_id: str) -> JsonObject:
        """What became of a call, as `tools.reconcile` describes it; one that has not happened by now never will."""
        self._db.execute("BEGIN IMMEDIATE")
        with self._db:
            answer = self._answer(call_id)
            if answer is not None:
                return {"status": "done", "result": answer}
            if self._db.execute("SELECT 1 FROM calls WHERE call_id = ? AND executed > 0", (call_id,)).fetchone():
                return {"status": "failed", "error": "the shop refused the call"}
            self._db.execute("INSERT OR IGNORE INTO blocked VALUES (?)", (call_id,))
        return {"status": "not_run"}

    def counters(self) -> JsonObject:
        """`executions` by call id, executions `by_tool`, the sums of both (`total`) and of all arrivals (`started`)."""
        rows = self._db.execute("SELECT call_id, tool, started, executed FROM calls").fetchall()
        executions: dict[str, int] = {}
        by_tool = dict.fromkeys(self._tools, 0)
        for row in rows:
            if row["executed"]:
                executions[row["call_id"]] = executions.get(row["call_id"], 0) + row["executed"]
                by_tool[row["tool"]] += row["executed"]
        return {
            "executions": executions,
            "by_tool": by_tool,
            "total": sum(by_tool.values()),
            "started": sum(row["started"] for row in rows),
        }

    def _answer(self, call_id: str) -> JsonObject | None:
        row = self._db.execute("SELECT answer FROM answers WHERE call_id = ?", (call_id,)).fetchone()
        return None if row is None else msgspec.json.decode(row["answer"], type=dict)

    def _count(self, call_id: str, tool: str, *, started: int, executed: int) -> None:
        self._db.execute(
            "INSERT INTO calls VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE"
            " SET started = started + excluded.started, executed = executed + excluded.executed",
            (call_id, tool, started, executed),
        )

    def _fill(self) -> None:
        fill = self._db.executemany
        with self._db:
            fill("INSERT OR IGNORE INTO customers VALUES (?, ?, ?)", map(msgspec.structs.astuple, CUSTOMERS))
            fill("INSERT OR IGNORE INTO orders VALUES (?, ?, ?, ?)", map(msgspec.structs.astuple, ORDERS))
            fill("INSERT OR IGNORE INTO articles VALUES (?, ?)", map(msgspec.structs.astuple, ARTICLES))
            fill(
                "INSERT OR IGNORE INTO tickets (number, title, priority) VALUES (?, ?, ?)",
                [(_ticket_number(ticket.id), ticket.title, ticket.priority) for ticket in TICKETS],
            )

    def _crm_query(self, arguments: JsonObject) -> JsonObject:
        asked = msgspec.convert(arguments, _CrmQuery)
        row = self._db.execute("SELECT * FROM customers WHERE name = ? COLLATE NOCASE", (asked.customer,)).fetchone()
        if row is None:
            raise ToolRefused(404, f"there is no customer {asked.customer!r}")
        orders = self._db.execute("SELECT id, status, item FROM orders WHERE customer = ? ORDER BY id", (row["name"],))
        found = {"city": row["city"], "level": row["level"], "orders": [dict(order) for order in orders]}
        return {"customer": row["name"], **{name: found[name] for name in asked.fields or found}}

    def _order_status(self, arguments: JsonObject) -> JsonObject:
        asked = msgspec.convert(arguments, _OrderStatus)
        row = self._db.execute("SELECT * FROM orders WHERE id = ? COLLATE NOCASE", (asked.order_id,)).fetchone()
        if row is None:
            raise ToolRefused(404, f"there is no order {asked.order_id!r}")
        return {"order_id": row["id"], "status": row["status"], "item": row["item"], "customer": row["customer"]}

    def _kb_search(self, arguments: JsonObject) -> JsonObject:
        asked = msgspec.convert(arguments, _KbSearch)
        rows = self._db.execute("SELECT title, text FROM articles ORDER BY title").fetchall()
        ranked = sorted(rows, key=lambda row: -_likeness(asked.query, f"{row['title']} {row['text']}"))
        return {"articles": [dict(row) for row in ranked[: max(1, min(asked.top_k, 10))]]}

    def _create_ticket(self, arguments: JsonObject) -> JsonObject:
        asked = msgspec.convert(arguments, _CreateTicket)
        number = self._db.execute(
            "INSERT INTO tickets (title, priority) VALUES (?, ?)", (asked.title, asked.priority)
        ).lastrowid
        return {"ticket_id": f"T-{number}", "title": asked.title, "priority": asked.priority, "status": "open"}

    def _cancel_ticket(self, arguments: JsonObject) -> JsonObject:
        asked = msgspec.convert(arguments, _CancelTicket)
        number = _ticket_number(asked.ticket_id)
        if self._db.execute("UPDATE tickets SET status = 'cancelled' WHERE number = ?", (number,)).rowcount == 0:
            raise ToolRefused(404, f"there is no ticket {asked.ticket_id!r}")
        return {"ticket_id": f"T-{number}", "status": "cancelled"}

    def _refund_order(self, arguments: JsonObject) -> JsonObject:
        asked = msgspec.convert(arguments, _RefundOrder)
        row = self._db.execute("SELECT id FROM orders WHERE id = ? COLLATE NOCASE", (asked.order_id,)).fetchone()
        if row is None:
            raise ToolRefused(404, f"there is no order {asked.order_id!r}")
        number = self._db.execute("INSERT INTO refunds (order_id) VALUES (?)", (row["id"],)).lastrowid
        return {"refund_id": f"R-{number}", "order_id": row["id"]}


def _ticket_number(ticket_id: str) -> int:
    """101 for `T-101`; -1, which no ticket has, for anything else."""
    digits = ticket_id.upper().removeprefix("T-")
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 16 else -1


def _likeness(query: str, text: str) -> int:
    """How many pairs of neighbouring characters of `query` occur in `text`; works without word limits, so for Chinese."""
    lowered, found = query.lower(), text.lower()
    return sum(lowered[at : at + 2] in found for at in range(len(lowered) - 1))

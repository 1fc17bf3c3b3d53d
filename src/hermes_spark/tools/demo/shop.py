"""The demo's shop on a SQLite file: what its five tools do, and how often each call was executed.

A call's effect and its count are one transaction, so the counters tell exactly which effects happened. They survive the death
of the process (WAL; not that of the machine, since commits are not synced one by one). A call that comes twice is executed
twice, on purpose: tests read the counters to see that it never comes twice.
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
"""


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


class Shop:
    """The five tools and the counters over one SQLite file. One thread uses it; every call takes well under a millisecond."""

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
            try:
                answer = self._tools[tool](arguments)
            except msgspec.ValidationError as exc:
                refusal = ToolRefused(400, str(exc))
            except ToolRefused as exc:
                refusal = exc
            self._count(call_id, tool, started=0, executed=1)
        if refusal is not None:
            raise refusal
        return answer

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


def _ticket_number(ticket_id: str) -> int:
    """101 for `T-101`; -1, which no ticket has, for anything else."""
    digits = ticket_id.upper().removeprefix("T-")
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 16 else -1


def _likeness(query: str, text: str) -> int:
    """How many pairs of neighbouring characters of `query` occur in `text`; works without word limits, so for Chinese."""
    lowered, found = query.lower(), text.lower()
    return sum(lowered[at : at + 2] in found for at in range(len(lowered) - 1))

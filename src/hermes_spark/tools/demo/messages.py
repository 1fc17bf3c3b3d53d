"""The demo's events: a number in, an event out, always the same one. Pure.

The `rate` and `load` sources, the demo and the benchmark take their events from here. The questions only ask for what the
demo's shop holds (`catalogue`), in Chinese and English.
"""

from __future__ import annotations

import hashlib
from typing import TypeVar

from hermes_spark.messages import JsonObject
from hermes_spark.tools.demo.catalogue import ARTICLES, CUSTOMERS, ORDERS, TICKETS

_ONE_TOOL = (
    "查一下客户{customer}的订单状态",
    "Look up the customer {customer} in the CRM",
    "What is the status of order {order}?",
    "查询订单 {order} 的状态",
    "Search the knowledge base for {topic}",
    "在知识库里搜索{topic}",
    "Cancel ticket {ticket}",
    "取消工单 {ticket}",
    'Create a ticket titled "{title}" with high priority',
    "创建一个标题为“{title}”的低优先级工单",
)
_TWO_TOOLS = (
    "What is the status of order {order}? Also look up the customer {customer} in the CRM.",
    "查一下客户{customer}的资料，再查询订单 {order} 的状态",
    "What is the status of order {order}, and search the knowledge base for {topic}.",
    "查询订单 {order} 的状态，并且创建一个标题为“{title}”的高优先级工单",
)
_CHAT = (
    "Hello!",
    "你好",
    "Thank you, that was all.",
    "谢谢你的帮助",
)
_BENCH = _ONE_TOOL[:4]
"""Reads of one row: the benchmark measures the agent, not SQLite's growth."""

_MIX = (_ONE_TOOL, _ONE_TOOL, _ONE_TOOL, _ONE_TOOL, _ONE_TOOL, _TWO_TOOLS, _TWO_TOOLS, _CHAT)
"""Five questions for one tool and two for two tools on one message without."""
_TITLES = ("Parcel arrived damaged", "Invoice is missing", "屏幕有划痕", "地址需要修改")

_T = TypeVar("_T")


def demo_event(value: int, *, sessions: int, seed: int = 0) -> JsonObject:
    """Event number `value` (0 or more) of the demo's mix, as the JSON object of `events`, without `ts`.

    Consecutive values belong to different sessions (`value` modulo `sessions`, 1 or more); the same `value`, `sessions` and
    `seed` give the same event.
    """
    choices = _Choices(f"{seed}/{value}")
    return _event(value, sessions, f"demo-{seed}", choices.fill(choices.one_of(choices.one_of(_MIX))))


def one_tool_event(value: int, sessions: int) -> JsonObject:
    """Like `demo_event`, but every message asks for exactly one tool: two model calls and one tool call a turn."""
    choices = _Choices(f"one/{value}")
    return _event(value, sessions, "one", choices.fill(choices.one_of(_BENCH)))


def bad_rows() -> tuple[bytes, ...]:
    """Rows that are no events, each for a reason of its own; one line each, so that they fit into a file of JSON lines."""
    return (
        b'{"session_id": "demo-bad", "messages": [',
        b"plain text",
        b'["a", "list"]',
        b'{"messages": [{"role": "user", "content": "whose session?"}]}',
        b'{"session_id": "demo-bad", "messages": []}',
        b'{"session_id": "demo-bad", "messages": [{"role": "system", "content": "obey"}]}',
        b'{"session_id": "demo-bad", "type": "party", "messages": [{"role": "user", "content": "hi"}]}',
        b'{"session_id": "demo-bad", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 0}',
        b'{"session_id": "demo-bad", "messages": [{"role": "user", "content": "\xff\xfe"}]}',
    )


class _Choices:
    """A stream of choices that follows from a key alone (not from `random`, whose streams may change with Python)."""

    def __init__(self, key: str) -> None:
        self._left = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=32).digest(), "big")

    def one_of(self, options: tuple[_T, ...]) -> _T:
        self._left, index = divmod(self._left, len(options))
        return options[index]

    def fill(self, template: str) -> str:
        return template.format(
            customer=self.one_of(CUSTOMERS).name,
            order=self.one_of(ORDERS).id,
            topic=self.one_of(ARTICLES).title,
            ticket=self.one_of(TICKETS).id,
            title=self.one_of(_TITLES),
        )


def _event(value: int, sessions: int, series: str, content: str) -> JsonObject:
    return {
        "session_id": f"demo-{value % sessions:05d}",
        "event_id": f"{series}-{value}",
        "messages": [{"role": "user", "content": content}],
    }

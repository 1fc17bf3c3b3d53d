"""Calls that may be sent again, calls that are asked after, approvals and undos, with everything killed in the middle."""

from __future__ import annotations

import signal
from typing import Any
from urllib.parse import urlsplit

import yaml

from chaos_parts.world import SESSIONS, Failed, Scenario, World
from jobs import question
from stack import ROOT

TICKETS = 4 * SESSIONS
REFUNDS = 2 * SESSIONS
REFUND = "Refund order A-1003"


def kill_with_idempotent_calls(world: World) -> None:
    """Tickets, under a policy by which a call under way is sent again with its key: none is made twice, none stays unknown."""
    _use_tools(world)
    for file in range(TICKETS // SESSIONS):
        world.send(
            question(f"s{n}", f'Create a ticket titled "Parcel {file}-{n}" with high priority') for n in range(SESSIONS)
        )
    world.start()
    world.mid_batch()
    _kill_everything(world)
    world.drain()
    _expect_statuses(world, {"ok"}, TICKETS)
    counters = world.tools.counters()
    if counters["total"] != TICKETS:
        raise Failed(f"{counters['total']} tickets were made of {TICKETS}")
    if counters["started"] == counters["total"]:
        raise Failed("no call was sent again, so none was under way at the fault")


def kill_with_reconcilable_calls(world: World) -> None:
    """Refunds, under a policy by which the tool is asked what became of a call; the tool dies too, so that some never ran."""
    _use_tools(world, approval=False)
    for _ in range(REFUNDS // SESSIONS):
        world.send(question(f"s{n}", REFUND) for n in range(SESSIONS))
    world.start()
    world.mid_batch()
    world.tools.part.signal(signal.SIGSTOP)  # killed first, it would break connections, and the job would see that
    _kill_everything(world)
    world.tools.part.signal(signal.SIGKILL)
    world.tools.part.wait(10)
    world.start_tools(urlsplit(world.tools.url).port or 0)
    world.drain()
    executions = world.tools.counters()["executions"]
    calls = _expect_statuses(world, {"ok", "not_run"}, REFUNDS)
    wrong = [call for call in calls if executions.get(call["call_id"], 0) != (call["status"] == "ok")]
    if wrong:
        raise Failed(f"{len(wrong)} calls became something else than their outcomes say: {wrong[:3]}")
    if all(call["status"] == "ok" for call in calls):
        raise Failed("every call had run, so that asking after them proved nothing")


def kill_while_approvals_wait(world: World) -> None:
    """Turns wait for approvals when everything is killed, and the decisions come while nothing runs; killed again, then, with
    the approved calls under way. The first decision about each call counts."""
    _use_tools(world)
    world.send(question(f"s{n}", REFUND) for n in range(SESSIONS))
    world.start()
    world.until(lambda: len(world.rows("approvals")) == SESSIONS, "calls that wait for an approval")
    _kill_everything(world)
    waiting = sorted(world.rows("approvals"), key=lambda row: row["session_id"])
    approved = {row["call_id"] for row in waiting[::2]}
    first = [_decision(row, approve=row["call_id"] in approved) for row in waiting]
    second = [_decision(row, approve=row["call_id"] not in approved) for row in waiting]
    world.send(first + second)  # in one file: of two files of one instant, Spark may read either first
    world.start()
    world.until(lambda: _under_way(world) > 0, "approved calls under way")
    _kill_everything(world)
    world.drain()
    executions = world.tools.counters()["executions"]
    for call in _expect_statuses(world, {"ok", "denied"}, SESSIONS):
        wanted = call["call_id"] in approved
        if (call["status"] == "ok") != wanted or executions.get(call["call_id"], 0) != wanted:
            raise Failed(f"a call was {'approved' if wanted else 'denied'} and became {call}")


def kill_while_undoing(world: World) -> None:
    """Turns are cancelled that have made a ticket and wait with another call; everything is killed when half of the tickets
    are cancelled, and the undos of the others are under way."""
    _use_tools(world)
    sessions = [f"s{n}" for n in range(SESSIONS)]
    half = SESSIONS // 2
    world.send(
        question(s, f'Create a ticket titled "Parcel {s}" with high priority. Also refund order A-1003.')
        for s in sessions
    )
    world.start()
    world.until(lambda: world.tools.counters()["total"] == SESSIONS == len(world.rows("approvals")), "tickets")
    world.tools.control(hang=sessions[half:])
    world.send({"session_id": session, "type": "cancel"} for session in sessions)
    world.until(lambda: len(world.rows()) == half and _under_way(world) == half, "undos made and undos under way")
    world.finished = set(world.tools.counters()["executions"])
    _kill_everything(world)
    world.tools.control(release=True)
    world.drain()
    _expect_undone(world)


def _expect_undone(world: World) -> None:
    executions = world.tools.counters()["executions"]
    if world.tools.counters()["by_tool"]["refund_order"]:
        raise Failed("a call was sent that waited for an approval")
    for row in world.rows():
        made = [call["call_id"] for call in row["calls"] if call["status"] == "ok"]
        undone = [undo["call_id"] for undo in row["undos"] if undo["status"] == "ok" and executions[undo["undo_id"]]]
        if row["status"] != "cancelled" or len(made) != 1 or made != undone:
            raise Failed(f"turn {row['turn_id']} ended {row['status']}, did {made} and undid {undone}")


def _use_tools(world: World, *, approval: bool = True) -> None:
    """The tools of conf/tools-approvals.yaml, as they are there or with none to approve."""
    document = yaml.safe_load((ROOT / "conf" / "tools-approvals.yaml").read_text(encoding="utf-8"))
    for tool in document["tools"]:
        if not approval:
            tool.pop("approval", None)
            tool.pop("approval_timeout_s", None)
    file = world.stack.directory / "tools-approvals.yaml"
    file.write_text(yaml.safe_dump(document, allow_unicode=True), encoding="utf-8")
    world.settings["tools.file"] = file


def _kill_everything(world: World) -> None:
    world.note_processes()
    world.job.kill()
    world.hit("SIGKILL of everything")


def _under_way(world: World) -> int:
    counters = world.tools.counters()
    return counters["started"] - counters["total"]  # type: ignore[operator]


def _decision(row: dict[str, Any], *, approve: bool) -> dict[str, Any]:
    return {
        "type": "approval",
        "session_id": row["session_id"],
        "turn_id": row["turn_id"],
        "call_id": row["call_id"],
        "decision": "approve" if approve else "deny",
        "by": "kim",
    }


def _expect_statuses(world: World, statuses: set[str], number: int) -> list[dict[str, Any]]:
    """The calls of all outcomes: so many, and all of them ended in one of these ways."""
    calls = [call for row in world.rows() for call in row["calls"]]
    others = [call for call in calls if call["status"] not in statuses]
    if len(calls) != number or others:
        raise Failed(f"{len(calls)} calls instead of {number}; {len(others)} of them became {others[:3]}")
    return calls


POLICIES = [
    Scenario("idempotent calls are under way when everything is killed", kill_with_idempotent_calls),
    Scenario("calls to reconcile are under way when everything is killed", kill_with_reconcilable_calls),
    Scenario("approvals are waited for when everything is killed", kill_while_approvals_wait),
    Scenario("undos are under way when everything is killed", kill_while_undoing),
]

"""Bugs to plant, to see that the simulation finds them: each changes one function of the real code, in a copy.

A plant takes the function's source, replaces a text that must be in it exactly once, and puts the result in the function's
place while a seed runs. When the code changes so that the text is no longer there, planting fails instead of doing nothing.
"""

from __future__ import annotations

import contextlib
import inspect
import textwrap
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any
from unittest import mock

from hermes_spark.agent import approvals, calls, undo
from hermes_spark.host import takes
from hermes_spark.host.calls import Calls
from hermes_spark.host.effects import EffectRunner
from hermes_spark.host.expiry import Expiry
from hermes_spark.host.shard import Shard
from hermes_spark.state import journal, takeover
from hermes_spark.state.journal_reader import JournalReader
from hermes_spark.state.retention import Retention
from hermes_spark.streaming import handoff
from hermes_spark.streaming.pruning import Pruner

Plant = Callable[[], "contextlib.AbstractContextManager[None]"]


@contextlib.contextmanager
def _changed(owner: Any, name: str, old: str, new: str) -> Iterator[None]:
    function: FunctionType = getattr(owner, name)
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(old) == 1, (
        f"the text to change is {source.count(old)} times in {function.__qualname__}: {old!r}"
    )
    scope: dict[str, Any] = {}
    exec(compile(source.replace(old, new), f"<planted in {name}>", "exec"), function.__globals__, scope)
    with mock.patch.object(owner, name, scope[name]):
        yield


def _plant(owner: Any, name: str, old: str, new: str) -> Plant:
    return lambda: _changed(owner, name, old, new)


@contextlib.contextmanager
def _watermark() -> Iterator[None]:
    """The hand-off remembers per partition how far it has routed, and never offers what lies before."""
    routed: dict[str, int] = {}

    def offer(self: Any, rows: Any) -> Any:
        new = [row for row in rows if row.coordinates.offset >= routed.get(row.coordinates.partition, 0)]
        routed.update({row.coordinates.partition: row.coordinates.offset + 1 for row in new})
        return real(self, new)

    real = handoff.Offering.offer
    with mock.patch.object(handoff.Offering, "offer", offer):
        yield


@contextlib.contextmanager
def _prune_to_commit() -> Iterator[None]:
    """Retention removes everything up to the newest commit, whatever the snapshots and a replay of it still need."""

    def prune(self: Any, needed: Any) -> int:
        return self._remove_below(needed.lsn)

    def committed(self: Any, commit: Any) -> None:
        self.round = self._thread.submit(self._prune, commit.positions)

    with mock.patch.object(Retention, "prune", prune), mock.patch.object(Pruner, "committed", committed):
        yield


@contextlib.contextmanager
def _offsets_only() -> Iterator[None]:
    """A snapshot is taken for one of this journal when the journal has a record of that number, whatever term it is of."""
    with (
        _changed(JournalReader, "_index", "term == position.term", "True"),
        _changed(JournalReader, "_groups", "mark.position == end", "mark.position.lsn == end.lsn"),
    ):
        yield


PLANTS: dict[str, Plant] = {
    "seal_after_reading": _plant(
        takeover,
        "_seal_and_find_end",
        "return _end_of(_sealed_file(directory, shard, by), shard, known_end)",
        "end = _end_of(files_of(directory)[-1], shard, known_end); _sealed_file(directory, shard, by); return end",
    ),
    "acknowledge_before_flush": _plant(
        takes.Round, "durable", "for shard in self.touched.values():\n        await shard.durable()", "pass"
    ),
    "trust_reader_watermark": _watermark,
    "prune_to_commit": _prune_to_commit,
    "compare_snapshots_by_offset": _offsets_only,
    "append_behind_seal": _plant(
        journal.TermWriter, "_sync", "if os.fstat(self._fd).st_size != self._size:", "if False:"
    ),
    "send_before_intent_is_durable": _plant(Calls, "_intend", "await self._shard.durable()", "pass"),
    "send_after_a_pause": _plant(Calls, "_intend", "self._clock_s() - begun_s <= SEND_WITHIN_S", "True"),
    "send_again": _plant(
        EffectRunner,
        "_call",
        "self._calls.settle(effect) if effect.call.status == SENT else self._calls",
        "self._calls",
    ),
    "forget_the_key": _plant(
        Calls, "_guarded", "call_id=effect.call.id", 'call_id=effect.call.id + "again" * (effect.call.status == SENT)'
    ),
    "send_again_instead_of_asking": _plant(
        Calls, "settle", 'policy == "idempotent"', 'policy in ("idempotent", "reconcile")'
    ),
    "do_not_ask": _plant(Calls, "settle", 'policy == "reconcile"', 'policy == "never"'),
    "not_run_without_asking": _plant(
        Calls,
        "settle",
        "await self._guarded(self._tools.reconcile, tool, effect)",
        'ToolResult("not_run", "it was not found", 1)',
    ),
    "lose_approvals_on_takeover": _plant(
        Shard,
        "fold",
        "if not isinstance(record, ShardRecord):",
        'if not isinstance(record, ShardRecord) and getattr(record, "effect", "") not in ("taken", "kept"):',
    ),
    "count_the_last_decision": _plant(approvals, "effect_of", "call.status != WAITING", "call.status == DONE"),
    "undo_in_order": _plant(
        undo, "next_undo", "reversed(turn.past_calls + turn.calls)", "turn.past_calls + turn.calls"
    ),
    "undo_twice": _plant(
        undo, "next_undo", "undo_id_of(call.id)", 'undo_id_of(call.id) + "again" * (undo is not None)'
    ),
    "drop_early_decisions": _plant(approvals, "approval", "if effect == KEPT:", 'if effect == "never":'),
    "approve_what_nobody_decided": _plant(approvals, "lapsed", "approve=False", "approve=True"),
    "make_no_undos": _plant(
        Calls, "undo", "await self._send_again(effect, tool, NOT_UNDONE)", 'ToolResult("ok", "", 1)'
    ),
    "fail_at_the_first_resumption": _plant(calls, "resumed", "< RESUMPTIONS", "< 1"),
    "expire_before_its_time": _plant(
        Expiry, "_expire", "expire(shard, session_id, self._before_ms", "expire(shard, session_id, 1 << 62"
    ),
    "expire_by_the_last_barrier": _plant(
        Expiry,
        "barrier",
        "self._before_ms = self._newest_ms",
        "self._before_ms = max((shard.now_ms() for shard in self._shards()), default=0)",
    ),
}

FOCUS: dict[str, list[str]] = {
    "seal_after_reading": ["second_copy"],
    "acknowledge_before_flush": ["kill_host", "kill_host"],
    "compare_snapshots_by_offset": ["early_snapshot", "kill_host", "kill_host"],
    "append_behind_seal": ["point_stop:journal.before_write"] * 2,
    "send_before_intent_is_durable": ["point_kill:journal.before_write"],
    "send_after_a_pause": ["point_stop:host.after_intent"] * 2,
    "send_again_instead_of_asking": ["kill_host", "kill_host"],
    "do_not_ask": ["kill_host", "kill_host"],
    "not_run_without_asking": ["kill_host", "kill_host"],
    "undo_in_order": ["kill_host"],
}
"""Faults under which a bug shows soonest; without an entry the seed chooses them."""

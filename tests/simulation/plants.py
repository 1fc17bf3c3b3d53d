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

from hermes_spark.host import shard, takes
from hermes_spark.host.effects import EffectRunner
from hermes_spark.state import journal, takeover
from hermes_spark.streaming import handoff

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
    routed: dict[tuple[int, str], int] = {}

    def offer(self: Any, rows: Any) -> Any:
        life = id(self._plan.spans) * 0
        new = [r for r in rows if r.coordinates.offset >= routed.get((life, r.coordinates.partition), 0)]
        for row in new:
            routed[life, row.coordinates.partition] = row.coordinates.offset + 1
        return real(self, new)

    real = handoff.Offering.offer
    with mock.patch.object(handoff.Offering, "offer", offer):
        yield


SEAL_AFTER_READING = _plant(
    takeover,
    "_seal_and_find_end",
    "return _end_of(_sealed_file(directory, shard, by), shard, known_end)",
    "end = _end_of(file_of(directory), shard, known_end); _sealed_file(directory, shard, by); return end",
)

PLANTS: dict[str, Plant] = {
    "seal_after_reading": SEAL_AFTER_READING,
    "acknowledge_before_flush": _plant(
        takes.Offers, "take", "for shard in touched.values():\n        await shard.durable()", "pass"
    ),
    "trust_reader_watermark": _watermark,
    "append_behind_seal": _plant(
        journal.TermWriter, "sync", "if os.fstat(self._fd).st_size != self._size:", "if False:"
    ),
    "send_before_intent_is_durable": _plant(EffectRunner, "_send", "await self._shard.durable()", "pass"),
    "send_again": _plant(EffectRunner, "_call", "if effect.call.status == SENT:", "if False:"),
}
_ = shard

"""Spoils replies on demand, so that tests can see what a runtime does with a model that errs.

A mark in the last user message asks for it; marks in older messages count no more. Every mark acts at each step of the turn,
or with a number at its first steps only: `[[junk:1]]` spoils the first reply and lets the next ones pass.

===================== ==========================================================================================
mark                  what the reply does
===================== ==========================================================================================
`[[cut]]`             ends in the middle of its last tool call (or answer), with finish reason `length`
`[[cut-thinking]]`    ends inside the think block, with finish reason `length`
`[[unknown-tool]]`    calls a tool that the prompt does not offer
`[[wrong-types]]`     gives `many` for numbers, lists and choices; a tool that only takes text gets no arguments
`[[loop]]`            calls the same tools again at every step, whatever they have answered
`[[junk]]`            holds tool call markup that nobody can read
`[[empty]]`           says nothing after thinking
`[[no-think-close]]`  calls tools without closing the think block first
`[[slow:MS]]`         comes MS milliseconds later
===================== ==========================================================================================

The marks about calls do nothing when the prompt offers no tools: a model that sees none answers.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from engines.reference.planner import Plan, PlannedCall, plan
from engines.reference.prompt import Prompt
from engines.reference.toolbox import Kind, Toolbox
from engines.reference.vocabulary import Markup, Piece

MARKS = ("cut", "cut-thinking", "unknown-tool", "wrong-types", "loop", "junk", "empty", "no-think-close", "slow")
MAX_SLOW_MS = 600_000
TEXT_KINDS = frozenset({Kind.TEXT, Kind.NAME, Kind.IDENTIFIER, Kind.EMAIL, Kind.DATE})

_MARK = re.compile(rf"\s*\[\[({'|'.join(MARKS)})(?::(\d{{1,6}}))?\]\]")
_JUNK = "\n<function=\n<parameter>{]]\x07</param=eter>\n&lt;/function&gt;\n"


@dataclass(frozen=True)
class Mischief:
    """The marks that act on one reply."""

    marks: frozenset[str] = frozenset()
    slow_ms: int = 0

    def plan(self, prompt: Prompt) -> Plan:
        """The plan for a prompt, spoiled where the marks say so."""
        if "loop" in self.marks and prompt.toolbox is not None:
            prompt = replace(prompt, results=())
        made = plan(prompt)
        if prompt.toolbox is not None and "unknown-tool" in self.marks:
            made = replace(made, content="", calls=(PlannedCall("no_such_tool", {"reason": "asked for"}),))
        if prompt.toolbox is not None and "wrong-types" in self.marks:
            made = replace(made, calls=tuple(_wrongly_typed(call, prompt.toolbox) for call in made.calls))
        if "empty" in self.marks:
            made = replace(made, content="", calls=())
        return made

    def spoil(self, pieces: list[Piece]) -> list[Piece]:
        """The written reply, spoiled where the marks say so."""
        if "junk" in self.marks:
            end = pieces.index(Markup.THINK_CLOSE) + 2 if Markup.THINK_CLOSE in pieces else 0
            pieces = [*pieces[:end], Markup.CALL_OPEN, _JUNK, Markup.CALL_CLOSE]
        if "no-think-close" in self.marks and Markup.THINK_CLOSE in pieces and Markup.CALL_OPEN in pieces:
            close = pieces.index(Markup.THINK_CLOSE)
            pieces = [*pieces[:close], *pieces[close + 2 :]]
        return pieces

    def cut(self, ids: list[int], id_of: Callable[[Markup], int]) -> list[int] | None:
        """The reply's ids, cut where the marks say so; None if they say nothing."""
        thought = ids.index(id_of(Markup.THINK_CLOSE)) if id_of(Markup.THINK_CLOSE) in ids else 0
        if "cut-thinking" in self.marks and thought:
            return ids[: max(1, thought // 2)]
        if "cut" not in self.marks:
            return None
        call = id_of(Markup.CALL_OPEN)
        start = len(ids) - 1 - ids[::-1].index(call) if call in ids else thought
        return ids[: start + max(1, (len(ids) - start) * 2 // 3)]


def read_marks(prompt: Prompt) -> tuple[Mischief, Prompt]:
    """The marks that act on this step, and the prompt without them."""
    found = _MARK.findall(prompt.question)
    if not found:
        return Mischief(), prompt
    marks = frozenset(name for name, number in found if name != "slow" and (not number or prompt.steps < int(number)))
    slow_ms = max((int(number) for name, number in found if name == "slow" and number), default=0)
    return Mischief(marks, min(slow_ms, MAX_SLOW_MS)), replace(prompt, question=_MARK.sub("", prompt.question).strip())


def _wrongly_typed(call: PlannedCall, toolbox: Toolbox) -> PlannedCall:
    """Wrong in any format: text may always be text, so only parameters of other kinds can be given a wrong value."""
    parameters = next((tool.parameters for tool in toolbox.tools if tool.name == call.name), ())
    wrong = {parameter.name: "many" for parameter in parameters if parameter.kind not in TEXT_KINDS}
    return PlannedCall(call.name, {**call.arguments, **wrong} if wrong else {})

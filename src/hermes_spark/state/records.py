"""The facts of a journal. A record never changes; a state is the fold of its records (`agent.turn.apply`).

Records are msgpack arrays with a one-letter tag first. To stay readable for ever, a field is only ever *appended* with a
default, and a tag is never used again. Times are milliseconds since the epoch, on the owner's clock, never running backwards
within a shard.
"""

from __future__ import annotations

import msgspec

from hermes_spark.events import Coordinates, Event
from hermes_spark.messages import JsonObject, Message, Usage


class TermId(msgspec.Struct, frozen=True, array_like=True, order=True):
    """One ownership of one shard: (driver epoch, counter). Compared in that order."""

    epoch: int
    counter: int


class Position(msgspec.Struct, frozen=True, array_like=True):
    """A place in a shard's journal: everything up to and including `lsn` counts.

    The LSN counts records over all terms, from 1; `Position(0, TermId(0, 0), "")` is the empty journal. `chain` is the hex
    digest of the hash chain over the stored bytes up to there.
    """

    lsn: int = 0
    term: TermId = TermId(0, 0)
    chain: str = ""


class Limits(msgspec.Struct, frozen=True, array_like=True):
    """Bounds of one turn, fixed when its event is taken."""

    max_steps: int = 3
    """Model calls of a turn, repeats included; the last is made without tools."""
    max_tokens: int = 1024
    """New tokens of one completion; doubled after a cut reply, up to four times this."""
    token_budget: int = 200_000
    """Prompt and completion tokens of a whole turn; when it is used up, the next completion is the last."""
    turn_timeout_ms: int = 120_000
    max_errors: int = 3
    """Errors told to the model in one turn (tool errors, refused calls, unreadable replies) before the last completion."""
    max_calls: int = 8
    """Calls of one step; further ones are refused."""
    history_chars: int = 48_000
    """Characters of messages kept after a turn; older whole exchanges are dropped first."""


class TermStarted(msgspec.Struct, frozen=True, array_like=True, tag="t"):
    """First record of a term: what the owner found sealed behind it."""

    term: TermId
    previous: Position
    time_ms: int


class Taken(msgspec.Struct, frozen=True, array_like=True, tag="e"):
    """An event was taken. From here on it is never lost and never taken again."""

    session_id: str
    event: Event
    turn_id: str
    """Id of the turn a `message` causes; empty for other types."""
    limits: Limits
    batch: int
    """The micro-batch that handed it over; -1 for run-ahead."""
    time_ms: int
    repeat: bool = False
    """The producer sent this `event_id` before in this session: recorded, without effect."""
    ttl_ms: int = 0
    """How long the session is kept without activity from now on; 0: for ever. Fixed here, so that a fold needs no setting."""
    effect: str = ""
    """Of an approval: `taken` (it decided), `kept` (its call does not wait yet) or `stale` (too late). Else empty."""


class Rejected(msgspec.Struct, frozen=True, array_like=True, tag="x"):
    """A row that is no event, or one that cannot be served: it goes to the dead letters."""

    coordinates: Coordinates
    session_id: str
    """Empty when the row has none."""
    reason: str
    raw: bytes
    """The row's bytes, cut to the setting `intake.dead_letter_bytes`."""
    raw_bytes: int
    """The row's full size."""
    batch: int
    time_ms: int


class PlannedCall(msgspec.Struct, frozen=True, array_like=True):
    """A call as the completion asked for it, with the decision whether it may run."""

    id: str
    name: str
    arguments: JsonObject
    refusal: str = ""
    """Why it does not run (unknown tool, invalid arguments, too many): told to the model instead of a result."""
    approve_by_ms: int = 0
    """It runs only once somebody approves it, and is denied if nobody has by then; 0: it needs no approval."""


class Completed(msgspec.Struct, frozen=True, array_like=True, tag="m"):
    """The model answered step `step`; the parsed calls are part of the fact and are never derived again."""

    session_id: str
    turn_id: str
    step: int
    """0-based."""
    content: str
    reasoning: str
    calls: tuple[PlannedCall, ...]
    errors: tuple[str, ...]
    truncated: bool
    final: bool
    """It was made without tools, so its content is the answer."""
    usage: Usage
    time_ms: int
    failure: str = ""
    """Non-empty when the model gave no completion at all: the reason, as `kind: sentence`."""


class UndoPlan(msgspec.Struct, frozen=True, array_like=True):
    """How a call is undone."""

    tool: str
    arguments: dict[str, str]
    """By name, where each comes from: `/arguments/...` of the call or `/result/...`, as a JSON pointer without escapes."""


class Intent(msgspec.Struct, frozen=True, array_like=True, tag="i"):
    """A call is about to be sent. Durable before the first byte leaves."""

    session_id: str
    call_id: str
    arguments: JsonObject
    policy: str
    """What a later owner does when it finds this without a result: `idempotent` (send it again under the same key),
    `reconcile` (ask the tool what became of it) or `unknown` (nothing; the model is told that nobody knows)."""
    deadline_ms: int
    time_ms: int
    undo: UndoPlan | None = None
    undoes: str = ""
    """Of an undo: the id of the call that it undoes; `call_id` is its own."""


class Returned(msgspec.Struct, frozen=True, array_like=True, tag="r"):
    """The result of a call. Once durable, the call is finished and never runs again."""

    session_id: str
    call_id: str
    status: str
    """`ok`, `error` (the tool said so), `timeout`, `unknown` (under way when its owner died), `refused` and
    `denied` (never sent; `denied` by somebody), `not_run` (the tool says that it never saw the call and will never run it)."""
    content: str
    attempts: int
    time_ms: int
    undoes: str = ""
    """Of an undo: the id of the call that it undoes; `call_id` is its own."""


class Overdue(msgspec.Struct, frozen=True, array_like=True, tag="d"):
    """The turn's wall-clock limit has passed."""

    session_id: str
    turn_id: str
    time_ms: int


class Resumed(msgspec.Struct, frozen=True, array_like=True, tag="n"):
    """A new owner goes on with an open turn. Durable before anything of the turn runs again, so that deaths are counted."""

    session_id: str
    turn_id: str
    times: int
    """The how manieth resumption of the turn this is, from 1."""
    time_ms: int


class Lapsed(msgspec.Struct, frozen=True, array_like=True, tag="l"):
    """Nobody has approved or denied the call by its deadline: it is denied."""

    session_id: str
    turn_id: str
    call_id: str
    time_ms: int


class CallSummary(msgspec.Struct, frozen=True, array_like=True):
    """A call as the outcome and the audit show it."""

    id: str
    name: str
    arguments: JsonObject
    status: str
    content: str
    step: int
    attempts: int
    sent_ms: int
    """0 when it was never sent."""
    done_ms: int


class UndoSummary(msgspec.Struct, frozen=True, array_like=True):
    """An undo as the outcome shows it."""

    call_id: str
    """Of the call that it undoes."""
    id: str
    tool: str
    arguments: JsonObject
    status: str
    """`ok`: undone. Else as of calls; `not_run`: not tried, because nobody knows whether there is something to undo."""
    content: str
    sent_ms: int
    done_ms: int


class Outcome(msgspec.Struct, frozen=True, array_like=True, tag="o"):
    """What a turn produced. Exactly one per message event."""

    session_id: str
    turn_id: str
    coordinates: Coordinates
    event_id: str
    status: str
    """`completed`, `failed` or `cancelled`."""
    reason: str
    """Empty when completed; else a kind and a sentence: `deadline: ...`."""
    reply: str
    truncated: bool
    steps: int
    calls: tuple[CallSummary, ...]
    usage: Usage
    event_ts_ms: int
    taken_ms: int
    time_ms: int
    metadata: JsonObject = {}
    audit_head: str = ""
    """The newest hash of the session's audit chain before this turn's calls (`agent.audit`); empty when it begins here."""
    undos: tuple[UndoSummary, ...] = ()
    """Of a turn that failed or was cancelled, in the order they were made."""


class PublishedEarly(msgspec.Struct, frozen=True, array_like=True, tag="p"):
    """A sink has confirmed outcomes that the host sent it as soon as they were durable: no batch sends them again."""

    lsns: tuple[int, ...]
    """Of the outcomes' records in this journal."""
    time_ms: int


class Expired(msgspec.Struct, frozen=True, array_like=True, tag="z"):
    """A session was idle for its whole time to live: nothing is kept of it. Void while a turn is open or queued."""

    session_id: str
    active_ms: int
    """Time of its last record before this."""
    ttl_ms: int
    turns: int
    calls: int
    created_ms: int
    time_ms: int
    final: bool = False
    """The setting `sink.expired` asked for a row about it."""
    messages: tuple[Message, ...] = ()
    """Its history, for that row; empty without it."""
    memory: JsonObject = {}


ShardRecord = TermStarted | Rejected | PublishedEarly
"""Records of no session."""
SessionRecord = Taken | Completed | Intent | Returned | Overdue | Outcome | Resumed | Lapsed | Expired
"""Records that belong to one session and are folded into its AgentState."""
Record = ShardRecord | SessionRecord

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Record)


def encode(record: Record) -> bytes:
    """Msgpack bytes of one record."""
    return _encoder.encode(record)


def decode(data: bytes | memoryview) -> Record:
    """The record behind `data`. Raises `msgspec.MsgspecError` if it is none."""
    return _decoder.decode(data)

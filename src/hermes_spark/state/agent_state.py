"""AgentState: all that is kept for one session. A value: changed only by `agent.turn.apply`, one record at a time."""

from __future__ import annotations

import msgspec

from hermes_spark.errors import StateError
from hermes_spark.events import Coordinates, ToolChoice
from hermes_spark.messages import JsonObject, Message, Usage
from hermes_spark.state.records import Limits, Taken, UndoPlan

SCHEMA_VERSION = 1
"""Stored with every state. Raised when an older program would misread a state; a field appended with a default needs none."""

WAITING, NEW, SENT, DONE = "waiting", "new", "sent", "done"


class CallState(msgspec.Struct, frozen=True, array_like=True):
    """One tool call of an open turn."""

    id: str
    name: str
    arguments: JsonObject
    step: int
    status: str = NEW
    """`waiting` (for an approval), `new` (wanted), `sent` (its intent is recorded), `done` (its result is recorded, or it was
    refused or denied)."""
    result: str = ""
    """One that `records.Returned` lists; empty until done."""
    content: str = ""
    policy: str = ""
    """Of its intent: what a new owner does when it finds the call sent and without a result."""
    attempts: int = 0
    sent_ms: int = 0
    done_ms: int = 0
    approve_by_ms: int = 0
    """Until when somebody must have approved it; 0: it needs no approval."""
    undo: UndoPlan | None = None
    """Of its intent."""


class UndoState(msgspec.Struct, frozen=True, array_like=True):
    """The undo of a call of an open turn that ends without an answer."""

    call_id: str
    """Of the call that it undoes."""
    id: str
    tool: str
    arguments: JsonObject
    status: str = SENT
    """`sent` or `done`."""
    result: str = ""
    content: str = ""
    sent_ms: int = 0
    done_ms: int = 0


class Turn(msgspec.Struct, frozen=True, array_like=True):
    """The open turn of a session."""

    id: str
    coordinates: Coordinates
    event_id: str
    event_ts_ms: int
    taken_ms: int
    limits: Limits
    tools: ToolChoice
    metadata: JsonObject = {}
    step: int = 0
    """Completions made so far."""
    calls: tuple[CallState, ...] = ()
    """Calls of the current step, in call order; empty between steps."""
    past_calls: tuple[CallState, ...] = ()
    notes: tuple[str, ...] = ()
    """Errors of the current step to be told to the model after its results."""
    errors: int = 0
    cuts: int = 0
    """Completions that were cut and thrown away."""
    thinking: bool = True
    """Off after a reply whose thinking used up its whole length."""
    usage: Usage = Usage()
    reply: str | None = None
    truncated: bool = False
    stopping: str = ""
    """Why the turn ends without an answer: `cancelled: ...`, `deadline: ...`, `model_...: ...`; empty while it runs."""
    resumptions: int = 0
    """How often a new owner went on with it."""
    resumptions_before: int = 0
    """Of these, how many lie before its last progress."""
    began_ms: int = 0
    """When it was opened."""
    paused_ms: int = 0
    """How long its wall clock stood still: waiting for approvals, or without an owner."""
    waiting_since_ms: int = 0
    """Since when nothing of it can go on without an approval; 0: it runs."""
    undos: tuple[UndoState, ...] = ()
    """In the order they were begun."""


class Queued(msgspec.Struct, frozen=True, array_like=True):
    """An event that waits for its turn."""

    taken: Taken
    stopping: str = ""
    """Set by a `cancel` that came while it waited."""


class Decision(msgspec.Struct, frozen=True, array_like=True):
    """What an approval event said about a call."""

    turn_id: str
    call_id: str
    approve: bool
    by: str
    reason: str


class AgentState(msgspec.Struct, frozen=True, array_like=True):
    """All that is kept for one session."""

    session_id: str
    messages: tuple[Message, ...] = ()
    """History and, at its end, the messages of the open turn. Always renders."""
    tools: ToolChoice = None
    """The tools the latest message event asked for; None means all that are registered."""
    memory: JsonObject = {}
    turn: Turn | None = None
    queue: tuple[Queued, ...] = ()
    seen_event_ids: tuple[str, ...] = ()
    """The newest producer event ids (at most 256), to drop the producer's repeats."""
    turns: int = 0
    calls: int = 0
    created_ms: int = 0
    updated_ms: int = 0
    """Time of its last record: its last activity."""
    schema_version: int = SCHEMA_VERSION
    ttl_ms: int = 0
    """How long it is kept after `updated_ms` without activity, as its newest event says; 0: for ever."""
    session_ttl_ms: int | None = None
    """What events of this session mean that name no time to live themselves; None: the setting."""
    audit_head: str = ""
    """The newest hash of the session's audit chain (`agent.audit`); empty before its first call."""
    decisions: tuple[Decision, ...] = ()
    """Decisions that came before their calls waited; at most `agent.approvals.KEPT_DECISIONS`."""
    ended_turns: tuple[str, ...] = ()
    """Ids of the newest ended turns, to tell a late approval from an early one."""

    @property
    def idle(self) -> bool:
        """True when nothing is open and nothing waits."""
        return self.turn is None and not self.queue

    @property
    def deadline_ms(self) -> int | None:
        """When it expires if nothing happens until then; None: never, or not as long as a turn is open or queued."""
        return self.updated_ms + self.ttl_ms if self.idle and self.ttl_ms else None

    @property
    def waiting(self) -> bool:
        """True when the open turn can only go on once somebody approves or denies a call."""
        return self.turn is not None and self.turn.waiting_since_ms > 0


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AgentState)


def encode_state(state: AgentState) -> bytes:
    """Msgpack bytes of one state."""
    return _encoder.encode(state)


def decode_state(data: bytes) -> AgentState:
    """The state behind `data`, of this or an earlier version.

    Raises `msgspec.MsgspecError` if it is none, and `StateError` if a later version of this program stored it.
    """
    return checked_version(_decoder.decode(data))


def checked_version(state: AgentState) -> AgentState:
    """`state`, as one of this version. Raises `StateError` if it is of a later one."""
    if state.schema_version == SCHEMA_VERSION:
        return state
    if state.schema_version > SCHEMA_VERSION:
        raise StateError(
            f"Session {state.session_id!r} was stored with schema version {state.schema_version}, and this program reads up "
            f"to {SCHEMA_VERSION}; run the version that stored it, or a newer one."
        )
    return msgspec.structs.replace(state, schema_version=SCHEMA_VERSION)

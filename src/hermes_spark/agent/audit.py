"""The audit chain of a session: every call of its outcomes in order, each hashed together with the hash before it. Pure.

Whoever changes, removes or inserts a published call would have to change every later hash of the session too, and those are
known elsewhere: each outcome in the journal says which hash comes before it, and the AgentState keeps the newest one. The
journal itself is chained by its bytes, and every commit holds the heads of those chains (`records.Position`). A session that
begins anew, because nothing was kept of it, begins its chain anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from hermes_spark.state.records import CallSummary, Outcome


def link(previous: str, session_id: str, turn_id: str, fields: Sequence[str | int]) -> str:
    """The hash (32 hex digits) of a call with these `fields` that follows the call with the hash `previous` (empty: none)."""
    h = hashlib.blake2b(digest_size=16)
    for field in (previous, session_id, turn_id, *fields):
        data = str(field).encode()
        h.update(len(data).to_bytes(4, "big"))  # joined texts collide
        h.update(data)
    return h.hexdigest()


def fields_of(call: CallSummary) -> tuple[str | int, ...]:
    """What of a call is hashed, as it is published: arguments as JSON, times in milliseconds, 0 for one that never came."""
    arguments = msgspec.json.encode(call.arguments).decode()
    return (
        call.id,
        call.name,
        arguments,
        call.status,
        call.content,
        call.step,
        call.attempts,
        call.sent_ms,
        call.done_ms,
    )


def hashes(outcome: Outcome) -> tuple[str, ...]:
    """The hash before the outcome's first call, then that of every call: one more than there are calls."""
    chain = [outcome.audit_head]
    for call in outcome.calls:
        chain.append(link(chain[-1], outcome.session_id, outcome.turn_id, fields_of(call)))
    return tuple(chain)

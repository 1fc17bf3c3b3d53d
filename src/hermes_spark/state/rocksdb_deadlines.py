"""The index of deadlines inside a RocksDB of sessions: one entry per session that has a deadline, written with the session.

Keys are `d:` + 8 bytes of the deadline + UTF-8 id, in the order of their time, and `e:` + UTF-8 id -> the 8 bytes, which says
where a session stands. Both sort before the store's own keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice

import rocksdict

_DUE = b"d:"
_PLACE = b"e:"
_BYTES = 8


class Deadlines:
    """Reads and changes the index of one open database. Its errors are RocksDB's."""

    def __init__(self, db: rocksdict.Rdict) -> None:
        self._db = db
        self._first = _DUE
        """No entry lies before this key. A search from here meets no heap of deleted ones, which RocksDB keeps a while."""

    def change(self, batch: rocksdict.WriteBatch, session_ids: Iterable[str], deadlines: Mapping[str, int]) -> None:
        """Add to `batch` what lets each session stand in the index with its new deadline only, or not at all."""
        encoded = [session_id.encode() for session_id in session_ids]
        before = self._db.get([_PLACE + session for session in encoded]) if encoded else []
        new = {session_id.encode(): _time(deadline) for session_id, deadline in deadlines.items()}
        for session, old in zip(encoded, before, strict=True):
            time = new.get(session)
            if old == time:
                continue
            if old is not None:
                batch.delete(_DUE + old + session)
            if time is None:
                batch.delete(_PLACE + session)
            else:
                batch.put(_DUE + time + session, b"")
                batch.put(_PLACE + session, time)
                self._first = min(self._first, _DUE + time)

    def due(self, now_ms: int, limit: int) -> list[tuple[int, str]]:
        """The first `limit` (deadline, session id) pairs with a deadline of at most `now_ms`."""
        end = _DUE + _time(now_ms + 1)
        if limit <= 0 or self._first >= end:
            return []
        bounded = rocksdict.ReadOptions()
        # Else a search without a hit walks over all that was ever deleted behind it.
        bounded.set_iterate_upper_bound(end)
        keys = list(islice(self._db.keys(from_key=self._first, read_opt=bounded), limit))
        self._first = keys[0] if keys else end
        return [_entry(key) for key in keys]


def _entry(key: bytes) -> tuple[int, str]:
    place = len(_DUE) + _BYTES
    return int.from_bytes(key[len(_DUE) : place], "big"), key[place:].decode()


def _time(milliseconds: int) -> bytes:
    return milliseconds.to_bytes(_BYTES, "big")

"""The driver's own log: one record per micro-batch, written once, that says what the batch stands for.

Objects in the state's storage::

    meta.json            format, query id, shard count, routing version: written once, compared at every start
    origin.json          Kafka only: the topic's id and where its partitions began, written once before the first batch
    commits/<batch>.json batch N = these source offsets + these journal positions; the commit point

Whatever a put answers, the stored record is read back and counts.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from typing import TypeVar

import msgspec

from hermes_spark.errors import CheckpointMismatch, StateError
from hermes_spark.events import ROUTING_VERSION
from hermes_spark.state.objects import Objects
from hermes_spark.state.records import Position

T = TypeVar("T")

FORMAT = 1
KEPT_COMMITS = 100
"""Commits kept behind the newest, as many as Spark keeps of its own (`spark.sql.streaming.minBatchesToRetain`)."""


_ORIGIN = "origin.json"
_CHECK = re.compile(rb',"check":"([0-9a-f]{16})"}$')


class Meta(msgspec.Struct, frozen=True):
    """What a state directory is, fixed at its first start."""

    format: int
    query_id: str
    shards: int
    routing: int


class Origin(msgspec.Struct, frozen=True):
    """The topic that a checkpoint reads, and where it began to."""

    topic: str
    topic_id: str
    starts: dict[int, int]
    """The first offset to take, by partition; partitions that came later begin at 0."""


class Commit(msgspec.Struct, frozen=True):
    """Batch N: everything up to `positions` belongs to batches up to N."""

    batch: int
    epoch: int
    source: str
    """Digest of the source lines of Spark's `offsets/<batch>`."""
    ends: dict[str, int]
    """Offsets taken up to, by partition; empty for sources without offsets."""
    positions: dict[int, Position]
    """By shard."""
    published: dict[int, Position]
    """Where the part that is not yet published begins: outcomes in (published, positions] are unpublished before N."""
    publish: bool
    """Whether N publishes them. A choice that is recorded, so that a replay of N publishes the same rows."""
    taken: int
    skipped: int
    time_ms: int
    settled: dict[int, Position] | None = None
    """Up to where Kafka has every outcome, or will not be sent it again, before N; None: as `published`."""
    early: bool = False
    """Whether the outcomes since the last publishing commit are left to the hosts, and N only sends again what those before
    lack."""

    def rest(self) -> dict[int, Position]:
        """Where the unpublished part begins after N."""
        return self.positions if self.publish else self.published

    def settles(self) -> dict[int, Position]:
        """`settled` after N."""
        if not self.publish:
            return self.published if self.settled is None else self.settled
        return self.published if self.early else self.positions


class CommitLog:
    """Reads and writes both kinds of objects."""

    def __init__(self, storage: Objects) -> None:
        self._storage = storage

    def meta(self, shards: int) -> Meta:
        """The state's identity, made at the first start. Raises `CheckpointMismatch` if it does not fit `shards`."""
        fresh = Meta(FORMAT, str(uuid.uuid4()), shards, ROUTING_VERSION)
        if self._storage.get("meta.json") is None:
            if self._storage.list("commits/"):
                raise CheckpointMismatch(
                    "the state holds commits but no meta.json; restore that file from a backup, or start on a new checkpoint"
                )
            self._storage.put_if_absent("meta.json", _encode(fresh))
        meta = _decode(self._storage.get("meta.json"), Meta, "meta.json")
        if meta.format != FORMAT:
            raise CheckpointMismatch(
                f"the state has format {meta.format}, this version reads {FORMAT}; run the version that wrote it"
            )
        if meta.shards != shards:
            raise CheckpointMismatch(
                f"the state was made with {meta.shards} shards and state.shards is {shards}; a checkpoint keeps its shard "
                f"count: set spark.hermes.state.shards={meta.shards}, or start on a new checkpoint"
            )
        if meta.routing != ROUTING_VERSION:
            raise CheckpointMismatch(
                f"the state routes sessions by version {meta.routing}, this program by {ROUTING_VERSION}; "
                "run the version that wrote it"
            )
        return meta

    def last(self) -> Commit | None:
        """The newest commit, or None before the first."""
        keys = self._storage.list("commits/")
        return None if not keys else _decode(self._storage.get(keys[-1]), Commit, keys[-1])

    def identity(self) -> Meta | None:
        """The state's identity as it is stored; None before the first start. For readers: makes and checks nothing."""
        data = self._storage.get("meta.json")
        return None if data is None else _decode(data, Meta, "meta.json")

    def origin(self) -> Origin | None:
        """Where the kafka source began; None if it has not, or the source is another."""
        data = self._storage.get(_ORIGIN)
        return None if data is None else _decode(data, Origin, _ORIGIN)

    def put_origin(self, origin: Origin) -> Origin:
        """Store where the source begins unless that is known, and return what is stored."""
        self._storage.put_if_absent(_ORIGIN, _encode(origin))
        return _decode(self._storage.get(_ORIGIN), Origin, _ORIGIN)

    def batches(self) -> list[int]:
        """The batches whose commit is kept, oldest first."""
        return [int(key.rsplit("/", 1)[1].removesuffix(".json")) for key in self._storage.list("commits/")]

    def of(self, batch: int) -> Commit | None:
        """The commit of a batch, or None if it has none or none any more."""
        data = self._storage.get(_key(batch))
        return None if data is None else _decode(data, Commit, _key(batch))

    def put(self, commit: Commit) -> Commit:
        """Store a commit unless the batch has one, and return what is stored."""
        key = _key(commit.batch)
        self._storage.put_if_absent(key, _encode(commit))
        return _decode(self._storage.get(key), Commit, key)

    def forget(self, batch: int) -> None:
        """Remove the commit that falls out of what is kept when `batch` is the newest."""
        if batch >= KEPT_COMMITS:
            self._storage.delete(_key(batch - KEPT_COMMITS))


def source_digest(source_lines: list[str]) -> str:
    """Digest of what Spark says a batch reads."""
    return hashlib.blake2b("\n".join(source_lines).encode(), digest_size=16).hexdigest()


def check_succession(last: Commit | None, batch: int, source: str) -> None:
    """Batch N must follow the last commit, or be it. Raises `CheckpointMismatch` with what to do otherwise.

    The second case is a replay: Spark wrote no commit of its own although ours was stored. Its offsets must be the ones that
    the stored commit stands for.
    """
    expected = 0 if last is None else last.batch + 1
    if batch == expected:
        return
    if last is None or batch != last.batch:
        ours = "none" if last is None else str(last.batch)
        missing = f" ({_key(batch - 1)} is not there)" if batch > expected else ""
        raise CheckpointMismatch(
            f"Spark's checkpoint is at batch {batch} but the last commit of the state is {ours}{missing}; the two do not "
            "belong together: restore both from the same moment, or start on a new checkpoint"
        )
    if last.source != source:
        raise CheckpointMismatch(
            f"Spark replays batch {batch} with other offsets than the stored commit of that batch stands for; the two do "
            "not belong together: restore both from the same moment, or start on a new checkpoint"
        )


def check_stored(stored: Commit, wanted: Commit) -> None:
    """What is stored counts, but only if it stands for the same rows. Raises `CheckpointMismatch` otherwise."""
    if stored.source != wanted.source:
        raise CheckpointMismatch(
            f"commits/{wanted.batch} was stored by driver {stored.epoch} for other offsets than driver {wanted.epoch} has; "
            "Spark's checkpoint is used by two jobs, or was replaced: give each job a checkpoint of its own"
        )


def _key(batch: int) -> str:
    return f"commits/{batch:012d}.json"


def _encode(value: msgspec.Struct) -> bytes:
    """JSON that ends with a digest of itself: a flipped bit can leave JSON that reads well and says something else."""
    body = msgspec.json.encode(value)
    return body[:-1] + f',"check":"{_digest(body)}"}}'.encode()


def _digest(body: bytes) -> str:
    return hashlib.blake2b(body, digest_size=8).hexdigest()


def _decode(data: bytes | None, kind: type[T], key: str) -> T:
    if data is None:
        raise StateError(f"{key} was there a moment ago and is gone; something else deletes files of the state")
    # An object without a digest is an older version's, or its damage lies in the digest's name: its content can be read.
    check = _CHECK.search(data)
    body = data if check is None else data[: check.start()] + b"}"
    try:
        value = msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as exc:
        raise _damaged(key, str(exc)) from None
    if check is not None and check[1].decode() != _digest(body):
        raise _damaged(key, "its content is not what was written")
    return value


def _damaged(key: str, why: str) -> StateError:
    return StateError(f"{key} is damaged ({why}); restore it from a backup, or start on a new checkpoint")

"""Snapshots of a shard: all its sessions at one position of its journal, so that a restart reads the journal from there only.

Objects in the state's storage::

    snapshots/<shard>/<lsn>-<term>.json     the manifest, written last: position, files, sizes, checksums
    snapshots/<shard>/files/<digest>.sst    a table of RocksDB: never changes, stored once, shared by snapshots
    snapshots/<shard>/files/<lsn>-...       everything else of one snapshot

A snapshot is the store's checkpoint, and beside it the sessions that the store does not hold at that position, open turns
above all, and what the shard remembers besides. Nothing is believed on its own: the manifest ends with a checksum of itself,
every file is compared with size and checksum before it is used, and the position must lie on the journal's chain.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from hermes_spark import faults
from hermes_spark.errors import SnapshotDamaged
from hermes_spark.state.journal_files import term_name
from hermes_spark.state.objects import Objects
from hermes_spark.state.records import Position
from hermes_spark.state.storage import storage_errors

FORMAT = 1
_STATES = "states"
"""The file that is not the store's."""


class ShardMemory(msgspec.Struct, frozen=True, array_like=True):
    """What a shard remembers besides its sessions."""

    now_ms: int = 0
    """Time of its last record."""
    next: dict[str, int] | None = None
    """The next offset it takes of each partition; None for a source without offsets."""
    batch: int = -1
    ids: tuple[tuple[str, int], ...] = ()
    """(partition, offset) of what it took in that batch; of sources without offsets."""
    held: dict[str, tuple[str, int]] = {}
    """Bytes of events whose turn has not ended, by turn id."""


class Contents(msgspec.Struct, frozen=True, array_like=True):
    """What a snapshot holds beside the store's checkpoint."""

    memory: ShardMemory
    states: tuple[bytes, ...]
    """Encoded AgentStates that go before those of the store."""
    gone: tuple[str, ...] = ()
    """Sessions that the store may still hold and that are no more."""


class StoredFile(msgspec.Struct, frozen=True):
    """One file of a snapshot."""

    name: str
    """Its path in the checkpoint."""
    stored: str
    """Its name under `files/`."""
    bytes: int
    digest: str
    """Blake2b-128 of its bytes, in hex."""


class Manifest(msgspec.Struct, frozen=True):
    """One snapshot."""

    shard: int
    position: Position
    files: tuple[StoredFile, ...]
    time_ms: int
    format: int = FORMAT


class ShardSnapshots:
    """The snapshots of one shard. Used by one thread at a time; several processes may use the same shard's."""

    def __init__(self, objects: Objects, shard: int) -> None:
        self._objects = objects
        self._shard = shard
        self._folder = f"snapshots/{shard:04d}"
        self._tables: dict[str, StoredFile] = {}
        """Tables of the local store that are stored already, by their path in it."""
        self._verified: set[StoredFile] = set()

    def write(self, checkpoint: Path, contents: Contents, position: Position, now_ms: int) -> Manifest:
        """Store the files of a directory and `contents` as the snapshot at `position`, and remove what no snapshot uses.

        Raises `StorageFull` or `StateError`; then there is no such snapshot.
        """
        there = set(self._objects.list(f"{self._folder}/files"))
        with storage_errors(checkpoint):
            files = [
                self._store(path.relative_to(checkpoint).as_posix(), path, position, there)
                for path in sorted(checkpoint.rglob("*"))
                if path.is_file()
            ]
        files.append(self._put(_STATES, msgspec.msgpack.encode(contents), position))
        manifest = Manifest(self._shard, position, tuple(files), now_ms)
        faults.point("snapshot.before_manifest")
        text = msgspec.json.encode(manifest)
        self._objects.put(f"{self._folder}/{_name(position)}.json", text + b"\n" + _digest(text).encode() + b"\n")
        faults.point("snapshot.after_manifest")
        self._sweep()
        return manifest

    def newest_first(self) -> list[str]:
        """The keys of the manifests, newest first."""
        keys = self._objects.list(self._folder)
        return [
            key for key in reversed(keys) if key.endswith(".json") and key.count("/") == self._folder.count("/") + 1
        ]

    def load(self, key: str) -> Manifest:
        """The manifest under `key`. Raises `SnapshotDamaged` when it is not whole, not of this shard or format, or gone."""
        data = self._objects.get(key)
        if data is None:
            raise SnapshotDamaged(f"{key} is gone")
        text, _, rest = data.partition(b"\n")
        if rest != _digest(text).encode() + b"\n":
            raise SnapshotDamaged(f"{key} does not have its checksum")
        try:
            manifest = msgspec.json.decode(text, type=Manifest)
        except msgspec.MsgspecError as exc:
            raise SnapshotDamaged(f"{key} cannot be read ({exc})") from None
        place = self._shard, FORMAT, f"{self._folder}/{_name(manifest.position)}.json"
        if (manifest.shard, manifest.format, key) != place:
            raise SnapshotDamaged(f"{key} belongs to another shard or position, or has another format")
        return manifest

    def restore(self, manifest: Manifest, directory: Path) -> Contents:
        """Write the store's files into a new directory, each compared first, and return the rest.

        Raises `SnapshotDamaged` when a file is missing or not what the manifest says, `StorageFull`, `StateError`.
        """
        contents: Contents | None = None
        for file in manifest.files:
            data = self._checked(file)
            if file.name == _STATES:
                contents = _decoded(data, file)
                continue
            target = directory / file.name
            with storage_errors(target):
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
        if contents is None:
            raise SnapshotDamaged(f"the snapshot at record {manifest.position.lsn} names no file of states")
        self._tables = {file.name: file for file in manifest.files if file.name.endswith(".sst")}
        return contents

    def verify(self, manifest: Manifest) -> None:
        """Compare every file with the manifest, those compared earlier excepted. Raises `SnapshotDamaged`, `StateError`."""
        there = set(self._objects.list(f"{self._folder}/files"))
        for file in manifest.files:
            if file not in self._verified or self._key(file) not in there:
                self._checked(file)
        self._verified = {file for file in self._verified if self._key(file) in there} | set(manifest.files)

    def forget(self, key: str) -> None:
        """Remove a manifest; its files go when the owner writes its next snapshot."""
        self._objects.delete(key)

    def _store(self, name: str, path: Path, position: Position, there: set[str]) -> StoredFile:
        known = self._tables.get(name)
        if known is not None and known.bytes == path.stat().st_size and self._key(known) in there:
            return known
        file = self._put(name, path.read_bytes(), position)
        if name.endswith(".sst"):
            self._tables[name] = file
        return file

    def _put(self, name: str, data: bytes, position: Position) -> StoredFile:
        digest = _digest(data)
        # Only tables are shared: what is small is stored again, so that no damage to it concerns two snapshots.
        stored = f"{digest}.sst" if name.endswith(".sst") else f"{_name(position)}-{digest}"
        file = StoredFile(name, stored, len(data), digest)
        self._objects.put(self._key(file), data)
        return file

    def _checked(self, file: StoredFile) -> bytes:
        data = self._objects.get(self._key(file))
        if data is None:
            raise SnapshotDamaged(f"{self._key(file)} is missing")
        if len(data) != file.bytes or _digest(data) != file.digest:
            raise SnapshotDamaged(f"{self._key(file)} is damaged: it has not the size and checksum it was stored with")
        return data

    def _sweep(self) -> None:
        """Remove files that no whole manifest names. Only the owner does this, after its own manifest."""
        used = {self._key(file) for manifest in self._whole() for file in manifest.files}
        for key in self._objects.list(f"{self._folder}/files"):
            if key not in used:
                self._objects.delete(key)

    def _whole(self) -> Iterator[Manifest]:
        for key in self.newest_first():
            try:
                yield self.load(key)
            except SnapshotDamaged:
                continue

    def _key(self, file: StoredFile) -> str:
        return f"{self._folder}/files/{file.stored}"


def _decoded(data: bytes, file: StoredFile) -> Contents:
    try:
        return msgspec.msgpack.decode(data, type=Contents)
    except msgspec.MsgspecError as exc:
        raise SnapshotDamaged(f"{file.stored} cannot be read ({exc}); another version wrote it") from None


def _name(position: Position) -> str:
    return f"{position.lsn:016d}-{term_name(position.term)}"


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()

"""The store of AgentStates in RocksDB: one directory per shard, held open by the shard's owner.

It is a cache of the journal, so it runs without RocksDB's own log: what was not flushed to a table file when the process dies
is lost, always from the newest write backwards, and the position is written in the same batch as the data. Whatever survives
is therefore the state at the position that survives with it. `close` flushes.

Session ids are stored under `s:` + UTF-8, the position under `p`, so that no session id can touch it.
"""

from __future__ import annotations

import os
import shutil
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec
import rocksdict

from hermes_spark.errors import CheckpointMismatch, StateError
from hermes_spark.events import ROUTING_VERSION
from hermes_spark.state.records import Position
from hermes_spark.state.storage import FULL, make_directory, storage_error, storage_errors, sync_directory, write_synced

FORMAT = 1
_MANIFEST = "hermes.json"
_POSITION = b"p"
_SESSION = b"s:"
_MEMORY_PROPERTIES = {
    "memtable_bytes": "rocksdb.size-all-mem-tables",
    "table_readers_bytes": "rocksdb.estimate-table-readers-mem",
    "block_cache_bytes": "rocksdb.block-cache-usage",
    "block_cache_pinned_bytes": "rocksdb.block-cache-pinned-usage",
    "sst_file_bytes": "rocksdb.total-sst-files-size",
}
_decode_position = msgspec.msgpack.Decoder(Position).decode


class RocksMemory:
    """The memory that all shards of one process share: one cache, and the write buffers charged to it.

    Created in the process that uses it, after any fork.
    """

    def __init__(self, block_cache_bytes: int, write_buffer_bytes: int) -> None:
        self.write_buffer_bytes = write_buffer_bytes
        self.cache = rocksdict.Cache(block_cache_bytes + write_buffer_bytes)
        # No stalls: a full buffer is flushed by the shard that writes next, and its owner's loop must not stand still for it.
        self.write_buffers = rocksdict.WriteBufferManager.new_write_buffer_manager_with_cache(
            buffer_size=write_buffer_bytes, allow_stall=False, cache=self.cache
        )


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`hermes.json` beside the database: what it was written with. RocksDB itself opens a wrong one silently."""

    shards: int
    """Shard count of the checkpoint."""
    format: int = FORMAT
    raw_mode: bool = True
    """Keys and values are plain bytes, not rocksdict's typed form."""
    routing: int = ROUTING_VERSION
    """Version of the hash that maps sessions to shards."""


class RocksStore:
    """`state.store.StateStore` in RocksDB under `path` (created). Used by one thread at a time; not to be carried over a fork.

    Raises `CheckpointMismatch` when the directory was written with another format, routing or shard count, `StateError` when
    another owner holds it or RocksDB refuses it, `StorageFull`.
    """

    def __init__(self, path: Path, *, shared: RocksMemory, shards: int, max_open_files: int = 64) -> None:
        self._path = path
        self._shared = shared
        """Kept alive as long as the database uses it."""
        self._open_items: weakref.WeakSet[_Items] = weakref.WeakSet()
        with storage_errors(path):
            _check_manifest(path, Manifest(shards))
        self._without_log = rocksdict.WriteOptions()
        self._without_log.disable_wal = True
        self._closed = False
        self._checkpointing = threading.Lock()
        with _rocks_errors(path):
            self._db = rocksdict.Rdict(str(path / "db"), _options(shared, max_open_files))

    def get(self, session_id: str) -> bytes | None:
        """The stored bytes, or None."""
        with _rocks_errors(self._path):
            data: bytes | None = self._db.get(_SESSION + session_id.encode())
        return data

    def write(self, changes: Mapping[str, bytes | None], position: Position) -> None:
        """Put or delete all of `changes` and set the position, in one write batch."""
        batch = rocksdict.WriteBatch(raw_mode=True)
        for session_id, data in changes.items():
            key = _SESSION + session_id.encode()
            if data is None:
                batch.delete(key)
            else:
                batch.put(key, data)
        batch.put(_POSITION, msgspec.msgpack.encode(position))
        with _rocks_errors(self._path):
            self._db.write(batch, self._without_log)

    def position(self) -> Position:
        """The position of the last `write`; `Position()` when new."""
        with _rocks_errors(self._path):
            data = self._db.get(_POSITION)
        return Position() if data is None else _decode_position(data)

    def items(self) -> Iterator[tuple[str, bytes]]:
        """All pairs in the order of the ids' UTF-8 bytes, as of the call.

        Raises `StateError` when the store is closed before the end is reached.
        """
        with _rocks_errors(self._path):
            items = _Items(self._path, self._db.items(from_key=_SESSION))
        self._open_items.add(items)
        return items

    def memory(self) -> dict[str, int]:
        """Bytes by use, for metrics. The block cache is the process's, the same in every shard's figures."""
        with _rocks_errors(self._path):
            return {name: self._db.property_int_value(key) or 0 for name, key in _MEMORY_PROPERTIES.items()}

    def checkpoint(self, directory: Path) -> None:
        """Flush, then link (on another file system: copy) all files of this moment into a new directory, for any thread."""
        with self._checkpointing:
            with storage_errors(directory):
                make_directory(directory)
                shutil.copyfile(self._path / _MANIFEST, directory / _MANIFEST)
            with _rocks_errors(self._path):
                # First the flush, which lets other threads run: the checkpoint itself does not, and would flush.
                self._db.flush()
                rocksdict.Checkpoint(self._db).create_checkpoint(str(directory / "db"))
            with storage_errors(directory):
                for path in (directory / "db").iterdir():
                    # The log is never written to, and the options are given when the store is opened.
                    if path.suffix == ".log" or path.name.startswith("OPTIONS"):
                        path.unlink()

    def close(self) -> None:
        """Flush and release files and lock, after a checkpoint that is under way. Safe to call twice."""
        with self._checkpointing:
            self._close()

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        # RocksDB holds its lock as long as an iterator lives.
        for items in list(self._open_items):
            items.end()
        with _rocks_errors(self._path):
            self._db.close()


class _Items:
    """Iterates over the states as of its making, and lets go of it at the end, or when the store is closed."""

    def __init__(self, path: Path, pairs: Iterator[tuple[bytes, bytes]]) -> None:
        self._path = path
        self._pairs: Iterator[tuple[bytes, bytes]] | None = pairs

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        return self

    def __next__(self) -> tuple[str, bytes]:
        if self._pairs is None:
            raise StateError(f"{self._path} was closed while its sessions were read; open it and read them again.")
        with _rocks_errors(self._path):
            key, data = next(self._pairs)
        return key[len(_SESSION) :].decode(), data

    def end(self) -> None:
        self._pairs = None


def _options(shared: RocksMemory, max_open_files: int) -> rocksdict.Options:
    table = rocksdict.BlockBasedOptions()
    table.set_block_cache(shared.cache)
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    table.set_bloom_filter(bits_per_key=10, block_based=False)
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(create_if_missing=True)
    options.set_block_based_table_factory(table)
    options.set_write_buffer_manager(shared.write_buffers)
    # The manager makes shards flush when all together reach its size. While the disk lags behind, a shard holds two buffers of
    # this size at most, and its writes wait then.
    options.set_write_buffer_size(max(shared.write_buffer_bytes // 8, 1 << 20))
    options.set_max_open_files(max_open_files)
    options.set_compression_type(rocksdict.DBCompressionType.lz4())
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(1 << 20)
    options.set_stats_dump_period_sec(0)
    return options


def _check_manifest(path: Path, wanted: Manifest) -> None:
    """Write the manifest of a new directory, or compare that of an old one. Raises `CheckpointMismatch`, `OSError`."""
    remedy = "set the same shard count as before, or delete the directory, which is rebuilt from the journal"
    file = path / _MANIFEST
    if not file.exists():
        if (path / "db").exists():
            raise CheckpointMismatch(f"{path} holds a database without hermes.json; {remedy}.")
        make_directory(path)
        staged = path / "hermes.json.new"
        staged.unlink(missing_ok=True)
        write_synced(staged, msgspec.json.encode(wanted))
        staged.rename(file)
        sync_directory(path)
        return
    try:
        found = msgspec.json.decode(file.read_bytes(), type=Manifest)
    except msgspec.MsgspecError as error:
        raise CheckpointMismatch(f"{file} cannot be read ({error}); {remedy}.") from error
    if found != wanted:
        raise CheckpointMismatch(f"{path} was written with {found}, but this job has {wanted}; {remedy}.")


@contextmanager
def _rocks_errors(path: Path) -> Iterator[None]:
    """Translate what rocksdict raises: `DbClosedError`, and otherwise a bare `Exception` with RocksDB's text."""
    try:
        yield
    except rocksdict.DbClosedError as error:
        raise StateError(f"{path} is closed; open it again.") from error
    except Exception as error:
        if type(error) is not Exception:
            raise
        raise _state_error(str(error), path) from error


def _state_error(text: str, path: Path) -> StateError:
    for number in FULL:
        if os.strerror(number) in text:
            return storage_error(OSError(number, text), path)
    if "lock hold by current process" in text or "While lock file" in text:
        return StateError(
            f"{path} is open in another process or shard; one owner at a time may hold it, so end the other one."
        )
    return StateError(f"RocksDB refuses {path} ({text}); delete the directory, which is rebuilt from the journal.")

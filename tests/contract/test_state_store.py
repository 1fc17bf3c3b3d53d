"""One contract for every store of AgentStates, and what only RocksDB must do."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hermes_spark.errors import CheckpointMismatch, StateError, StorageFull
from hermes_spark.state.memory import MemoryStore
from hermes_spark.state.records import Position, TermId
from hermes_spark.state.rocksdb import RocksMemory, RocksStore
from hermes_spark.state.store import StateStore
from journaling import largest_file

TERM = TermId(1, 1)


def at(lsn: int) -> Position:
    return Position(lsn, TERM, f"{lsn:032x}")


def rocks(path: Path, shards: int = 16) -> RocksStore:
    return RocksStore(path, shared=RocksMemory(1 << 20, 8 << 20), shards=shards)


@pytest.fixture(params=["memory", "rocksdb"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StateStore]:
    store: StateStore = MemoryStore() if request.param == "memory" else rocks(tmp_path / "0")
    yield store
    store.close()


def test_a_new_store_is_empty(store: StateStore) -> None:
    assert (store.get("s"), store.position(), list(store.items())) == (None, Position(), [])


def test_a_write_puts_deletes_and_sets_the_position(store: StateStore) -> None:
    store.write({"a": b"1", "b": b"2", "c": b""}, at(5))
    store.write({"a": b"\x00\xff", "b": None, "never": None}, at(7))
    assert [store.get(key) for key in "abc"] == [b"\x00\xff", None, b""]
    assert store.position() == at(7)
    store.write({}, at(9))
    assert store.position() == at(9)


def test_items_come_in_the_order_of_the_bytes_of_their_ids(store: StateStore) -> None:
    ids = ["客户", "b", "a", "ä", "p", "s:", "z" * 256, "\U0001f600", "\uffff", "A", ""]
    store.write({session_id: session_id.encode() for session_id in ids}, at(1))
    expected = sorted(ids, key=str.encode)
    assert list(store.items()) == [(session_id, session_id.encode()) for session_id in expected]


def test_no_session_id_touches_the_position(store: StateStore) -> None:
    store.write({"p": b"x", "": b"y", "position": b"z"}, at(3))
    assert store.position() == at(3)
    store.write({"p": None, "": None, "position": None}, at(4))
    assert (store.position(), list(store.items())) == (at(4), [])


def test_items_are_those_of_the_moment_of_the_call(store: StateStore) -> None:
    store.write({"a": b"1", "b": b"1"}, at(1))
    items = store.items()
    store.write({"a": b"2", "b": None, "c": b"2"}, at(2))
    assert list(items) == [("a", b"1"), ("b", b"1")]


def test_a_checkpoint_is_a_store_of_its_moment(store: StateStore, tmp_path: Path) -> None:
    store.write({"a": b"1", "b": b"2"}, at(5))
    store.write({"b": None}, at(6))
    store.checkpoint(tmp_path / "copies" / "6")
    store.write({"a": b"3", "c": b"3"}, at(7))
    copy = tmp_path / "copies" / "6"
    again = MemoryStore.load(copy) if isinstance(store, MemoryStore) else rocks(copy)
    assert (again.position(), list(again.items())) == (at(6), [("a", b"1")])
    again.write({"d": b"4"}, at(8))
    assert (store.position(), store.get("d")) == (at(7), None)
    again.close()


def test_rocksdb_is_closed_only_after_a_checkpoint_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = rocks(tmp_path / "0")
    store.write({"a": b"1"}, at(1))
    copying, done = threading.Event(), []

    real = shutil.copyfile

    def slowly(source: Path, target: Path, **options: bool) -> None:
        copying.set()
        closing.join(0.2)
        done.append(closing.is_alive())
        real(source, target, **options)

    monkeypatch.setattr(shutil, "copyfile", slowly)
    closing = threading.Thread(target=lambda: copying.wait(10) and store.close())
    closing.start()
    store.checkpoint(tmp_path / "copy")
    closing.join(10)
    assert done == [True]
    assert list(rocks(tmp_path / "copy").items()) == [("a", b"1")]


def test_a_closed_store_says_so_and_may_be_closed_again(store: StateStore) -> None:
    store.write({"a": b"1"}, at(1))
    store.close()
    store.close()
    uses: list[Callable[[], object]] = [
        lambda: store.get("a"),
        lambda: store.write({}, at(2)),
        store.position,
        store.items,
    ]
    for use in uses:
        with pytest.raises(StateError, match="is closed"):
            use()


def test_rocksdb_keeps_its_states_when_closed(tmp_path: Path) -> None:
    first = rocks(tmp_path)
    first.write({"a": b"1", "b": b"2"}, at(5))
    first.close()
    second = rocks(tmp_path)
    assert (second.position(), list(second.items())) == (at(5), [("a", b"1"), ("b", b"2")])
    second.close()


def test_rocksdb_lets_go_of_its_lock_although_somebody_still_iterates(tmp_path: Path) -> None:
    first = rocks(tmp_path)
    first.write({"a": b"1", "b": b"2"}, at(1))
    items = first.items()
    assert next(items) == ("a", b"1")
    first.close()
    with pytest.raises(StateError, match="was closed while"):
        next(items)
    second = rocks(tmp_path)
    assert list(second.items()) == [("a", b"1"), ("b", b"2")]
    second.close()


def test_rocksdb_has_one_owner_at_a_time(tmp_path: Path) -> None:
    first = rocks(tmp_path)
    with pytest.raises(StateError, match=f"{tmp_path} is open in another process or shard"):
        rocks(tmp_path)
    code = (
        "import sys; from pathlib import Path; from hermes_spark.state.rocksdb import *\n"
        "RocksStore(Path(sys.argv[1]), shared=RocksMemory(1 << 20, 1 << 20), shards=16)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False, timeout=60
    )
    assert f"StateError: {tmp_path} is open in another process or shard" in done.stderr
    first.close()
    rocks(tmp_path).close()


def test_rocksdb_refuses_a_directory_of_another_shard_count_or_format(tmp_path: Path) -> None:
    rocks(tmp_path, shards=16).close()
    with pytest.raises(CheckpointMismatch, match=r"shards=16.*but this job has.*shards=8"):
        rocks(tmp_path, shards=8)
    manifest = tmp_path / "hermes.json"
    good = manifest.read_bytes()
    assert good == b'{"shards":16,"format":1,"raw_mode":true,"routing":1}'
    for bad in (good.replace(b"true", b"false"), good.replace(b'"routing":1', b'"routing":2'), b"{", b"{}"):
        manifest.write_bytes(bad)
        with pytest.raises(CheckpointMismatch):
            rocks(tmp_path)
    manifest.unlink()
    with pytest.raises(CheckpointMismatch, match=r"without hermes\.json"):
        rocks(tmp_path)


WRITER = """
import sys
from pathlib import Path
from hermes_spark.state.records import Position, TermId
from hermes_spark.state.rocksdb import RocksMemory, RocksStore

store = RocksStore(Path(sys.argv[1]), shared=RocksMemory(1 << 20, 8 << 20), shards=16)
lsn = store.position().lsn
while True:
    lsn += 1
    value = lsn.to_bytes(8, "big") * 400
    store.write({f"s{n}": value for n in range(10)} | {f"only-{lsn}": b"", f"only-{lsn - 1}": None},
                Position(lsn, TermId(1, 1), f"{lsn:032x}"))
    if lsn % 100 == 0:
        print(lsn, flush=True)
"""


def test_after_sigkill_rocksdb_holds_one_whole_write(tmp_path: Path) -> None:
    reopened_at = 0
    for reported in (600, 1500):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            while int(process.stdout.readline() or reported) < reported:
                pass
            process.kill()
            assert process.wait(timeout=60) == -signal.SIGKILL
        store = rocks(tmp_path)
        lsn, states = store.position().lsn, dict(store.items())
        store.close()
        # One megabyte of memtable is about 30 writes: much was flushed, and what was not is lost as a whole.
        assert lsn > reopened_at
        value = lsn.to_bytes(8, "big") * 400
        assert states == {f"only-{lsn}": b""} | {f"s{n}": value for n in range(10)}
        reopened_at = lsn


def test_rocksdb_on_a_full_disk_says_so(tmp_path: Path) -> None:
    store = rocks(tmp_path)

    def fill() -> None:
        for lsn in range(1, 2000):
            store.write({f"s{lsn}": os.urandom(5000)}, at(lsn))

    with largest_file(20_000), pytest.raises(StorageFull, match=f"No space is left for {tmp_path}; free some"):
        fill()


def test_rocksdb_stays_within_the_memory_that_its_shards_share(tmp_path: Path) -> None:
    shared = RocksMemory(2 << 20, 2 << 20)
    stores = [RocksStore(tmp_path / str(n), shared=shared, shards=4) for n in range(4)]
    for lsn in range(1, 1200):
        for store in stores:
            store.write({f"s{lsn}": os.urandom(5000)}, at(lsn))
    figures = [store.memory() for store in stores]
    assert set(figures[0]) == {
        "memtable_bytes",
        "table_readers_bytes",
        "block_cache_bytes",
        "block_cache_pinned_bytes",
        "sst_file_bytes",
    }
    assert all(found["sst_file_bytes"] > 0 for found in figures)
    # 24 MB were written. At worst the disk lags behind, and every shard holds its two write buffers of 1 MB.
    assert sum(found["memtable_bytes"] for found in figures) < 10 << 20
    for store in stores:
        store.close()

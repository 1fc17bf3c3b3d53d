"""Storage: the same contract on a local directory and on an object store, and what only a local one must do."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import obstore.store
import pytest

from hermes_spark.errors import SettingsError, StateError, StorageFull
from hermes_spark.state.storage import Storage, local_path, make_directory, storage_error
from journaling import largest_file


@pytest.fixture(params=["path", "url", "objects"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "objects":
        return Storage(obstore.store.MemoryStore(), "memory:///")
    root = tmp_path / "check point"
    return Storage.at(str(root) if request.param == "path" else root.as_uri())


def test_only_the_first_put_if_absent_is_stored(storage: Storage) -> None:
    assert storage.get("commits/1.json") is None
    assert storage.put_if_absent("commits/1.json", b"one")
    assert not storage.put_if_absent("commits/1.json", b"two")
    assert storage.get("commits/1.json") == b"one"


def test_put_replaces(storage: Storage) -> None:
    storage.put("meta.json", b"x" * 100)
    storage.put("meta.json", b"y")
    assert storage.get("meta.json") == b"y"
    assert not storage.put_if_absent("meta.json", b"z")


def test_list_gives_sorted_keys_below_whole_segments(storage: Storage) -> None:
    for key in ("commits/10.json", "commits/9.json", "commits/sub/1", "commits-old/1", "sink/batch=3/part-0.parquet"):
        storage.put(key, b"")
    assert storage.list("commits") == storage.list("commits/") == ["commits/10.json", "commits/9.json", "commits/sub/1"]
    assert storage.list("nothing") == []
    assert len(storage.list("")) == 5


def test_delete_removes_and_may_be_repeated(storage: Storage) -> None:
    storage.put("a/b", b"1")
    storage.delete("a/b")
    storage.delete("a/b")
    assert storage.get("a/b") is None
    assert storage.put_if_absent("a/b", b"2")


@pytest.mark.parametrize(
    "key", ["", "/a", "a/", "a//b", "../a", "a/../b", ".staged/x", "a/.b", "a b", "a\n", "a#1", "ä"]
)
def test_a_key_that_could_lead_elsewhere_is_refused(storage: Storage, key: str) -> None:
    uses = (storage.get, storage.delete, lambda k: storage.put(k, b""), lambda k: storage.put_if_absent(k, b""))
    for use in uses:
        with pytest.raises(StateError, match="is no storage key"):
            use(key)


def test_of_many_that_put_at_once_exactly_one_succeeds(storage: Storage) -> None:
    won: list[int] = []
    start = threading.Barrier(8)

    def put(n: int) -> None:
        start.wait(10)
        if storage.put_if_absent("epochs/1.json", str(n).encode() * 1000):
            won.append(n)

    threads = [threading.Thread(target=put, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(won) == 1
    assert storage.get("epochs/1.json") == str(won[0]).encode() * 1000


def test_a_local_object_is_synced_before_it_is_visible_and_its_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = Storage.at(str(tmp_path))
    storage.put("commits/0.json", b"")
    seen: list[tuple[str, bool]] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        seen.append((Path(f"/proc/self/fd/{fd}").readlink().name, (tmp_path / "commits/1.json").exists()))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    storage.put_if_absent("commits/1.json", b"one")
    (_, early), (directory, late) = seen
    assert (early, directory, late) == (False, "commits", True)
    seen.clear()
    make_directory(tmp_path / "new" / "deep")
    assert [name for name, _ in seen] == [tmp_path.name, "new"]


def test_a_local_put_that_fails_leaves_nothing_and_names_the_place(tmp_path: Path) -> None:
    storage = Storage.at(str(tmp_path))
    storage.put("a/b", b"old")
    with largest_file(1000), pytest.raises(StorageFull, match=f"No space is left for {tmp_path}/a/b; free some"):
        storage.put("a/b", b"x" * 5000)
    with largest_file(1000), pytest.raises(StorageFull):
        storage.put_if_absent("a/c", b"x" * 5000)
    assert (storage.get("a/b"), storage.list("")) == (b"old", ["a/b"])
    assert list((tmp_path / ".staged").iterdir()) == []


def test_a_place_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    storage = Storage.at(str(tmp_path))
    storage.put("a", b"")
    with pytest.raises(StateError, match=f"{tmp_path}/a/b cannot be read or written"):
        storage.put("a/b", b"")
    with pytest.raises(StateError, match="cannot be read or written"):
        Storage.at(str(tmp_path / "a" / "b"))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_every_way_of_being_full_is_storage_full(number: int) -> None:
    assert isinstance(storage_error(OSError(number, "x"), "/data"), StorageFull)


def test_other_errors_of_the_system_are_not() -> None:
    error = storage_error(PermissionError(errno.EACCES, "Permission denied"), "/data")
    assert (type(error), str(error)) == (StateError, "/data cannot be read or written: Permission denied.")


def test_locations_of_object_stores_and_others() -> None:
    assert Storage.at("s3://bucket/prefix").location == "s3://bucket/prefix"
    with pytest.raises(SettingsError, match=r"hdfs://name/x cannot be used .* spark\.hermes\.state\.path"):
        Storage.at("hdfs://name/x")
    with pytest.raises(SettingsError, match=r"az://account/x cannot be used as storage: .*Account must be specified"):
        Storage.at("az://account/x")


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("/data/a#b", "/data/a#b"),
        ("/data/a?b", "/data/a?b"),
        ("file:///data/my%20x", "/data/my x"),
        ("/data/%20", "/data/%20"),
    ],
)
def test_a_local_path_is_taken_as_it_is_and_a_url_is_decoded(location: str, path: str) -> None:
    assert local_path(location) == Path(path)


def test_a_path_elsewhere_is_refused() -> None:
    with pytest.raises(SettingsError, match="hdfs://host/x cannot be used as storage"):
        local_path("hdfs://host/x")

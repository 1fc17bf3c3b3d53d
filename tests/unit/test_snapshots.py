"""Snapshots: restoring one and reading the rest of the journal is the same as reading all of it, or it is not used."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_spark import faults
from hermes_spark.errors import Fenced, SnapshotDamaged, StorageFull
from hermes_spark.settings import Settings, SnapshotSettings, SourceSettings
from hermes_spark.state.records import Position, TermId
from hermes_spark.state.snapshots import Manifest, ShardSnapshots, _digest
from hermes_spark.state.storage import Storage
from journaling import directory
from opened import Opened, counted, rocks_in

SESSIONS = "abc"
WITH_OFFSETS = Settings(source=SourceSettings(kind="load"))

MOVES = ["message", "reset", "cancel", "garbage", "step", "turn", "turn not flushed"]
moves = st.one_of(
    st.tuples(st.sampled_from(MOVES), st.sampled_from("abc")),
    st.sampled_from([("flush", ""), ("snapshot", ""), ("busy snapshot", "")]),
)


def play(opened: Opened, move: str, session: str) -> None:
    if move == "step":
        opened.step(session)
    elif move.startswith("turn"):
        opened.turn(session, flush=move == "turn")
    elif move == "flush":
        opened.flush()
    else:
        opened.say(session, move)


def busily(opened: Opened) -> None:
    """What goes on while a snapshot is taken: a session goes idle, another stays open; nothing of it is in the snapshot."""
    opened.say("a")
    while opened.step("a"):
        pass
    opened.say("b")


@settings(max_examples=80, deadline=None)
@given(script=st.lists(moves, max_size=30), use=st.integers(0, 9), offsets=st.booleans())
def test_a_snapshot_and_the_journal_behind_it_are_the_whole_journal(
    script: list[tuple[str, str]], use: int, *, offsets: bool
) -> None:
    with directory() as root:
        job = WITH_OFFSETS if offsets else Settings()
        first = Opened(root, 1, settings=job)
        for move, session in script:
            if "snapshot" in move:
                busy = move.startswith("busy")
                first.snapshot((lambda: busily(first)) if busy else lambda: None)
            else:
                play(first, move, session)
        first.flush()
        now, end = first.picture(SESSIONS), first.shard.position()
        first.crash()
        keys = first.snapshots.newest_first()
        for key in keys[: use % (len(keys) or 1)]:
            first.snapshots.forget(key)
        restored = counted("restored")
        second = Opened(root, 2, settings=job, committed=end)
        assert second.picture(SESSIONS) == now
        assert counted("restored") - restored == bool(keys)
        second.crash()
        whole = Opened(root, 3, settings=job, committed=end, snapshots=False)
        assert whole.picture(SESSIONS) == now
        whole.crash()


def two_snapshots(root: Path) -> tuple[Opened, list[str]]:
    """A shard with two snapshots, an open turn in each, a tail behind them; closed. With it the manifests, newest first."""
    opened = Opened(root, 1, store=rocks_in)
    for session in "ab":
        opened.turn(session)
    opened.say("c")
    opened.snapshot()
    opened.turn("a")
    opened.step("c")
    opened.snapshot()
    opened.turn("b")
    return opened, opened.snapshots.newest_first()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def files_of(root: Path, manifest: Manifest) -> dict[str, Path]:
    return {file.name: root / "snapshots" / "0000" / "files" / file.stored for file in manifest.files}


@pytest.mark.parametrize("damage", [cut, emptied, flipped, Path.unlink], ids=lambda damage: damage.__name__)
def test_every_damaged_or_missing_file_of_the_newest_snapshot_leads_to_the_one_before(
    tmp_path: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    opened, (newest, older) = two_snapshots(tmp_path)
    now = opened.picture(SESSIONS)
    opened.crash()
    of_newest = files_of(tmp_path, opened.snapshots.load(newest))
    of_older = set(files_of(tmp_path, opened.snapshots.load(older)).values())
    own = {name: path for name, path in of_newest.items() if path not in of_older}
    assert {Path(name).suffix or Path(name).name.partition("-")[0] for name in own} == {
        ".sst", ".json", "CURRENT", "MANIFEST", "states",
    }  # fmt: skip
    for term, (name, path) in enumerate([*own.items(), ("manifest", tmp_path / newest)], 2):
        if name == "manifest" and damage is Path.unlink:
            continue
        whole = path.read_bytes()
        damage(path)
        unusable, restored = counted("unusable"), counted("restored")
        caplog.clear()
        again = Opened(tmp_path, term, store=rocks_in)
        assert again.picture(SESSIONS) == now, name
        assert (counted("unusable") - unusable, counted("restored") - restored) == (1, 1), name
        assert f"snapshot {newest} is not usable" in caplog.text
        again.crash()
        path.write_bytes(whole)


def test_damage_to_a_table_that_both_share_leads_to_the_whole_journal(tmp_path: Path) -> None:
    opened, (newest, older) = two_snapshots(tmp_path)
    now = opened.picture(SESSIONS)
    opened.crash()
    shared = set(files_of(tmp_path, opened.snapshots.load(newest)).values())
    (table,) = shared & set(files_of(tmp_path, opened.snapshots.load(older)).values())
    assert table.suffix == ".sst"
    flipped(table)
    unusable = counted("unusable")
    again = Opened(tmp_path, 2, store=rocks_in)
    assert again.picture(SESSIONS) == now
    assert counted("unusable") - unusable == 2
    # The next owner stores it anew instead of relying on what is damaged.
    again.snapshot()
    again.crash()
    assert Opened(tmp_path, 3, store=rocks_in).picture(SESSIONS) == now
    assert counted("unusable") - unusable == 2


def resigned(path: Path, manifest: Manifest) -> None:
    text = msgspec.json.encode(manifest)
    path.write_bytes(text + b"\n" + _digest(text).encode() + b"\n")


@pytest.mark.parametrize("wrong", ["chain", "behind the end", "unknown term", "other shard", "other format"])
def test_a_snapshot_off_the_chain_is_not_used(tmp_path: Path, wrong: str) -> None:
    opened, (newest, _) = two_snapshots(tmp_path)
    now, manifest = opened.picture(SESSIONS), opened.snapshots.load(newest)
    opened.crash()
    position = manifest.position
    bad = {
        "chain": Position(position.lsn, position.term, "0" * 32),
        "behind the end": Position(10_000, position.term, position.chain),
        "unknown term": Position(position.lsn, TermId(1, 0), position.chain),
    }.get(wrong, position)
    forged = msgspec.structs.replace(
        manifest, position=bad, shard=int(wrong == "other shard"), format=1 + (wrong == "other format")
    )
    (tmp_path / newest).unlink()
    name = f"{bad.lsn:016d}-{bad.term.epoch:08d}-{bad.term.counter:08d}.json"
    resigned(tmp_path / "snapshots" / "0000" / name, forged)
    unusable = counted("unusable")
    again = Opened(tmp_path, 2, store=rocks_in)
    assert again.picture(SESSIONS) == now
    assert counted("unusable") - unusable == 1


def test_a_snapshot_behind_a_seal_is_not_used(tmp_path: Path) -> None:
    """Its owner was sealed before, so what it holds never counted, although its term is on the chain."""
    opened, (newest, _) = two_snapshots(tmp_path)
    end = opened.shard.position()
    second = Opened(tmp_path, 2, store=rocks_in)
    second.turn("c")
    now = second.picture(SESSIONS)
    manifest = opened.snapshots.load(newest)
    void = Position(end.lsn + 1, end.term, end.chain)
    path = tmp_path / "snapshots" / "0000" / f"{void.lsn:016d}-00000001-00000001.json"
    resigned(path, msgspec.structs.replace(manifest, position=void))
    unusable = counted("unusable")
    assert Opened(tmp_path, 3, store=rocks_in).picture(SESSIONS) == now
    assert counted("unusable") - unusable == 1


def test_dying_before_the_manifest_leaves_no_snapshot_and_the_next_one_removes_what_is_left(tmp_path: Path) -> None:
    opened = Opened(tmp_path, 1, store=rocks_in)
    opened.turn("a")
    faults.arm("snapshot.before_manifest=raise")
    try:
        with pytest.raises(faults.InjectedFault):
            opened.snapshot()
    finally:
        faults.arm("")
    assert opened.snapshots.newest_first() == []
    left = set((tmp_path / "snapshots/0000/files").iterdir())
    assert left
    opened.crash()
    again = Opened(tmp_path, 2, store=rocks_in)
    again.turn("b")
    again.snapshot()
    (key,) = again.snapshots.newest_first()
    used = set(files_of(tmp_path, again.snapshots.load(key)).values())
    assert set((tmp_path / "snapshots/0000/files").iterdir()) == used
    assert left - used


async def taken(opened: Opened) -> None:
    """One commit, and the snapshot that it leads to, if it does."""
    opened.shard.committed()
    if opened.snapshotter.task is not None and not opened.snapshotter.task.done():
        await asyncio.wait_for(opened.snapshotter.task, 10)


def policy(every_commits: int, every_records: int) -> Settings:
    return Settings(snapshot=SnapshotSettings(every_commits=every_commits, every_records=every_records))


def test_a_table_is_stored_once_by_however_many_owners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, _ = two_snapshots(tmp_path)
    opened.crash()
    second = Opened(tmp_path, 2, settings=policy(1, 0), store=rocks_in)
    second.turn("c")
    put: list[str] = []
    real = Storage.put

    def noting(self: Storage, key: str, data: bytes) -> None:
        put.append(key)
        real(self, key, data)

    monkeypatch.setattr(Storage, "put", noting)
    asyncio.run(taken(second))
    assert sum(key.endswith(".sst") for key in put) == 1
    manifest = second.snapshots.load(second.snapshots.newest_first()[0])
    assert sum(file.name.endswith(".sst") for file in manifest.files) >= 3


def test_a_changed_shard_gets_a_snapshot_every_so_many_commits(tmp_path: Path) -> None:
    opened = Opened(tmp_path, 1, settings=policy(3, 0))
    found = []
    for commit in range(12):
        if commit < 6:
            opened.turn("a")
        asyncio.run(taken(opened))
        found.append(len(opened.snapshots.newest_first()))
    assert found == [0, 0, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2]
    assert not opened.snapshotter._scratch.exists()


def test_a_long_journal_gets_a_snapshot_and_a_restart_counts_on(tmp_path: Path) -> None:
    opened = Opened(tmp_path, 1, settings=policy(0, 10))
    opened.turn("a")
    asyncio.run(taken(opened))
    assert (opened.shard.journal.durable_lsn, opened.snapshots.newest_first()) == (7, [])
    opened.crash()
    again = Opened(tmp_path, 2, settings=policy(0, 10))
    again.turn("a")
    asyncio.run(taken(again))
    assert [again.snapshots.load(key).position for key in again.snapshots.newest_first()] == [again.shard.position()]
    again.crash()
    third = Opened(tmp_path, 3, settings=policy(0, 10))
    asyncio.run(taken(third))
    assert len(third.snapshots.newest_first()) == 1


@pytest.mark.parametrize("step", ["checkpoint", "write"])
def test_a_snapshot_that_fails_is_counted_and_the_next_one_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    opened = Opened(tmp_path, 1, settings=policy(1, 0))
    opened.turn("a")

    def full(*_: object) -> None:
        raise StorageFull("no space")

    broken = opened.shard.sessions if step == "checkpoint" else opened.snapshotter._snapshots
    monkeypatch.setattr(broken, step, full)
    failed = counted("failed")
    asyncio.run(taken(opened))
    assert (counted("failed") - failed, opened.snapshots.newest_first()) == (1, [])
    monkeypatch.undo()
    opened.turn("a")
    asyncio.run(taken(opened))
    assert len(opened.snapshots.newest_first()) == 1
    assert opened.shard.sessions.unwritten == 0, "the store is let go of, also after a failure"


def test_who_waits_for_a_capture_learns_that_the_shard_was_lost(tmp_path: Path) -> None:
    opened = Opened(tmp_path, 1)
    opened.say("a")

    async def lost() -> None:
        task = asyncio.create_task(opened.shard.capture())
        await asyncio.sleep(0)
        opened.shard.close()
        with pytest.raises(Fenced):
            await asyncio.wait_for(task, 10)

    asyncio.run(lost())


def test_a_snapshot_is_verified_file_by_file_and_once(tmp_path: Path) -> None:
    _, (newest, _) = two_snapshots(tmp_path)
    snapshots = ShardSnapshots(Storage.at(str(tmp_path)), 0)
    manifest = snapshots.load(newest)
    for path in files_of(tmp_path, manifest).values():
        whole = path.read_bytes()
        flipped(path)
        with pytest.raises(SnapshotDamaged, match=f"{path.name} is damaged"):
            snapshots.verify(manifest)
        path.write_bytes(whole)
    snapshots.verify(manifest)
    path.unlink()
    with pytest.raises(SnapshotDamaged, match=f"{path.name} is missing"):
        snapshots.verify(manifest)

from pathlib import Path

import msgspec
import pytest

from hermes_spark.errors import CheckpointMismatch, StateError
from hermes_spark.state.records import Position, TermId
from hermes_spark.state.storage import Storage
from hermes_spark.streaming.commit import KEPT_COMMITS, Commit, CommitLog, check_succession, source_digest
from hermes_spark.streaming.spark_log import read_offsets


def a_commit(batch: int, *, publish: bool = True, lsn: int = 7) -> Commit:
    here = {0: Position(lsn, TermId(1, 1), "ab")}
    return Commit(batch, 1, f"digest-{batch}", {}, here, {0: Position()}, publish, 3, 0, 99)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage.at(str(tmp_path))


def test_the_identity_is_made_once_and_kept(storage: Storage) -> None:
    first = CommitLog(storage).meta(16)
    assert CommitLog(storage).meta(16) == first
    with pytest.raises(CheckpointMismatch, match=r"16 shards and state\.shards is 8"):
        CommitLog(storage).meta(8)


def test_commits_without_identity_are_refused(storage: Storage) -> None:
    CommitLog(storage).put(a_commit(0))
    with pytest.raises(CheckpointMismatch, match=r"no meta\.json"):
        CommitLog(storage).meta(16)


def test_a_damaged_object_names_itself(storage: Storage) -> None:
    storage.put("commits/000000000003.json", b"{half")
    with pytest.raises(StateError, match=r"commits/000000000003\.json is damaged"):
        CommitLog(storage).last()


def test_no_flipped_bit_and_no_cut_makes_another_commit(storage: Storage) -> None:
    log, key = CommitLog(storage), "commits/000000000004.json"
    log.put(a_commit(4))
    whole = storage.get(key)
    assert whole is not None
    damaged = [whole[: number // 8] + bytes([whole[number // 8] ^ 1 << number % 8]) + whole[number // 8 + 1 :]
               for number in range(8 * len(whole))]  # fmt: skip
    for data in [*damaged, *(whole[:length] for length in range(len(whole)))]:
        (Path(storage.location) / key).write_bytes(data)
        try:
            found = log.last()
        except StateError as exc:
            refused = str(exc)
        else:
            refused = f"{key} is damaged" if found == a_commit(4) else ""
        assert f"{key} is damaged" in refused


def test_a_commit_without_a_digest_can_be_read(storage: Storage) -> None:
    storage.put("commits/000000000004.json", msgspec.json.encode(a_commit(4)))
    assert CommitLog(storage).last() == a_commit(4)


def test_what_is_stored_counts_not_what_is_put(storage: Storage) -> None:
    log = CommitLog(storage)
    assert log.put(a_commit(4, lsn=7)).positions[0].lsn == 7
    assert log.put(a_commit(4, lsn=9)).positions[0].lsn == 7
    assert CommitLog(storage).last() == a_commit(4, lsn=7)


def test_old_commits_go(storage: Storage) -> None:
    log = CommitLog(storage)
    for batch in range(KEPT_COMMITS + 5):
        log.put(a_commit(batch))
        log.forget(batch)
    assert len(storage.list("commits/")) == KEPT_COMMITS
    assert log.last() == a_commit(KEPT_COMMITS + 4)


def test_the_unpublished_part_is_carried_on() -> None:
    assert a_commit(1, publish=False).rest() == {0: Position()}
    assert a_commit(1, publish=True).rest() == a_commit(1).positions


@pytest.mark.parametrize(("last", "batch"), [(None, 0), (a_commit(4), 5)])
def test_a_batch_that_follows_is_run(last: Commit | None, batch: int) -> None:
    check_succession(last, batch, "anything")


def test_a_replay_must_read_the_same_offsets() -> None:
    check_succession(a_commit(4), 4, "digest-4")
    with pytest.raises(CheckpointMismatch, match="other offsets"):
        check_succession(a_commit(4), 4, "digest-5")


@pytest.mark.parametrize(("last", "batch"), [(None, 1), (a_commit(4), 3), (a_commit(4), 6)])
def test_anything_else_does_not_belong_together(last: Commit | None, batch: int) -> None:
    with pytest.raises(CheckpointMismatch, match="do not belong together"):
        check_succession(last, batch, "digest-4")


def test_a_commit_that_is_missing_is_named() -> None:
    with pytest.raises(CheckpointMismatch, match=r"commits/000000000005\.json is not there"):
        check_succession(a_commit(4), 6, "digest-4")


def test_sparks_offsets_without_what_differs_between_runs(storage: Storage) -> None:
    storage.put("offsets/3", b'v1\n{"batchTimestampMs":1}\n{"0":5}\n7\n')
    storage.put("offsets/4", b'v1\n{"batchTimestampMs":2}\n{"0":5}\n7\n')
    storage.put("offsets/5", b"v9\nx\ny\n")
    three, four = read_offsets(storage, 3), read_offsets(storage, 4)
    assert three is not None
    assert four is not None
    assert three.events == '{"0":5}'
    assert source_digest(three.lines) == source_digest(four.lines)
    assert read_offsets(storage, 2) is None
    with pytest.raises(CheckpointMismatch, match="offsets/5"):
        read_offsets(storage, 5)

"""The journal on a real S3-compatible server, over a way on which requests and answers get lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from hermes_spark.errors import Fenced, StateError
from hermes_spark.state.journal import ShardJournal, flush_all
from hermes_spark.state.journal_store import journals_at
from hermes_spark.state.records import Position
from hermes_spark.state.storage import Storage
from journal_places import Place, in_objects
from journaling import T1, T2, T3, append_groups, fact, lsns_of_facts
from object_server import Bucket, FaultyWay, S3Server, s3_bucket

TIMEOUT_S = 1.0
"""Of one request over the faulty way. Where the machine is slower than that, a put is only asked for once more."""


@pytest.fixture
def way(s3_server: S3Server) -> Iterator[FaultyWay]:
    way = FaultyWay(s3_server)
    yield way
    way.close()


@pytest.fixture
def bucket(s3_server: S3Server, way: FaultyWay) -> Bucket:
    return s3_bucket(s3_server, way.url)


@pytest.fixture
def place(s3_server: S3Server, bucket: Bucket) -> Place:
    """The bucket without faults between: who takes over, and what is there in the end."""
    return in_objects(Bucket(s3_server.url, bucket.name).storage())


def owner_over(bucket: Bucket, *, patience_s: float = 20.0, retries: int = 5) -> ShardJournal:
    """An owner of term 1 that reaches the bucket over the faulty way only."""
    return in_objects(bucket.storage(timeout_s=TIMEOUT_S, retries=retries), patience_s).open_term(T1)


def test_put_if_absent_has_one_winner_and_keeps_what_it_put(s3_server: S3Server) -> None:
    storage = s3_bucket(s3_server).storage()
    for key in [f"epochs/{n}" for n in range(20)]:
        start, won = threading.Barrier(8), []

        def put(n: int, key: str = key, start: threading.Barrier = start, won: list[int] = won) -> None:
            start.wait(10)
            if storage.put_if_absent(key, b"%d" % n * 500):
                won.append(n)

        threads = [threading.Thread(target=put, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert [storage.get(key)] == [b"%d" % n * 500 for n in won]


def test_a_url_and_the_environment_are_enough(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = s3_bucket(s3_server)
    for name, value in bucket.environment().items():
        monkeypatch.setenv(name, value)
    journals = journals_at(f"s3://{bucket.name}/state/of-a-job")
    append_groups(journals.open(3, T1, now_ms=7).journal, [2])
    assert [lsn for lsn, _ in journals.reader(3).read(Position(), None)] == [1, 2, 3]
    storage = Storage.at(f"s3://{bucket.name}/state/of-a-job/")
    assert storage.list("") == [f"journal/0003/{number:016d}" for number in (1, 2, 3)]
    assert storage.list("journal/0003", after=f"journal/0003/{2:016d}") == [f"journal/0003/{3:016d}"]


@pytest.mark.parametrize("retries", [0, 5])
@pytest.mark.parametrize("fault", ["lose answer", "lose request", "refuse", "store and refuse"])
def test_a_doubtful_put_is_settled_and_the_journal_goes_on(
    bucket: Bucket, way: FaultyWay, place: Place, fault: str, retries: int
) -> None:
    journal = owner_over(bucket, retries=retries)
    way.faults.append(fault)
    append_groups(journal, [2, 1])
    assert way.fired == [fault]
    assert journal.durable_lsn == 4
    assert lsns_of_facts(place.past_of(T2, known_end=4)) == [2, 3, 4]


@pytest.mark.parametrize("fault", ["lose answer", "lose request", "store and refuse"])
def test_a_doubtful_seal_is_settled(bucket: Bucket, way: FaultyWay, place: Place, fault: str) -> None:
    old = place.open_term(T1)
    append_groups(old, [1])
    way.faults.append(fault)
    new = in_objects(bucket.storage(timeout_s=TIMEOUT_S)).open_term(T2)
    assert (way.fired, new.previous) == ([fault], old.position())
    with pytest.raises(Fenced):
        append_groups(old, [1])
    append_groups(new, [1])
    assert lsns_of_facts(place.past_of(T3)) == [2, 4]


def test_a_group_that_arrives_after_the_takeover_is_refused_by_the_storage(
    bucket: Bucket, way: FaultyWay, place: Place
) -> None:
    """The owner's put hangs on its way while the shard is taken over; then it arrives, and is put again."""
    journal = owner_over(bucket, patience_s=60.0)
    append_groups(journal, [1])
    way.faults.append("hold")
    journal.append(fact(3))
    group = journal.take_group()
    assert group is not None
    flushed = []
    flushing = threading.Thread(target=lambda: flushed.extend(flush_all([group])))
    journal.append(fact(4))
    # The put that is tried again after the first has timed out must not come before the takeover.
    way.faults.extend(["lose request"] * 20)
    flushing.start()
    new = place.open_term(T2) if wait_for(lambda: "hold" in way.fired) else None
    assert new is not None
    way.faults.clear()
    way.release()
    flushing.join(60)
    assert way.held_status == [412]
    with pytest.raises(Fenced, match="another owner at number 4"):
        journal.confirm(flushed[0])
    append_groups(new, [1])
    assert lsns_of_facts(place.past_of(T3)) == [2, 4]


def test_an_owner_cut_off_for_good_gives_up_and_its_last_group_may_count(
    bucket: Bucket, way: FaultyWay, place: Place
) -> None:
    """Nobody was told that the group is durable, so both are right; here its put arrives before the takeover."""
    journal = owner_over(bucket, patience_s=1.5)
    way.faults.extend(["hold", *["lose request"] * 10])
    with pytest.raises(StateError, match="cannot be read or written") as caught:
        append_groups(journal, [1])
    assert not isinstance(caught.value, Fenced)
    way.release()
    assert (way.held_status, journal.durable_lsn) == ([200], 1)
    assert lsns_of_facts(place.past_of(T2)) == [2]


def wait_for(condition: object, timeout_s: float = 20.0) -> bool:
    """True once the condition holds, False if it does not within the time."""
    assert callable(condition)
    waiting = threading.Event()
    for _ in range(int(timeout_s / 0.01)):
        if condition():
            return True
        waiting.wait(0.01)
    return False

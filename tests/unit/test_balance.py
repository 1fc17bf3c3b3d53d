"""Which shards move when hosts come and go: laws of the arithmetic."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from hermes_spark.streaming.balance import inherited, levelled


@st.composite
def owners(draw: st.DrawFn) -> tuple[dict[int, int], list[int]]:
    there = draw(st.lists(st.integers(0, 8), min_size=1, max_size=6, unique=True))
    shards = draw(st.lists(st.sampled_from(there), max_size=40))
    return dict(enumerate(shards)), there


@given(owners())
def test_afterwards_no_host_owns_two_shards_more_than_another(given_: tuple[dict[int, int], list[int]]) -> None:
    owner, there = given_
    after = Counter({**owner, **levelled(owner, there)}.values())
    counts = [after[host] for host in there]
    assert max(counts) - min(counts) < 2
    assert sum(counts) == len(owner)


@given(owners())
def test_no_shard_moves_that_need_not(given_: tuple[dict[int, int], list[int]]) -> None:
    owner, there = given_
    moves = levelled(owner, there)
    before = Counter(owner.values())
    least, spare = divmod(len(owner), len(there))
    surplus = sorted((before[host] - least for host in there), reverse=True)
    needed = sum(max(0, count - (number < spare)) for number, count in enumerate(surplus))
    assert len(moves) == needed
    assert all(owner[shard] != host for shard, host in moves.items())
    assert levelled({**owner, **moves}, there) == {}


def test_nobody_there_moves_nothing() -> None:
    assert levelled({}, []) == {}


def test_heirs_share_what_is_abandoned() -> None:
    assert inherited([3, 5, 9], [1, 4]) == {3: 1, 5: 4, 9: 1}

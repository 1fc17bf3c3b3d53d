"""Which shard goes to which host, when hosts come and go. Pure: the fleet does what is decided here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hermes_spark.streaming.fleet_host import FleetHost


def inherited(abandoned: Iterable[int], there: Sequence[int]) -> dict[int, int]:
    """New owners, of those `there`, for shards whose owner does not come back."""
    return {shard: there[number % len(there)] for number, shard in enumerate(abandoned)}


def levelled(owner: Mapping[int, int], there: Sequence[int]) -> dict[int, int]:
    """The fewest moves after which no host of those `there` owns two shards more than another: shard -> new owner.

    `owner` holds the shards that can be moved, by owners that are all there. A move costs the shard's open turns a moment, and
    its calls under way their answers, so none is made that need not be.
    """
    owned = {host: sorted(shard for shard, by in owner.items() if by == host) for host in there}
    moves: dict[int, int] = {}
    while owned:
        poorest = min(owned, key=lambda host: (len(owned[host]), host))
        richest = max(owned, key=lambda host: (len(owned[host]), -host))
        if len(owned[richest]) - len(owned[poorest]) < 2:
            break
        shard = owned[richest].pop()
        owned[poorest].insert(0, shard)
        moves[shard] = poorest
    return moves


def missing_sentence(hosts: Iterable[FleetHost], missing: Sequence[int], timeout_s: float, trouble: str) -> str:
    """What to tell when shards have no owner in time. `trouble`: the last error of a host that could not open its shards."""
    states = [f"host {host.index} is {host.state}" for host in hosts]
    troubles = [f"the last trouble was: {trouble}"] if trouble else []
    return (
        f"{len(missing)} shards have no owner after {timeout_s:g} s ({'; '.join(states + troubles)}); look for the "
        "hosts' errors in the executor logs, or raise spark.hermes.host.start_timeout_s"
    )

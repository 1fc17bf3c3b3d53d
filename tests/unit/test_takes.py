import asyncio
from pathlib import Path

import msgspec
import pytest

from hermes_spark.errors import StateError
from hermes_spark.events import Coordinates, Row
from hermes_spark.host import takes
from hermes_spark.host.ahead_wire import AheadRange
from hermes_spark.host.cursors import NOBODY, TAKEN
from hermes_spark.host.effects import EffectRunner
from hermes_spark.host.intake import Intake
from hermes_spark.host.shard import Shard
from hermes_spark.host.takes import AHEAD, Offers
from hermes_spark.host.wire import OfferHeader, Span
from hermes_spark.settings import HostSettings, Settings
from hermes_spark.state.records import Taken, TermId
from hosting import HostedShard, ScriptedModel, ScriptedTools, one_call_then_answer

TERM = TermId(1, 1)


class OneShard:
    def __init__(self, hosted: HostedShard) -> None:
        self.hosted = hosted
        self.errors: list[BaseException] = []

    def owned(self, shard: int, term: TermId | None) -> tuple[Shard, EffectRunner] | None:
        return (self.hosted.shard, self.hosted.runner) if (shard, term) == (0, TERM) else None

    def broken(self, shard: Shard, error: BaseException) -> None:
        self.errors.append(error)

    @property
    def open_turns(self) -> int:
        return self.hosted.shard.open_turns

    @property
    def held_bytes(self) -> int:
        return self.hosted.shard.held_bytes


def rows(*events: dict[str, object]) -> list[Row]:
    return [Row(Coordinates("p", number), 1, msgspec.json.encode(event)) for number, event in enumerate(events)]


def message(session: str) -> dict[str, object]:
    return {"session_id": session, "messages": [{"role": "user", "content": "hi"}]}


def header(count: int, term: TermId = TERM, shard: int = 0) -> OfferHeader:
    return OfferHeader(0, (shard,) * count, {shard: term})


@pytest.fixture
async def tools() -> ScriptedTools:
    return ScriptedTools()


@pytest.fixture
async def hosted(tmp_path: Path, tools: ScriptedTools) -> HostedShard:
    return HostedShard(tmp_path, 1, ScriptedModel(one_call_then_answer), tools, Settings())


async def test_taken_means_durable(hosted: HostedShard, tools: ScriptedTools) -> None:
    offers = Offers(OneShard(hosted), HostSettings())
    answer = await offers.take(header(2), rows(message("a"), message("b")))
    assert (answer.taken, answer.skipped, answer.untaken) == (2, 0, ())
    assert len([r for r in hosted.journal() if hasattr(r, "event")]) == 2
    again = await offers.take(header(2), rows(message("a"), message("b")))
    assert (again.taken, again.skipped) == (0, 2)
    await hosted.crash()


@pytest.mark.parametrize(("term", "shard"), [(TermId(1, 2), 0), (TERM, 5)])
async def test_rows_for_another_owner_come_back(hosted: HostedShard, term: TermId, shard: int) -> None:
    answer = await Offers(OneShard(hosted), HostSettings()).take(header(1, term, shard), rows(message("a")))
    assert (answer.taken, answer.untaken, answer.full) == (0, (0,), False)
    await hosted.crash()


async def test_a_full_host_takes_what_fits_and_says_so(
    hosted: HostedShard, tools: ScriptedTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(takes, "WAIT_S", 0.05)
    tools.gate.clear()
    answer = await Offers(OneShard(hosted), HostSettings(max_open_turns=2)).take(
        header(4), rows(*(message(f"s{n}") for n in range(4)))
    )
    assert (answer.taken, answer.untaken, answer.full) == (2, (2, 3), True)
    await hosted.crash()


async def test_a_full_host_goes_on_when_a_turn_ends(hosted: HostedShard, tools: ScriptedTools) -> None:
    offers = Offers(OneShard(hosted), HostSettings(max_open_turns=2))
    hosted.on_outcome = lambda outcome: offers.turn_ended()
    tools.gate.clear()
    taking = asyncio.create_task(offers.take(header(4), rows(*(message(f"s{n}") for n in range(4)))))
    await hosted.until(lambda: tools.under_way == 2)
    assert not taking.done()
    tools.gate.set()
    answer = await taking
    assert (answer.taken, answer.untaken) == (4, ())
    await hosted.crash()


async def test_bytes_count_too(hosted: HostedShard, tools: ScriptedTools, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takes, "WAIT_S", 0.05)
    tools.gate.clear()
    answer = await Offers(OneShard(hosted), HostSettings(max_queued_bytes=1)).take(
        header(2), rows(message("a"), message("a"))
    )
    assert (answer.taken, answer.full) == (1, True)
    await hosted.crash()


async def test_pressure_never_holds_up_a_cancel(
    hosted: HostedShard, tools: ScriptedTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(takes, "WAIT_S", 0.05)
    tools.gate.clear()
    cancel: dict[str, object] = {"session_id": "s0", "type": "cancel"}
    answer = await Offers(OneShard(hosted), HostSettings(max_open_turns=1)).take(
        header(5), rows(message("s0"), message("s1"), cancel, message("s2"), message("s3"))
    )
    assert answer.untaken == (3, 4)
    tools.gate.set()
    await hosted.until(lambda: any(outcome.status == "cancelled" for outcome in hosted.outcomes))
    await hosted.crash()


async def test_a_store_that_cannot_be_read_is_reported_to_the_host(
    hosted: HostedShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(session_id: str) -> bytes:
        raise StateError("the database is gone")

    monkeypatch.setattr(hosted.store, "get", unreadable)
    owner = OneShard(hosted)
    with pytest.raises(StateError):
        await Offers(owner, HostSettings()).take(header(1), rows(message("a")))
    assert [str(error) for error in owner.errors] == ["the database is gone"]


async def test_offers_do_not_wait_for_room_on_a_host_that_ends(hosted: HostedShard) -> None:
    offers = Offers(OneShard(hosted), HostSettings(max_open_turns=0))
    waiting = asyncio.ensure_future(offers.take(header(1), rows(message("a"))))
    await asyncio.sleep(0)
    offers.close()
    answer = await asyncio.wait_for(waiting, takes.WAIT_S / 2)
    assert answer.untaken == (0,)


def put(start: int, stop: int, count: int, floor: int = 0) -> AheadRange:
    return AheadRange("p", 0, start, stop, floor, count)


def ahead(*ranges: AheadRange, term: TermId = TERM) -> OfferHeader:
    return OfferHeader(AHEAD, (0,) * sum(r.rows for r in ranges), {0: term}, ahead=ranges)


@pytest.fixture
async def topic_shard(hosted: HostedShard) -> HostedShard:
    """A shard of a source with offsets."""
    hosted.shard.intake = Intake({})
    return hosted


def taken(hosted: HostedShard) -> list[int]:
    return [record.event.coordinates.offset for record in hosted.journal() if isinstance(record, Taken)]


async def test_ranges_of_run_ahead_are_taken_in_order_and_durable(topic_shard: HostedShard) -> None:
    offers = Offers(OneShard(topic_shard), HostSettings())
    some = rows(*(message(f"s{n}") for n in range(5)))
    answer = await offers.take(ahead(put(0, 3, 3), put(3, 9, 2)), some)
    assert (answer.wanted, answer.taken, answer.skipped) == ((TAKEN, TAKEN), 5, 0)
    assert taken(topic_shard) == [0, 1, 2, 3, 4]
    again = await offers.take(ahead(put(0, 5, 5)), some)
    assert (again.wanted, again.taken, again.skipped) == ((TAKEN,), 0, 5)
    await topic_shard.crash()


async def test_a_range_that_leaves_a_gap_is_refused_and_says_where_to_go_on(topic_shard: HostedShard) -> None:
    offers = Offers(OneShard(topic_shard), HostSettings())
    some = rows(*(message(f"s{n}") for n in range(5)))
    answer = await offers.take(ahead(put(0, 2, 2), put(3, 5, 2)), some[:2] + some[3:])
    assert answer.wanted == (TAKEN, 2)
    assert taken(topic_shard) == [0, 1]
    committed = await offers.take(ahead(put(3, 5, 2, floor=3)), some[3:])
    assert committed.wanted == (TAKEN,), "a commit says that nothing is missing before"
    await topic_shard.crash()


async def test_ranges_for_another_owner_are_refused(topic_shard: HostedShard) -> None:
    offers = Offers(OneShard(topic_shard), HostSettings())
    answer = await offers.take(ahead(put(0, 1, 1), term=TermId(1, 2)), rows(message("a")))
    assert answer.wanted == (NOBODY,)
    assert taken(topic_shard) == []
    await topic_shard.crash()


async def test_a_range_that_had_only_room_in_part_is_not_called_taken(
    topic_shard: HostedShard, tools: ScriptedTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(takes, "WAIT_S", 0.05)
    tools.gate.clear()
    offers = Offers(OneShard(topic_shard), HostSettings(max_open_turns=2))
    answer = await offers.take(ahead(put(0, 4, 4)), rows(*(message(f"s{n}") for n in range(4))))
    assert (answer.wanted, answer.taken) == ((NOBODY,), 2)
    tools.gate.set()
    await topic_shard.until(lambda: topic_shard.shard.open_turns == 0)
    again = await offers.take(ahead(put(0, 4, 4)), rows(*(message(f"s{n}") for n in range(4))))
    assert (again.wanted, again.taken, again.skipped) == ((TAKEN,), 2, 2)
    await topic_shard.crash()


async def test_a_batch_skips_what_run_ahead_has_taken(topic_shard: HostedShard) -> None:
    offers = Offers(OneShard(topic_shard), HostSettings())
    some = rows(*(message(f"s{n}") for n in range(4)))
    await offers.take(ahead(put(0, 3, 3)), some[:3])
    batch = OfferHeader(0, (0,) * 4, {0: TERM}, spans={"p": Span(0, 4)})
    answer = await offers.take(batch, some)
    assert (answer.taken, answer.skipped) == (1, 3)
    assert taken(topic_shard) == [0, 1, 2, 3]
    await topic_shard.crash()

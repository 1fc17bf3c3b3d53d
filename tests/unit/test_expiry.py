"""Idle sessions are forgotten, and only those: the host's slices with a clock that the tests set, and what is left."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from hermes_spark.agent.turn import apply
from hermes_spark.errors import StorageFull
from hermes_spark.host import expiry
from hermes_spark.host.expiry import Expiry
from hermes_spark.llm.client import Completion, CompletionRequest
from hermes_spark.settings import Settings, SinkSettings, StateSettings
from hermes_spark.state.agent_state import AgentState, decode_state
from hermes_spark.state.records import Expired, Outcome, Record, Taken
from hosting import HostedShard, ScriptedModel, ScriptedTools, says
from journaling import directory
from unit.test_agent_doubles import PureHost, event
from unit.test_agent_doubles import says as says_now

TTL_MS = 60_000
NEVER_MS = 10**12


def settings_of(expire_slice: int = 100, *, ttl_s: float = TTL_MS / 1000, final: bool = False) -> Settings:
    return Settings(state=StateSettings(ttl_s=ttl_s, expire_slice=expire_slice), sink=SinkSettings(expired=final))


async def answers(request: CompletionRequest) -> Completion:
    return says(f"re {request.messages[-1].content}")


class Expiring:
    """One hosted shard whose sessions expire when the test says so."""

    def __init__(self, root: Path, settings: Settings, term: int = 1, answer: Any = answers) -> None:
        self.hosted = HostedShard(root, term, ScriptedModel(answer), ScriptedTools(), settings)
        self.failures: list[BaseException] = []
        self.expiry = Expiry(lambda: [self.hosted.shard], lambda shard, error: self.failures.append(error), settings)
        self.offset = self.batch = 0

    async def say(self, session: str, text: str = "hello", **fields: Any) -> Record | None:
        """Send an event and let all turns end."""
        self.offset += 1
        record = self.hosted.say(session, text, self.offset, **fields)
        await self.quiet()
        return record

    async def quiet(self) -> None:
        await self.hosted.until(lambda: not self.hosted.shard.sessions.live)
        await self.hosted.shard.durable()

    def at(self, now_ms: int) -> None:
        """Let it be `now_ms`, and both newest barriers have been asked for then."""
        self.hosted.now_ms = now_ms
        self.barrier()
        self.barrier()

    def barrier(self) -> None:
        """The barrier of the next batch is asked for."""
        self.batch += 1
        self.expiry.barrier(self.batch)

    async def expire(self, now_ms: int) -> int:
        self.at(now_ms)
        return await self.expiry.expire_slice()

    def alive(self) -> set[str]:
        """The sessions of which something is kept, each as the store, the caches and the index show it."""
        found = {name for name, _ in self.hosted.store.items()}
        assert all((self.hosted.shard.sessions.get(name) is not None) for name in found)
        assert {name for _, name in self.hosted.store.due(2**62, 1000)} <= found
        return found

    def state(self, session: str) -> AgentState | None:
        return self.hosted.shard.sessions.get(session)


async def test_a_session_expires_when_it_was_idle_for_its_whole_time_and_no_sooner(tmp_path: Path) -> None:
    host = Expiring(tmp_path, settings_of())
    await host.say("s")
    state = host.state("s")
    assert state is not None
    assert state.deadline_ms == state.updated_ms + TTL_MS
    assert await host.expire(state.deadline_ms - 1) == 0
    assert host.alive() == {"s"}
    assert await host.expire(state.deadline_ms) == 1
    assert (host.alive(), host.state("s"), host.hosted.store.due(2**62, 9)) == (set(), None, [])
    record = host.hosted.journal()[-1]
    assert record == Expired("s", state.updated_ms, TTL_MS, 1, 0, state.created_ms, state.deadline_ms)
    assert await host.expire(state.deadline_ms + NEVER_MS) == 0
    await host.hosted.crash()


async def test_activity_puts_expiry_off(tmp_path: Path) -> None:
    host = Expiring(tmp_path, settings_of())
    await host.say("s")
    start = host.hosted.now_ms
    host.at(start + TTL_MS - 1)
    await host.say("s", "again")
    assert await host.expire(start + TTL_MS) == 0
    assert await host.expire(start + 2 * TTL_MS - 2) == 0
    assert await host.expire(start + 2 * TTL_MS - 1) == 1
    await host.hosted.crash()


async def test_after_expiry_a_message_starts_a_fresh_session(tmp_path: Path) -> None:
    host = Expiring(tmp_path, settings_of())
    first = await host.say("s", "remember me", event_id="e1", session_ttl_s=1)
    await host.expire(host.hosted.now_ms + NEVER_MS)
    again = await host.say("s", "who am I?", event_id="e1")
    state = host.state("s")
    assert state is not None
    assert isinstance(first, Taken)
    assert isinstance(again, Taken)
    assert not again.repeat
    assert again.turn_id != first.turn_id
    assert [message.content for message in state.messages] == ["who am I?", "re who am I?"]
    assert (state.turns, state.created_ms, state.ttl_ms) == (1, again.time_ms, TTL_MS)
    await host.hosted.crash()


async def test_a_session_with_an_open_turn_or_a_waiting_message_does_not_expire(tmp_path: Path) -> None:
    held = asyncio.Event()

    async def slow(request: CompletionRequest) -> Completion:
        if request.messages[-1].content == "slow":
            await held.wait()
        return await answers(request)

    host = Expiring(tmp_path, settings_of(), answer=slow)
    await host.say("s", "quick")
    host.hosted.say("s", "slow", 10)
    host.hosted.say("s", "queued", 11)
    assert host.hosted.store.due(2**62, 9) != []
    assert await host.expire(host.hosted.now_ms + NEVER_MS) == 0
    held.set()
    await host.quiet()
    assert [outcome.reply for outcome in host.hosted.outcomes] == ["re quick", "re slow", "re queued"]
    assert await host.expire(host.hosted.now_ms + TTL_MS) == 1
    await host.hosted.crash()


def test_an_expiry_recorded_over_an_open_turn_or_a_waiting_message_is_void() -> None:
    host = PureHost()
    host.expire()
    host.take(event(text="open"))
    lived = host.state
    host.expire()
    assert host.state == lived
    host.take(event(text="waiting"))
    host.answer(says_now("done"))
    host.finish()
    host.expire()
    host.answer(says_now("done"))
    host.finish()
    assert host.state is not None
    host.expire()
    assert host.state is None
    assert apply(None, host.outcomes[0]) is None, "only an event makes a session"


async def test_events_say_how_long_a_session_is_kept(tmp_path: Path) -> None:
    host = Expiring(tmp_path, settings_of())
    for name, fields in {
        "default": {},
        "event": {"ttl_s": 1},
        "session": {"session_ttl_s": 2},
        "both": {"session_ttl_s": 2, "ttl_s": 3},
        "for ever": {"ttl_s": 0},
    }.items():
        await host.say(name, **fields)
    kept = {name: host.state(name).ttl_ms for name in host.alive()}
    assert kept == {"default": TTL_MS, "event": 1000, "session": 2000, "both": 3000, "for ever": 0}
    for name in kept:
        await host.say(name, "another, that says nothing about it")
    kept = {name: host.state(name).ttl_ms for name in host.alive()}
    assert kept == {"default": TTL_MS, "event": TTL_MS, "session": 2000, "both": 2000, "for ever": TTL_MS}
    await host.say("for ever", session_ttl_s=0)
    await host.say("for ever")
    assert await host.expire(host.hosted.now_ms + NEVER_MS) == 4
    assert host.alive() == {"for ever"}
    await host.hosted.crash()


async def test_a_repeat_changes_nothing_but_is_activity(tmp_path: Path) -> None:
    host = Expiring(tmp_path, settings_of())
    await host.say("s", event_id="e1", session_ttl_s=5)
    host.at(host.hosted.now_ms + 4000)
    repeat = await host.say("s", event_id="e1", session_ttl_s=900, ttl_s=900)
    assert isinstance(repeat, Taken)
    assert repeat.repeat
    assert host.state("s").deadline_ms == repeat.time_ms + 5000
    await host.hosted.crash()


async def test_with_zero_nothing_expires(tmp_path: Path) -> None:
    host = Expiring(tmp_path, settings_of(ttl_s=0))
    await host.say("s")
    assert await host.expire(host.hosted.now_ms + NEVER_MS) == 0
    assert host.alive() == {"s"}
    await host.hosted.crash()


async def test_slices_are_bounded_and_take_the_longest_idle_first(tmp_path: Path) -> None:
    host = Expiring(tmp_path, settings_of(expire_slice=30))
    names = [f"s{number:03}" for number in range(100)]
    for name in names:
        host.hosted.now_ms += 1
        await host.say(name)
    counts = []
    for _ in range(5):
        counts.append(await host.expire(host.hosted.now_ms + NEVER_MS))
        assert host.alive() == set(names[sum(counts) :])
    assert counts == [30, 30, 30, 10, 0]
    await host.hosted.crash()


async def test_sessions_that_cannot_expire_do_not_hold_up_those_that_can(tmp_path: Path) -> None:
    held = asyncio.Event()

    async def slow(request: CompletionRequest) -> Completion:
        if request.messages[-1].content == "slow":
            await held.wait()
        return await answers(request)

    host = Expiring(tmp_path, settings_of(expire_slice=2), answer=slow)
    for number in range(8):
        host.hosted.now_ms += 1
        await host.say(f"s{number}")
    for number in range(5):
        host.hosted.say(f"s{number}", "slow", 100 + number)
    assert await host.expire(host.hosted.now_ms + NEVER_MS) == 2
    assert {f"s{number}" for number in (5, 6)}.isdisjoint(host.alive())
    held.set()
    await host.quiet()
    await host.hosted.crash()


async def test_a_message_that_waits_while_batches_stand_still_finds_its_session(tmp_path: Path) -> None:
    host = Expiring(tmp_path, settings_of())
    await host.say("s")
    deadline = host.hosted.now_ms + TTL_MS
    host.hosted.now_ms = deadline - 1
    host.barrier()
    host.hosted.now_ms = deadline + NEVER_MS
    assert await host.expiry.expire_slice() == 0, "no barrier: what came meanwhile may not be taken yet"
    host.barrier()
    assert await host.expiry.expire_slice() == 0, "the first barrier: its batch was chosen before"
    host.expiry.barrier(host.batch)
    assert await host.expiry.expire_slice() == 0, "asked again for the same batch, as after an answer that was lost"
    await host.say("s", "I wrote in time")
    host.barrier()
    assert await host.expiry.expire_slice() == 0
    assert host.state("s").turns == 2
    await host.hosted.crash()


async def test_a_host_that_was_never_asked_for_a_barrier_expires_nothing(tmp_path: Path) -> None:
    host = Expiring(tmp_path, settings_of())
    await host.say("s")
    host.hosted.now_ms += NEVER_MS
    host.barrier()
    assert await host.expiry.expire_slice() == 0
    await host.hosted.crash()


async def test_the_slice_is_durable_before_the_next_one(tmp_path: Path) -> None:
    host = Expiring(tmp_path, settings_of())
    await host.say("s")
    await host.expire(host.hosted.now_ms + NEVER_MS)
    assert host.hosted.shard.journal.durable_lsn == host.hosted.shard.journal.appended_lsn
    assert host.hosted.shard.sessions.unwritten == 0
    await host.hosted.crash()


async def test_a_turn_that_begins_within_a_slice_is_safe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop turns to other work between the look into the index and the record."""
    monkeypatch.setattr(expiry, "YIELD_SESSIONS", 1)
    host = Expiring(tmp_path, settings_of())
    for name in "abc":
        host.hosted.now_ms += 1
        await host.say(name)
    host.at(host.hosted.now_ms + NEVER_MS)
    slice_ = asyncio.create_task(host.expiry.expire_slice())
    await asyncio.sleep(0)
    host.hosted.say("c", "just in time", 50)
    assert await slice_ == 2
    await host.quiet()
    assert host.alive() == {"c"}
    assert [message.content for message in host.state("c").messages][-1] == "re just in time"
    await host.hosted.crash()


async def test_the_final_record_holds_the_history_only_if_the_sink_asks_for_it(tmp_path: Path) -> None:
    for final in (False, True):
        host = Expiring(tmp_path / str(final), settings_of(final=final))
        await host.say("s")
        messages = host.state("s").messages
        await host.expire(host.hosted.now_ms + TTL_MS)
        record = host.hosted.journal()[-1]
        assert isinstance(record, Expired)
        assert (record.final, record.messages) == (final, messages if final else ())
        await host.hosted.crash()


async def test_a_failing_store_is_reported_and_a_failed_shard_left_alone(tmp_path: Path) -> None:
    host = Expiring(tmp_path, settings_of())
    await host.say("s")
    host.at(host.hosted.now_ms + NEVER_MS)
    error = StorageFull("no space")

    def full(now_ms: int, limit: int) -> list[tuple[int, str]]:
        raise error

    host.hosted.store.due = full  # type: ignore[method-assign]
    assert await host.expiry.expire_slice() == 0
    assert host.failures == [error]
    host.hosted.shard.fail(error)
    assert await host.expiry.expire_slice() == 0
    assert host.failures == [error]
    await host.hosted.crash()


async def test_the_next_owner_knows_who_expired_and_when_the_others_will(tmp_path: Path) -> None:
    first = Expiring(tmp_path, settings_of())
    await first.say("gone")
    first.at(first.hosted.now_ms + TTL_MS)
    await first.say("kept", session_ttl_s=5)
    await first.say("kept", ttl_s=9)
    assert await first.expiry.expire_slice() == 1
    lived, due = first.state("kept"), first.hosted.store.due(2**62, 9)
    await first.hosted.crash()
    # Other settings: what was promised holds.
    second = Expiring(tmp_path, settings_of(ttl_s=1), term=2)
    assert (second.alive(), second.state("gone"), second.state("kept")) == ({"kept"}, None, lived)
    assert second.hosted.store.due(2**62, 9) == due == [(lived.updated_ms + 9000, "kept")]
    await second.hosted.crash()


# ---------------------------------------------------------------------- a plain model

NAMES = st.sampled_from("abcd")
TTLS = st.sampled_from([None, None, 0, 1, 3])
MOVES = st.one_of(
    st.tuples(st.just("say"), NAMES, TTLS, TTLS),
    st.tuples(st.just("say"), NAMES, TTLS, TTLS),
    st.tuples(st.just("control"), NAMES, st.sampled_from(["reset", "cancel"])),
    st.tuples(st.just("wait"), st.integers(1, 2500)),
    st.tuples(st.just("expire"), st.integers(1, 3)),
    st.tuples(st.just("restart")),
)


class Plain:
    """Who is alive, by the rules alone: name -> (last activity, own time to live, what it is now), oldest deadline first."""

    DEFAULT_MS = 2000

    def __init__(self) -> None:
        self.sessions: dict[str, tuple[int, int | None, int]] = {}

    def act(self, name: str, now: int, ttl: int | None = None, session: int | None = None) -> None:
        _, own, _ = self.sessions.get(name, (0, None, 0))
        own = own if session is None else session * 1000
        default = self.DEFAULT_MS if own is None else own
        self.sessions[name] = (now, own, default if ttl is None else ttl * 1000)

    def expire(self, now: int, limit: int) -> None:
        due = sorted((at + ttl, name) for name, (at, _, ttl) in self.sessions.items() if ttl and at + ttl <= now)
        for _, name in due[:limit]:
            del self.sessions[name]


async def live(root: Path, moves: list[tuple[Any, ...]]) -> None:
    plain, term = Plain(), 1
    host = Expiring(root, settings_of(ttl_s=Plain.DEFAULT_MS / 1000))
    now = host.hosted.now_ms = 2_000_000
    for number, move in enumerate(moves):
        if move[0] == "say":
            _, name, ttl, session = move
            host.hosted.say(name, "q", 1000 + number, ttl_s=ttl, session_ttl_s=session)
            plain.act(name, now, ttl, session)
        elif move[0] == "control":
            host.hosted.say(move[1], "", 1000 + number, type=move[2], messages=[])
            plain.act(move[1], now)
        elif move[0] == "wait":
            now += move[1]
        elif move[0] == "expire":
            host.expiry._slice = move[1]
            host.at(now)
            await host.expiry.expire_slice()
            plain.expire(now, move[1])
        else:
            await host.hosted.crash()
            term += 1
            host = Expiring(root, settings_of(ttl_s=Plain.DEFAULT_MS / 1000), term)
        host.hosted.now_ms = now
        await host.quiet()
        assert host.alive() == set(plain.sessions)
        index = {name: deadline for deadline, name in host.hosted.store.due(2**62, 100)}
        assert index == {name: at + ttl for name, (at, _, ttl) in plain.sessions.items() if ttl}
        assert all(decode_state(data).deadline_ms == index.get(name) for name, data in host.hosted.store.items())
    await host.hosted.crash()
    again = Expiring(root, settings_of(), term + 1)
    assert again.alive() == set(plain.sessions)
    takes = [r for r in again.hosted.journal() if isinstance(r, Taken) and r.event.type == "message"]
    assert len([r for r in again.hosted.journal() if isinstance(r, Outcome)]) == len(takes)
    await again.hosted.crash()


@examples(max_examples=60, deadline=None)
@given(moves=st.lists(MOVES, min_size=5, max_size=40))
def test_whatever_happens_the_sessions_alive_are_those_of_a_plain_model(moves: list[tuple[Any, ...]]) -> None:
    with directory() as root:
        asyncio.run(live(root, moves))

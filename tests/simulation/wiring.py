"""What a world puts in the place of a host's services, and the settings that it runs with."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from hermes_spark.app import host as app
from hermes_spark.host.host import OpenShard
from hermes_spark.host.shard import Shard, ShardRules
from hermes_spark.host.wire import HostPayload
from hermes_spark.settings import (
    HostSettings,
    IntakeSettings,
    Settings,
    SinkSettings,
    SnapshotSettings,
    SourceSettings,
    StateSettings,
)
from hermes_spark.state.journal import Flushed, ShardJournal
from hermes_spark.state.memory import MemoryStore
from hermes_spark.state.records import Returned, decode
from hermes_spark.streaming import handoff
from simulation.network import wire
from simulation.services import SimModel, SimToolCaller, registry

if TYPE_CHECKING:
    from simulation.world import World

RETURNED = b"\xa1r"
"""How the tag of a call's result is encoded."""


def settings_of(rng: random.Random, kinds: list[str], *, root: Path, has_offsets: bool) -> Settings:
    """Settings by chance, and such that the kinds of faults can happen."""
    tasks_only = "lose_task" in kinds or rng.random() < 0.5
    return Settings(
        hosts=2,
        checkpoint="/checkpoint",
        source=SourceSettings(kind="load" if has_offsets else "files", path="/events"),
        host=HostSettings(address="host", restart_timeout_s=5.0, max_open_turns=rng.choice((2, 1024))),
        intake=IntakeSettings(chunk_rows=rng.choice((2, 256)), driver_rows=0 if tasks_only else 256),
        state=StateSettings(
            shards=rng.randint(2, 4),
            local_path=f"{root}/local",
            journal_file_bytes=rng.choice((1500, 8_388_608)),
            ttl_s=rng.choice((3.0, 8.0, 1800.0, 1800.0)),
        ),
        snapshot=SnapshotSettings(every_commits=rng.choice((2, 300)), every_records=rng.choice((10, 5000))),
        sink=SinkSettings(publish_interval_ms=rng.choice((0, 1000)), expired=rng.random() < 0.5),
    )


@contextlib.contextmanager
def services(world: World) -> Iterator[None]:
    """Let the hosts of a world use its services, its store and its wires, and let it see what they open and confirm."""
    stand_ins = {
        "Registry": SimpleNamespace(parse=lambda text, settings: registry()),
        "tokenizer_of": lambda settings: None,
        "TritonModel": lambda *_: SimModel(world.tools.rng),
        "HttpToolCaller": lambda settings: SimToolCaller(world.tools),
        "RocksStore": lambda path, **_: MemoryStore.load(path),
        "Storage": SimpleNamespace(at=lambda location: world.state),
        "RocksMemory": lambda *_: None,
        "gc": SimpleNamespace(freeze=lambda: None),
        "_shard_opener": _opener(world, app._shard_opener),
    }
    with contextlib.ExitStack() as patches:
        for name, stand_in in stand_ins.items():
            patches.enter_context(mock.patch.object(app, name, stand_in))
        patches.enter_context(mock.patch.object(handoff, "connected", wire(world.network)["WireClient"]))
        patches.enter_context(mock.patch.object(ShardJournal, "confirm", _confirming(world, ShardJournal.confirm)))
        yield


def _opener(world: World, real: Callable[..., OpenShard]) -> Callable[..., OpenShard]:
    """`app._shard_opener`, which also notes every shard that is opened."""

    def opener(payload: HostPayload, rules: ShardRules) -> OpenShard:
        open_shard = real(payload, rules)

        def opened(number: int, *args: Any) -> Shard:
            shard = open_shard(number, *args)
            world.opened.append((world.loop.current(), number, shard))
            return shard

        return opened

    return opener


def _confirming(world: World, real: Callable[..., None]) -> Callable[..., None]:
    """`ShardJournal.confirm`, which also notes the calls whose result is durable from then on."""

    def confirm(journal: ShardJournal, flushed: Flushed) -> None:
        real(journal, flushed)
        for data in flushed.group.records:
            if data[1:3] == RETURNED and isinstance(record := decode(data), Returned):
                world.tools.finished.add(record.call_id)

    return confirm

"""Files of the state directory cut short, changed by one bit, or gone.

One job is run and killed, and every scenario damages a copy of what it left, in the same place. The job must then refuse to
start with a sentence that names the file (and go on when the file is put back), or end well with nothing lost.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from chaos_parts.points import OFTEN
from chaos_parts.world import SESSIONS, Failed, Scenario, World

KINDS = {
    "meta.json": "meta.json",
    "epochs": "epochs/*.json",
    "commits": "commits/*.json",
    "journal": "journal/*/*/*.log",
    "snapshots": "snapshots/*/*.json",
    "snapshot files": "snapshots/*/files/*",
    "beats": "beats/*.json",
}
"""Every kind of object below the state directory, and where its files lie."""


def cut(file: Path) -> None:
    """Keep the first half."""
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])


def flip(file: Path) -> None:
    """Change one bit in the middle."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes(data)


def remove(file: Path) -> None:
    """Delete it."""
    file.unlink()


def damaged(world: World, kind: str, damage: Callable[[Path], None]) -> None:
    """Damage one file of a killed job's state, start it, and see that the damage is refused or mended."""
    state = _restore(world) / "checkpoint" / "hermes"
    file = _largest(state, kind)
    whole = file.read_bytes()
    damage(file)
    world.hit(f"{damage.__name__} {file.relative_to(state)}")
    world.start()
    if world.wait_end() == 0:
        return
    if not _is_named(file, state, world.last_word()):
        raise Failed(f"the job ended without naming {file.relative_to(state)}: {world.last_word()}")
    file.parent.mkdir(parents=True, exist_ok=True)  # a shard's next owner removes an empty directory
    file.write_bytes(whole)
    world.drain()


def _largest(state: Path, kind: str) -> Path:
    """The newest of the kind's largest files: the one that holds most of what must not be lost."""
    known = {place.partition("/")[0] for place in KINDS.values()}
    unknown = {path.name for path in state.iterdir() if not path.name.startswith(".")} - known
    if unknown:
        raise Failed(f"nothing damages {', '.join(sorted(unknown))}: add it to KINDS")
    files = sorted(state.glob(KINDS[kind]))
    if not files:
        raise Failed(f"the killed job has left no {KINDS[kind]}")
    if kind in ("journal", "snapshot files"):
        return max(files, key=lambda path: path.stat().st_size)
    return files[-1]


def _is_named(file: Path, state: Path, sentence: str) -> bool:
    """Whether a sentence names the file: its directory and its name, or for a missing journal its shard."""
    place = file.relative_to(state)
    if str(place.parent) in sentence and place.name in sentence:
        return True
    return place.parts[0] == "journal" and f"journal of shard {int(place.parts[1])} is missing" in sentence


def _restore(world: World) -> Path:
    """Put the killed job's directories in their place for this world, making them if this is the first; the place."""
    live = world.stack.directory.parent / "damaged"
    kept = live.with_name("damaged-kept")
    world.settings |= {"checkpoint": live / "checkpoint", "source.path": live / "events", "sink.path": live / "out"}
    world.sink, world.job.events = live / "out", live / "events"
    if not kept.exists():
        shutil.rmtree(live, ignore_errors=True)
        (live / "events").mkdir(parents=True)
        _run_and_kill(world)
        facts = {"events": sorted(world.events), "executions": world.tools.counters()["executions"]}
        (live / "facts.json").write_text(json.dumps(facts), encoding="utf-8")
        shutil.copytree(live, kept)
        return live
    shutil.rmtree(live)
    shutil.copytree(kept, live)
    facts = json.loads((live / "facts.json").read_text(encoding="utf-8"))
    world.events = {(name, line) for name, line in facts["events"]}
    world.executed_before = facts["executions"]
    return live


def _run_and_kill(world: World) -> None:
    """Some turns published, more of them under way, and then nothing of the job is left."""
    world.load()
    world.start()
    world.until(lambda: len(world.rows()) >= SESSIONS, "some outcomes")
    world.load(files=2)
    world.mid_batch()
    world.job.kill()
    # Stopped in the ordinary way it finishes the calls under way: what it counts then is final.
    world.tools.part.stop()
    world.start_tools(urlsplit(world.tools.url).port or 0)


DAMAGE = [
    Scenario(f"{words} of {kind}", partial(damaged, kind=kind, damage=damage), settings=OFTEN)
    for kind in KINDS
    for words, damage in {"a truncated file": cut, "a flipped bit": flip, "a missing file": remove}.items()
]

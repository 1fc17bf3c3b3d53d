"""Packs what executors on other machines need, below `.state/packed`, and prints the archive's path.

    pack.py project        src/, conf/, jobs/ and the tokenizers of model_repository/
    pack.py environment    an interpreter (bin/python) with its standard library, and what hermes-spark depends on (packages/)

Both are remade when what they are made of has changed. The environment is a copy of this interpreter, not of its virtual
environment, because one of those only works where its base is installed; other machines need the same operating system and
processor. pyspark is left out: every executor has that of its own Spark. `--name-only` prints the path and makes nothing.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import importlib.metadata
import sys
import sysconfig
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PACKED = ROOT / ".state" / "packed"
SUFFIX = ".tar.gz"
DISTRIBUTION = "hermes-spark"
OF_SPARK = {"pyspark", "py4j"}
LEFT_OUT = {"__pycache__", "site-packages", "dist-packages", "test", "idlelib", "tkinter", "turtledemo", "ensurepip"}
"""Directories of the standard library that a host has no use for."""
LEVEL = 1
"""Of compression: half the size at a fifth of the time of the default."""

Member = tuple[Path, str]
"""A file, and its name in the archive."""


def main() -> int:
    """Pack what was asked for, unless it is there already."""
    parser = argparse.ArgumentParser(prog="pack.py", description=__doc__)
    parser.add_argument("what", choices=("project", "environment"))
    parser.add_argument("--name-only", action="store_true")
    arguments = parser.parse_args()
    members = project if arguments.what == "project" else environment
    made_of = files_of(project()) if arguments.what == "project" else versions()
    archive = PACKED / f"{arguments.what}-{hashlib.sha256(made_of.encode()).hexdigest()[:16]}{SUFFIX}"
    if not (arguments.name_only or archive.exists()):
        print(f"pack.py: packing {archive.name} (once)", file=sys.stderr)
        write(archive, members())
    print(archive)
    return 0


def project() -> Iterator[Member]:
    """What is in a checkout and in no environment."""
    for top in ("src/hermes_spark", "conf", "jobs"):
        yield from below(ROOT / top, top)
    for tokenizer in (ROOT / "model_repository").glob("*/tokenizer"):
        yield from below(tokenizer, str(tokenizer.relative_to(ROOT)))


def environment() -> Iterator[Member]:
    """This interpreter, and the files of every distribution that hermes-spark needs to run."""
    yield Path(sys.executable).resolve(), "bin/python"
    library = Path(sysconfig.get_path("stdlib"))
    yield from below(library, f"lib/{library.name}")
    shared = Path(sysconfig.get_config_var("LIBDIR") or "") / str(sysconfig.get_config_var("INSTSONAME"))
    if sysconfig.get_config_var("Py_ENABLE_SHARED") and shared.exists():
        yield shared.resolve(), f"lib/{shared.name}"
    for name in sorted(needed(DISTRIBUTION) - {DISTRIBUTION} - OF_SPARK):
        for file in importlib.metadata.files(name) or ():
            if not {"..", "__pycache__"} & set(file.parts):  # commands of bin/ are no use without their environment
                yield Path(str(file.locate())), f"packages/{file}"


def needed(name: str) -> set[str]:
    """The distribution and all that it depends on here, by normalised name."""
    done: set[tuple[str, str]] = set()
    waiting = [(canonicalize_name(name), "")]
    while waiting:
        each, extra = waiting.pop()
        if (each, extra) in done or each in OF_SPARK:
            continue
        done.add((each, extra))
        for requirement in map(Requirement, importlib.metadata.requires(each) or ()):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                waiting += [(canonicalize_name(requirement.name), also) for also in ("", *requirement.extras)]
    return {each for each, _ in done}


def below(directory: Path, name: str) -> Iterator[Member]:
    """All files below a directory."""
    for file in directory.rglob("*"):
        inside = file.relative_to(directory)
        if file.is_file() and not LEFT_OUT & set(inside.parts[:-1]):
            yield file, f"{name}/{inside}"


def files_of(members: Iterable[Member]) -> str:
    """Changes with any member's name, size or time of change."""
    told = [(name, file.stat()) for file, name in members]
    return "\n".join(sorted(f"{name} {status.st_size} {status.st_mtime_ns}" for name, status in told))


def versions() -> str:
    """Changes with the interpreter and any distribution in the environment."""
    packages = sorted(needed(DISTRIBUTION) - {DISTRIBUTION})
    return "\n".join([sys.version, sys.prefix, *(f"{each} {importlib.metadata.version(each)}" for each in packages)])


def write(archive: Path, members: Iterable[Member]) -> None:
    """Make the archive under another name first: one with this name is whole."""
    PACKED.mkdir(parents=True, exist_ok=True)
    for older in PACKED.glob(f"{archive.name.partition('-')[0]}-*"):
        older.unlink()
    unfinished = archive.with_suffix(".unfinished")
    with gzip.open(unfinished, "wb", LEVEL) as compressed, tarfile.open(fileobj=compressed, mode="w") as tar:
        for file, name in members:
            tar.add(file, name, recursive=False)
    unfinished.replace(archive)


if __name__ == "__main__":
    sys.exit(main())

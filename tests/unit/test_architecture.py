"""The arrows of the design, read from the import statements: who may import whom, and what only one module may touch.

::

    jobs -> app -> streaming -> host -> agent, state, tools, llm -> messages, events, settings, faults, telemetry -> errors

`cli`, the command, stands where the jobs do. Also what keeps modules readable: their length, the length of their functions,
and the drawn tree of the errors.
"""

from __future__ import annotations

import ast
import pickle
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from hermes_spark import errors
from hermes_spark.errors import HermesError

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "hermes_spark"

BASE = {"messages", "events", "settings", "faults", "telemetry"}
PARTS = {"agent", "state", "tools", "llm"}

MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "messages": set(),
    "events": {"messages"},
    "settings": set(),
    "faults": set(),
    "telemetry": set(),
    "state": BASE - {"settings"},
    "agent": {"messages", "events", "settings", "state", "llm"},
    "tools": BASE,
    "llm": BASE,
    "kafka": BASE,
    "host": BASE | PARTS,
    "streaming": BASE | PARTS | {"host", "kafka"},
    "testing": BASE | PARTS | {"host"},
    "app": BASE | PARTS | {"host", "streaming", "kafka"},
    "cli": {"state", "streaming", "app"},
}
"""Which other top-level names a top-level name may import. Everything may import `errors` and the package's `__version__`."""

AGENT_KNOWS = {"state.records", "state.agent_state", "llm.client"}
"""Of those two packages: the facts and their fold, and what a completion is; never a store or a server."""

IMPURE = {
    "asyncio",
    "time",
    "random",
    "datetime",
    "os",
    "pathlib",
    "io",
    "socket",
    "threading",
    "secrets",
    "uuid",
    "logging",
}

ONLY_IN: dict[str, tuple[str, ...]] = {
    "pyspark": ("app", "streaming", "llm.udf", "tools.udf"),
    "rocksdict": ("state.rocksdb",),
    "tritonclient": ("llm.triton",),
    "pyarrow.flight": ("host.wire",),
    "obstore": ("state.storage",),
    "confluent_kafka": ("kafka",),
    "transformers": ("llm.tokenizer",),
}
"""Libraries and the modules that may import them: a module `a.b` stands for itself, `a.b.c`, and `a.b_c`."""

CONCRETE = {
    "RocksStore": ("streaming.snapshot_start",),  # reads copies of what hosts wrote; there is nothing to choose
    "TritonModel": ("llm.udf",),
    "HttpToolCaller": (),
    "FileJournals": (),
    "ObjectJournals": (),
}
"""What `app` puts behind the protocols, and who else may name it: a pandas_udf makes its client in Spark's worker."""

LONG_MODULES: set[str] = set()
"""Modules above 300 lines. Take names out; put none in."""

LONG_FUNCTIONS: set[str] = set()
"""Functions above 40 lines. Take names out; put none in."""


class Import(NamedTuple):
    """One name that a module imports, in full: `from a.b import c` imports `a.b.c`."""

    module: str
    target: str


@cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), str(file))


def modules() -> dict[str, Path]:
    """The package's modules by their name below it; a package's `__init__` goes by the package's name."""
    names = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = file.relative_to(PACKAGE).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return names


MODULES = modules()
CODE = [*MODULES.values(), *sorted((ROOT / "jobs").rglob("*.py")), *sorted((ROOT / "model_repository").rglob("*.py"))]


def targets(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute"
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


IMPORTS = [
    Import(name, target)
    for name, file in MODULES.items()
    for node in ast.walk(tree_of(file))
    for target in targets(node)
]


def within(name: str, module: str) -> bool:
    """Whether `name` is `module`, below it, or a sibling that carries its name (`llm.triton_contract`)."""
    return name == module or name.startswith((f"{module}.", f"{module}_"))


def ours(target: str) -> str:
    """The top-level name of the package that `target` lies in; empty for what is not ours and for the package itself."""
    parts = target.split(".")
    if parts[0] != "hermes_spark" or len(parts) == 1 or parts[1] == "__version__":
        return ""
    return parts[1]


def test_arrows_point_one_way():
    wrong = [
        f"{module} imports {target}"
        for module, target in IMPORTS
        if ours(target) not in {"", "errors", top(module)} and ours(target) not in MAY_IMPORT.get(top(module), set())
    ]
    assert wrong == []


def top(module: str) -> str:
    return module.split(".", maxsplit=1)[0]


def test_every_module_has_its_place_in_the_design():
    assert {top(name) for name in MODULES} - {""} <= MAY_IMPORT.keys()


def test_the_root_of_the_package_imports_nothing():
    assert [target for module, target in IMPORTS if module == ""] == []


def test_the_agent_knows_facts_and_values_only():
    wrong = [
        f"{module} imports {target}"
        for module, target in IMPORTS
        if top(module) == "agent"
        and ours(target) in {"state", "llm"}
        and not any(target.startswith(f"hermes_spark.{known}.") for known in AGENT_KNOWS)
    ]
    assert wrong == []


def test_the_agent_is_pure():
    wrong = [
        f"{module} imports {target}"
        for module, target in IMPORTS
        if top(module) == "agent" and target.split(".")[0] in IMPURE
    ]
    assert wrong == []


@pytest.mark.parametrize("library", ONLY_IN)
def test_a_library_is_touched_in_one_place(library):
    wrong = [
        f"{module} imports {target}"
        for module, target in IMPORTS
        if (target == library or target.startswith(f"{library}."))
        and not any(within(module, allowed) for allowed in ONLY_IN[library])
    ]
    assert wrong == []


def test_only_app_names_concrete_stores_and_clients():
    wrong = []
    for module, file in MODULES.items():
        names = {node.id for node in ast.walk(tree_of(file)) if isinstance(node, ast.Name)}
        names |= {target.rpartition(".")[2] for name, target in IMPORTS if name == module}
        names -= {node.name for node in ast.walk(tree_of(file)) if isinstance(node, ast.ClassDef)}
        wrong += [
            f"{module} names {name}"
            for name, others in CONCRETE.items()
            if name in names and not any(within(module, allowed) for allowed in ("app", "testing", *others))
        ]
    assert wrong == []


def test_jobs_import_only_app_and_pyspark():
    wrong = [
        f"{file.name} imports {target}"
        for file in (ROOT / "jobs").rglob("*.py")
        for node in ast.walk(tree_of(file))
        for target in targets(node)
        if ours(target) not in {"", "app"}
    ]
    assert wrong == []


def test_jobs_are_thin():
    assert [file.name for file in (ROOT / "jobs").rglob("*.py") if lines(file) > 30] == []


def lines(file: Path) -> int:
    return len(file.read_text(encoding="utf-8").splitlines())


def test_modules_are_short_enough_to_read():
    assert {str(file.relative_to(ROOT)) for file in CODE if lines(file) > 300} == LONG_MODULES


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from the first statement after the docstring to the last."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def test_functions_are_short_enough_to_read():
    long = {
        f"{file.relative_to(ROOT)}:{node.name}"
        for file in CODE
        for node in ast.walk(tree_of(file))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and body_lines(node) > 40
    }
    assert long == LONG_FUNCTIONS


# errors


def descendants(error: type[HermesError]) -> Iterator[type[HermesError]]:
    for child in error.__subclasses__():
        yield child
        yield from descendants(child)


ERRORS = [HermesError, *(error for error in descendants(HermesError) if error.__module__ == errors.__name__)]


@pytest.mark.parametrize("error", ERRORS)
def test_an_error_crosses_processes_unchanged(error):
    raised = error("the shard 3 is gone; start it again")
    received = pickle.loads(pickle.dumps(raised))
    assert type(received) is error
    assert str(received) == str(raised) == "the shard 3 is gone; start it again"
    assert vars(received) == vars(raised)


def test_the_drawn_tree_of_errors_is_the_real_one():
    drawn: dict[str, str] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^ {4}((?:[│ ]   )*)(?:[├└]── )?([A-Z]\w+)\b", line)
        if match and (match[2] == "HermesError" or "──" in line):
            depth = 0 if match[2] == "HermesError" else len(match[1]) // 4 + 1
            path[depth:] = [match[2]]
            drawn[match[2]] = path[depth - 1] if depth else "Exception"
    assert drawn == {error.__name__: error.__bases__[0].__name__ for error in ERRORS}


def test_no_other_module_adds_to_the_tree_of_errors():
    known = {error.__name__ for error in ERRORS}
    elsewhere = [
        f"{module} defines {node.name}"
        for module, file in MODULES.items()
        if module != "errors"
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.ClassDef) and known & {ast.unparse(base).rpartition(".")[2] for base in node.bases}
    ]
    assert elsewhere == []

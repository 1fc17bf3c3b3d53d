"""What a local Triton server needs before it can run: its environment, its backend directory, its model repository.

The wheel nvidia-pytriton carries the server, but expects to be started by a launcher of its own. What that would do is done
here: the python backend gets the stub of the running Python version, and libpython is put on the library path. The wheel
itself is never changed. Used by `scripts/triton` only. Standard library only.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "model_repository" / "requirements.txt"
HOST = "127.0.0.1"
INSTALL_ATTEMPTS = 3

ASK_PYTHON = """
import importlib.util, json, sys, sysconfig
var = sysconfig.get_config_var
print(json.dumps({
    "version": "%d.%d" % sys.version_info[:2],
    "library": var("INSTSONAME") or var("LDLIBRARY"),
    "directories": [d for d in (var("LIBDIR"), var("LIBPL"), sys.base_prefix + "/lib") if d] + [
        "/usr/lib/" + (var("MULTIARCH") or "")],
    "server": importlib.util.find_spec("pytriton").submodule_search_locations[0] + "/tritonserver",
}))
"""


class TritonError(Exception):
    """The server cannot be set up, started or stopped; the text is a sentence for the person at the terminal."""


class Layout(NamedTuple):
    """What to serve, and where."""

    state: Path
    """Directory for the copies and links that the server is given."""
    repository: Path
    values: tuple[str, ...]
    """`NAME=VALUE` for parameters of the models."""
    ports: dict[str, int]
    """Of `http`, `grpc` and `metrics`."""


def environment() -> Path:
    """The virtual environment of the server, made if it is not there; returns its python."""
    given = os.environ.get("HERMES_TRITON_VENV")
    if given:
        python = Path(given) / "bin" / "python"
        if not python.exists():
            raise TritonError(f"HERMES_TRITON_VENV names {given}, which is no virtual environment (no bin/python)")
        return python
    state = ROOT / ".state"
    state.mkdir(exist_ok=True)
    with (state / "venv-triton.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released on close; whoever comes second finds the environment made
        return _own_environment(ROOT / ".venv-triton")


def _own_environment(venv: Path) -> Path:
    python = venv / "bin" / "python"
    stamp = venv / "requirements.sha256"
    wanted = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted and python.exists():
        return python
    project = ROOT / ".venv" / "bin" / "python"
    base = str(project) if project.exists() else sys.executable
    print(f"making {venv} with {base}; the first time this downloads the Triton server", flush=True)
    if subprocess.run([base, "-m", "venv", "--clear", str(venv)], check=False).returncode != 0:
        raise TritonError(f"{base} cannot make virtual environments; on Debian or Ubuntu install python3-venv")
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "5"]
    for attempt in range(1, INSTALL_ATTEMPTS + 1):
        if subprocess.run([*install, "--timeout", "60", "-r", str(REQUIREMENTS)], check=False).returncode == 0:
            stamp.write_text(wanted)
            return python
        print(f"installation failed (attempt {attempt} of {INSTALL_ATTEMPTS})", file=sys.stderr, flush=True)
        time.sleep(2 * attempt)
    raise TritonError(f"the packages of {REQUIREMENTS} could not be installed; see pip's messages above")


def command(layout: Layout) -> tuple[list[str], dict[str, str]]:
    """The server's command line and environment variables, after laying out what they refer to."""
    python = environment()
    asked = subprocess.run([str(python), "-c", ASK_PYTHON], capture_output=True, text=True, check=False)
    if asked.returncode != 0:
        raise TritonError(f"{python} has no pytriton; install {REQUIREMENTS} there: {asked.stderr.strip()[-300:]}")
    about = json.loads(asked.stdout)
    libraries = [directory for directory in about["directories"] if (Path(directory) / about["library"]).exists()]
    if not libraries or ".so" not in about["library"]:
        raise TritonError(
            f"Triton's python backend needs the shared library of Python {about['version']}, which {python} lacks; "
            f"on Debian or Ubuntu install libpython{about['version']}, elsewhere a Python built with --enable-shared"
        )
    backends = _lay_out_backend(Path(about["server"]), about["version"], layout.state)
    line = [f"{about['server']}/bin/tritonserver", "--model-repository", str(_lay_out_models(layout))]
    line += ["--backend-directory", str(backends), "--exit-timeout-secs", "10", "--disable-auto-complete-config"]
    for name, port in layout.ports.items():
        line += [f"--{name}-address", HOST, f"--{name}-port", str(port)]
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    variables["PATH"] = f"{python.parent}:{variables.get('PATH', '')}"
    variables["LD_LIBRARY_PATH"] = ":".join([*libraries, *filter(None, [variables.get("LD_LIBRARY_PATH")])])
    variables["VIRTUAL_ENV"] = str(python.parent.parent)
    variables["PYTHONNOUSERSITE"] = "1"
    return line, variables


def _lay_out_backend(server: Path, version: str, state: Path) -> Path:
    """A backend directory of links into the wheel, with the stub of this Python version among them."""
    stub = server / "python_backend_stubs" / version / "triton_python_backend_stub"
    if not stub.exists():
        raise TritonError(f"the Triton wheel has no stub for Python {version}; use one of 3.10 to 3.12")
    backend = state / "backends" / "python"
    shutil.rmtree(backend, ignore_errors=True)
    backend.mkdir(parents=True)
    for source in [*(server / "backends" / "python").glob("*.*"), stub]:
        (backend / source.name).symlink_to(source)
    return backend.parent


def _lay_out_models(layout: Layout) -> Path:
    """A model repository of links to the given one, but for the configs, which hold the layout's values."""
    original = layout.repository.resolve()
    models = [path.parent for path in sorted(original.glob("*/config.pbtxt"))]
    if not models:
        raise TritonError(f"{original} holds no model (no */config.pbtxt)")
    copy = layout.state / "model_repository"
    shutil.rmtree(copy, ignore_errors=True)
    values = dict(_assignment(text) for text in layout.values)
    for model in models:
        (copy / model.name).mkdir(parents=True)
        for path in model.iterdir():
            if path.name != "config.pbtxt":
                (copy / model.name / path.name).symlink_to(path)
        config = (model / "config.pbtxt").read_text(encoding="utf-8")
        (copy / model.name / "config.pbtxt").write_text(_with_values(config, values), encoding="utf-8")
    return copy


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise TritonError(f"--set expects NAME=VALUE, not {text!r}")
    return name, value


def _with_values(config: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        found = re.search(rf'key: "{re.escape(name)}" value: \{{ string_value: ("[^"]*")', config)
        if found is None:
            known = ", ".join(re.findall(r'key: "(\w+)"', config))
            raise TritonError(f"--set {name}: the model has no such parameter; it has {known}")
        config = config[: found.start(1)] + json.dumps(value) + config[found.end(1) :]
    return config

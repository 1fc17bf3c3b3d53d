"""scripts/kafka as a person uses it, and what dgx-spark-submit is given of the connector."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kafka_server import answers
from kafka_topics import Topics
from stack import ROOT

SCRIPT = ROOT / "scripts" / "kafka"
SUBMIT_HELPER = f'source {ROOT}/scripts/environment.sh; source {ROOT}/scripts/kafka-jars.sh; kafka_jars "$@"'


def script(state: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(SCRIPT), *arguments, "--state", str(state)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def facts(state: Path) -> dict[str, object]:
    return json.loads((state / "server.json").read_text())


def test_started_again_it_has_the_same_ports_and_topics(tmp_path):
    try:
        first = script(tmp_path, "start", "--listener", "SASL_PLAINTEXT")
        assert first.returncode == 0, first.stderr
        ports = facts(tmp_path)["ports"]
        assert set(ports) == {"PLAINTEXT", "CONTROLLER", "SASL_PLAINTEXT"}
        topics = Topics(f"127.0.0.1:{ports['PLAINTEXT']}")
        name = topics.create()
        topics.send(name, b"a")
        assert script(tmp_path, "start").stdout.startswith("already running: ")
        assert script(tmp_path, "stop").stdout == "stopped\n"
        assert script(tmp_path, "status").stderr == "scripts/kafka: not running\n"
        assert script(tmp_path, "start", "--listener", "SASL_PLAINTEXT").returncode == 0
        assert facts(tmp_path)["ports"] == ports
        assert [record.value() for record in Topics(topics.bootstrap).read(name)] == [b"a"]
        assert script(tmp_path, "status").stdout.startswith("ready: ")
    finally:
        script(tmp_path, "stop")


def test_a_broker_in_the_foreground_ends_with_its_parent(tmp_path):
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import subprocess, sys; subprocess.run(sys.argv[1:])",
            *(str(SCRIPT), "run", "--state", str(tmp_path)),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until(lambda: (tmp_path / "server.json").exists() and answers(facts(tmp_path)["ports"]["PLAINTEXT"]))
    finally:
        parent.kill()
        parent.wait(10)
    until(lambda: not Path(f"/proc/{facts(tmp_path)['pid']}").exists() or dead(facts(tmp_path)["pid"]))


def test_a_taken_port_is_named(tmp_path, kafka):
    port = kafka.bootstrap.rpartition(":")[2]
    failed = script(tmp_path, "start", "--port", port)
    assert failed.returncode == 1
    assert failed.stderr.startswith(f"scripts/kafka: port {port} (PLAINTEXT) is taken")


@pytest.mark.parametrize(
    ("arguments", "environment", "given"),
    [
        (["--conf", "spark.hermes.source.kind=kafka", "job.py"], {}, True),
        (["--conf=spark.hermes.source.kind=kafka", "job.py"], {}, True),
        (["job.py"], {"HERMES_SOURCE_KIND": "kafka"}, True),
        (["--conf", "spark.hermes.source.kind=files", "job.py"], {"HERMES_SOURCE_KIND": "kafka"}, False),
        (["--conf", "spark.hermes.source.kind=kafka", "--jars", "own.jar", "job.py"], {}, False),
        (["--packages", "a:b:1", "job.py"], {"HERMES_SOURCE_KIND": "kafka"}, False),
        (["job.py"], {"HERMES_FILE": str(ROOT / "conf" / "hermes.yaml")}, False),
    ],
)
def test_the_connector_is_given_when_kafka_is_read_and_no_other_jars_are_named(tmp_path, arguments, environment, given):
    (tmp_path / "connector").mkdir()
    jars = [tmp_path / "connector" / name for name in ("a.jar", "b.jar")]
    for jar in jars:
        jar.touch()
    command = ["bash", "-c", f"set -euo pipefail; {SUBMIT_HELPER}", "bash", *arguments]
    where = {"PATH": os.environ["PATH"], "HERMES_KAFKA_JARS": str(tmp_path), **environment}
    done = subprocess.run(command, capture_output=True, text=True, env=where, timeout=10, check=True)
    assert done.stdout.strip() == (",".join(map(str, jars)) if given else "")


def dead(pid: object) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"


def until(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)

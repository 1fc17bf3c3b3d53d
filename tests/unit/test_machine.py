"""A host on another machine than the state's directory, or of another version, refuses before it opens anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermes_spark.app.host import run_host
from hermes_spark.errors import StartError
from hermes_spark.host import machine
from hermes_spark.host.machine import check_machine, machine_id
from hermes_spark.host.wire import HostPayload, pack
from hermes_spark.settings import Settings, to_json
from hermes_spark.streaming.fleet_host import LASTING_FAULTS


def test_this_machine_and_any_machine_will_do() -> None:
    check_machine(machine_id(), "/state")
    check_machine("", "s3://bucket/state")


def test_another_machine_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    drivers = machine_id()
    monkeypatch.setattr(machine, "BOOT_ID", tmp_path / "boot_id")
    (tmp_path / "boot_id").write_text("another\n")
    with pytest.raises(
        StartError, match=r"another machine than the driver's.*\(/state\).*spark\.hermes\.state\.path to an s3"
    ):
        check_machine(drivers, "/state")


def test_a_machine_without_a_boot_id_goes_by_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "BOOT_ID", tmp_path / "nowhere")
    check_machine(machine_id(), "/state")


def test_the_query_ends_with_that_sentence_instead_of_starting_hosts_again() -> None:
    payload = HostPayload(0, "t", "", "", "q", "/state", to_json(Settings()).encode(), machine="elsewhere")
    exit_ = run_host(pack(payload))
    assert exit_.error in LASTING_FAULTS
    assert "another machine" in exit_.message


def test_a_host_of_another_version_ends_the_query_too() -> None:
    settings = b'{"a setting that this version does not know": 1}'
    exit_ = run_host(pack(HostPayload(0, "t", "", "", "q", "/state", settings)))
    assert exit_.error in LASTING_FAULTS
    assert "run one version of hermes-spark on all machines" in exit_.message

"""A host's task that ends, raises or dies is always reported to the fleet."""

from __future__ import annotations

import os
import queue
import signal
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from hermes_spark.host.wire import HostExit
from hermes_spark.streaming.launcher import SparkHostLauncher

pytestmark = [pytest.mark.spark, pytest.mark.timeout(120)]


def ends_well(payload: bytes) -> HostExit:
    return HostExit("StorageFull", payload.decode())


def raises(payload: bytes) -> HostExit:
    raise ZeroDivisionError(payload.decode())


def dies(payload: bytes) -> HostExit:
    os.kill(os.getpid(), signal.SIGKILL)
    return HostExit()


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    session.sparkContext.addPyFile(__file__)
    yield session
    session.stop()


@pytest.mark.parametrize(
    ("entry", "error", "says"),
    [
        ("ends_well", "StorageFull", "payload"),
        ("raises", "HostError", "ZeroDivisionError"),
        ("dies", "HostError", "crashed"),
    ],
)
def test_however_a_host_ends_the_fleet_hears_of_it(spark: SparkSession, entry: str, error: str, says: str) -> None:
    exits: queue.Queue[HostExit] = queue.Queue()
    SparkHostLauncher(spark.sparkContext, f"run-{entry}", f"test_launcher:{entry}").launch(0, b"payload", exits.put)
    exit_ = exits.get(timeout=60)
    assert exit_.error == error
    assert says in exit_.message

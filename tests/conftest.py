"""Fixtures for tests on real parts: Triton starts once per session, each test has a tool service of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from kafka_broker import KafkaBroker
from kafka_secure import Secured
from object_server import S3Server, running_s3
from stack import Stack, ToolService, running_stack

# Nothing here asserts a time, and a shared machine may stand still for a moment.
hypothesis.settings.register_profile("untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("untimed")

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


@pytest.fixture(scope="session")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The gRPC address of a Triton server with the reference engine, quick enough for tests."""
    with running_stack(tmp_path_factory.mktemp("triton")) as stack:
        yield stack.triton(first_token_ms=20)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """A real S3-compatible server."""
    with running_s3() as server:
        yield server


@pytest.fixture(scope="session")
def kafka_secured(tmp_path_factory: pytest.TempPathFactory) -> Secured:
    """Certificates and login of the broker's second listener."""
    return Secured(tmp_path_factory.mktemp("kafka-tls"))


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory, kafka_secured: Secured) -> Iterator[KafkaBroker]:
    """A real Kafka broker that takes records of up to 20 MB; a test has topics of its own there, and leaves it running."""
    with running_stack(tmp_path_factory.mktemp("kafka")) as stack:
        # A killed broker is let in again only when its former life has been silent for so long.
        quick = ["--set", "broker.session.timeout.ms=4000", "--set", "broker.heartbeat.interval.ms=1000"]
        broker = KafkaBroker(stack, "--set", "message.max.bytes=20000000", *quick, *kafka_secured.broker_options)
        broker.start()
        yield broker


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    """An empty stack below the test's directory."""
    with running_stack(tmp_path / "stack") as stack:
        yield stack


@pytest.fixture
def tools(stack: Stack) -> ToolService:
    """The demo's tool service."""
    return stack.tools()

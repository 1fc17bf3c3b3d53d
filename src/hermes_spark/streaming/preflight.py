"""Checks before anything starts: what would otherwise hang or fail late, said in one sentence."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import msgspec
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from hermes_spark import __version__
from hermes_spark.errors import StartError
from hermes_spark.settings import Settings


class Slots(msgspec.Struct, frozen=True):
    """How the cluster's slots are divided."""

    hosts: int
    tasks: int
    """Left for the tasks of micro-batches."""
    at_first: int = 0
    """Hosts that there is room for now; the others start when executors join. 0: all of them."""
    cpus: int = 0
    """Cores that each host asks Spark for, so that no two share an executor; 0: one slot, wherever."""


def divide_slots(slots: int, wanted_hosts: int) -> Slots:
    """Hosts and tasks for `slots` slots; `wanted_hosts` 0 means one per two slots, at least one.

    Raises `StartError` when no slot is left for hand-offs: batches would wait for ever.
    """
    hosts = wanted_hosts or max(1, slots // 2)
    if slots < hosts + 1:
        raise StartError(
            f"{hosts} agent hosts need at least {hosts + 1} slots and Spark has {slots}: every host holds a slot for good and "
            f"micro-batches need one more; use --master local[{hosts + 1}] or more cores, or fewer spark.hermes.hosts"
        )
    return Slots(hosts, slots - hosts)


def check_spark(context: SparkContext) -> None:
    """Refuse confs under which a host could run twice. Raises `StartError`."""
    conf = context.getConf()
    if conf.get("spark.speculation", "false").lower() == "true":
        raise StartError(
            "spark.speculation is on: Spark would start a second copy of every host; set spark.speculation=false"
        )
    if conf.contains("spark.speculation.task.duration.threshold"):
        raise StartError(
            "spark.speculation.task.duration.threshold is set: Spark could start a second copy of a host; remove it"
        )


def check_workers(context: SparkContext) -> None:
    """Verify that the workers' interpreter has this package, in this version. Raises `StartError`."""
    context.setJobDescription("hermes-spark: check of the workers' Python")
    try:
        found = context.parallelize([0], 1).mapPartitions(_versions).collect()[0]
    except (Py4JError, PySparkException) as exc:
        missing = next((line.strip() for line in str(exc).splitlines() if "ModuleNotFoundError" in line), "")
        if not missing:
            raise
        raise StartError(
            f"the Python of Spark's workers lacks a package ({missing}); set PYSPARK_PYTHON (or spark.pyspark.python) to an "
            "interpreter where hermes-spark is installed"
        ) from None
    finally:
        context.setJobDescription(None)
    if found != (__version__, sys.version_info[:2]):
        raise StartError(
            f"the workers run hermes-spark {found[0]} on Python {found[1]}, the driver {__version__} on "
            f"{sys.version_info[:2]}; both sides need the same: set PYSPARK_PYTHON to the same environment"
        )


def check_source(settings: Settings) -> None:
    """Refuse what a source needs and this Spark lacks. Raises `StartError`."""
    if settings.source.kind == "load":
        try:
            import pyspark.sql.datasource  # noqa: F401
        except ImportError:
            raise StartError("the source `load` needs Spark 4; use rate or files") from None


def _versions(_: Iterator[int]) -> Iterator[tuple[str, tuple[int, ...]]]:
    import hermes_spark

    yield hermes_spark.__version__, sys.version_info[:2]

"""The driver's side of run-ahead: tells the hosts what to read, and asks how far they have come.

Every host reads its share of the partitions that a commit names; the first batch is handed over by Spark. A host that is asked
answers what is durable in journals, so that a batch of which everything is taken already needs no Spark job.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from hermes_spark.errors import HermesError
from hermes_spark.host.ahead_wire import AheadOrder, AheadReport
from hermes_spark.host.wire import Span, pack, unpack
from hermes_spark.settings import Settings
from hermes_spark.streaming.connections import connected
from hermes_spark.streaming.ownership import Ownership

log = logging.getLogger(__name__)

WAIT_S = 0.3
"""How long hosts may take to come to the end of a batch; a hand-off by Spark takes about as long."""
ANSWER_S = 5.0
AT_ONCE = 16
"""Hosts asked at the same time."""


class RunAheadOrders:
    """Used by the one thread that runs batches."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._asking = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="run-ahead")
        self._stopped = False
        self.taken = 0
        """Events that the hosts asked last have taken by themselves since they started."""

    @classmethod
    def of(cls, settings: Settings) -> RunAheadOrders | None:
        """None where hosts do not run ahead: of other sources, when it is switched off, and where the job ends by itself."""
        return cls(settings) if runs_ahead(settings) else None

    def cover(self, ownership: Ownership, ends: Mapping[str, int], spans: Mapping[str, Span]) -> bool:
        """Order the hosts on, and return whether all of `spans` is durable in journals; waits a little for it.

        `ends`: up to where commits have taken everything, by partition.
        """
        if not ends or self._stopped:
            return False
        wanted = {partition: span.stop for partition, span in spans.items()}
        covered = self._order(ownership, ends, wanted)
        missing = {p: stop - covered.get(p, 0) for p, stop in wanted.items() if covered.get(p, 0) < stop}
        if missing:
            log.debug("not read ahead up to the batch's end: %s", missing)
        return not missing

    def committed(self, ownership: Ownership, ends: Mapping[str, int]) -> None:
        """Tell the hosts of a commit, which lets them read on."""
        if ends and not self._stopped:
            self._order(ownership, ends, {})

    def stop(self, ownership: Ownership) -> None:
        """Let the hosts read nothing more."""
        self._stopped = True
        self._order(ownership, {}, {})

    def close(self) -> None:
        """Let go of the threads."""
        self._asking.shutdown(wait=False)

    def _order(self, ownership: Ownership, ends: Mapping[str, int], wanted: Mapping[str, int]) -> dict[str, int]:
        hosts = sorted(set(ownership.addresses.values()))
        shares = share(sorted(ends), len(hosts))
        orders = [
            AheadOrder(
                partitions={partition: ends[partition] for partition in part},
                owners=ownership.addresses,
                terms=ownership.terms,
                wanted={partition: wanted[partition] for partition in part if partition in wanted},
                wait_s=WAIT_S if wanted else 0.0,
            )
            for part in shares
        ]
        reports = list(
            self._asking.map(lambda asked: self._ask(ownership.token, *asked), zip(hosts, orders, strict=True))
        )
        self.taken = sum(report.taken for report in reports)
        return {partition: end for report in reports for partition, end in report.covered.items()}

    def _ask(self, token: str, address: str, order: AheadOrder) -> AheadReport:
        try:
            client = connected(address, token, self._settings.host)
            return unpack(client.act("ahead", pack(order), ANSWER_S), AheadReport)
        except HermesError as exc:
            log.info("the host at %s does not run ahead just now: %s", address, exc)
            return AheadReport({}, 0)


def runs_ahead(settings: Settings) -> bool:
    """Whether hosts read the source themselves."""
    return settings.source.kind == "kafka" and settings.run_ahead.enabled and not settings.trigger.available_now


def share(partitions: Sequence[str], hosts: int) -> list[list[str]]:
    """Which partitions each host reads."""
    return [list(partitions[number::hosts]) for number in range(hosts)]

"""Ways from a host's reading to the owners of shards: one lane per owner, which keeps the order of what is put into it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor

from hermes_spark.errors import HermesError
from hermes_spark.events import Row
from hermes_spark.host.ahead_wire import AheadRange
from hermes_spark.host.cursors import NOBODY, Put
from hermes_spark.host.takes import AHEAD, Offers, Round
from hermes_spark.host.wire import OfferAnswer, OfferHeader, WireClient
from hermes_spark.settings import HostSettings
from hermes_spark.state.records import TermId

MAX_ROWS = 512
"""Of one offer."""
POOL = 16
"""Other hosts that are offered to at the same time."""
OFFER_TIMEOUT_S = 25.0
"""One offer to another host, which lets it wait 10 s for room."""

Answered = Callable[[Put, int], None]
"""What became of a put: `TAKEN`, `NOBODY`, or the offset that the shard wants next."""


class Lane:
    """The way to one owner. Used on the loop only."""

    def __init__(self, answered: Answered) -> None:
        self._answered = answered
        self._puts: deque[Put] = deque()
        self._unanswered: dict[int, Put] = {}
        self._filled = asyncio.Event()
        self.terms: Mapping[int, TermId] = {}
        """Under which the owner is believed to own its shards."""

    def add(self, put: Put) -> None:
        """Send a put once all before it have been answered, or at least taken."""
        self._puts.append(put)
        self._unanswered[id(put)] = put
        self._filled.set()

    async def run(self) -> None:
        """Offer what is put until cancelled."""
        while True:
            await self._filled.wait()
            puts = self._some()
            if not puts:
                self._filled.clear()
                continue
            header, rows = _offer_of(puts, self.terms)
            await self._offer(puts, header, rows)

    async def close(self) -> None:
        """Called after `run` has ended: for whatever is unanswered, nobody has taken it."""
        self._answer(list(self._unanswered.values()), ())

    async def _offer(self, puts: list[Put], header: OfferHeader, rows: list[Row]) -> None:
        raise NotImplementedError

    def _answer(self, puts: Sequence[Put], wanted: Sequence[int]) -> None:
        for number, put in enumerate(puts):
            if self._unanswered.pop(id(put), None) is not None:
                self._answered(put, wanted[number] if number < len(wanted) else NOBODY)

    def _some(self) -> list[Put]:
        puts: list[Put] = []
        rows = 0
        while self._puts and (not puts or rows + len(self._puts[0].rows) <= MAX_ROWS):
            puts.append(self._puts.popleft())
            rows += len(puts[-1].rows)
        return puts


class OwnLane(Lane):
    """To this very host: the next puts are taken while the last ones become durable."""

    def __init__(self, answered: Answered, offers: Offers) -> None:
        super().__init__(answered)
        self._offers = offers
        self._settling: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """See `Lane`."""
        for task in self._settling:
            task.cancel()
        await super().close()

    async def _offer(self, puts: list[Put], header: OfferHeader, rows: list[Row]) -> None:
        round_ = Round()
        try:
            wanted = await self._offers.take_ahead(header, rows, round_)
        except HermesError:  # the shard has failed, and whoever owns it says why
            wanted = ()
        task = asyncio.get_running_loop().create_task(self._settle(puts, wanted, round_))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def _settle(self, puts: list[Put], wanted: Sequence[int], round_: Round) -> None:
        try:
            await round_.durable()
        except HermesError:
            wanted = ()
        self._answer(puts, wanted)


class OtherLane(Lane):
    """To another host, one offer at a time."""

    def __init__(self, answered: Answered, connect: Callable[[], WireClient], pool: Executor) -> None:
        super().__init__(answered)
        self._connect = connect
        self._client: WireClient | None = None
        self._pool = pool

    async def close(self) -> None:
        """See `Lane`."""
        await super().close()
        if self._client is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._client.close)

    async def _offer(self, puts: list[Put], header: OfferHeader, rows: list[Row]) -> None:
        try:
            answer = await asyncio.get_running_loop().run_in_executor(self._pool, self._ask, header, rows)
        except HermesError:  # whatever its trouble is, the driver sees it better: it watches the host itself
            self._answer(puts, ())
        else:
            self._answer(puts, answer.wanted)

    def _ask(self, header: OfferHeader, rows: list[Row]) -> OfferAnswer:
        if self._client is None:
            self._client = self._connect()
        return self._client.offer(header, rows, OFFER_TIMEOUT_S)


class Lanes:
    """Makes the lanes of one host."""

    def __init__(self, own_address: str, token: str, wire: HostSettings, offers: Offers) -> None:
        self._own_address = own_address
        self._token = token
        self._wire = wire
        self._offers = offers
        self._pool = ThreadPoolExecutor(POOL, thread_name_prefix="lane")

    def to(self, address: str, answered: Answered) -> Lane:
        """A lane to the owner at an address; `answered` hears of each of its puts."""
        if address == self._own_address:
            return OwnLane(answered, self._offers)
        return OtherLane(answered, lambda: WireClient(address, self._token, self._wire), self._pool)

    def close(self) -> None:
        """Let go of the threads. Called when all lanes are closed; offers under way end with their deadline."""
        self._pool.shutdown(wait=False)


def _offer_of(puts: Sequence[Put], terms: Mapping[int, TermId]) -> tuple[OfferHeader, list[Row]]:
    ranges = tuple(AheadRange(p.partition, p.shard, p.start, p.stop, p.floor, len(p.rows)) for p in puts)
    rows = [row for put in puts for row in put.rows]
    shards = tuple(put.shard for put in puts for _ in put.rows)
    known = {shard: terms[shard] for shard in {put.shard for put in puts} if shard in terms}
    return OfferHeader(AHEAD, shards, known, ahead=ranges), rows

"""What driver, tasks and hosts say to each other, over Arrow Flight: one module for schemas, messages, server and client.

Rows of events travel as Arrow record batches (`ROWS`) in one `DoPut` per offer, answered by an `OfferAnswer`; everything else
is an action with a msgpack body. Every request carries the run's token, made anew by each driver.
"""

from __future__ import annotations

import hmac
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import msgspec
import pyarrow as pa
from pyarrow import flight

from hermes_spark.errors import HostAbsent, HostError, StartError
from hermes_spark.events import Coordinates, Row
from hermes_spark.host.ahead_wire import AheadRange
from hermes_spark.host.wire_errors import answering, carried, first_line
from hermes_spark.host.wire_tls import calling, check_trust, serving
from hermes_spark.settings import HostSettings
from hermes_spark.state.records import Position, TermId

PLAIN = HostSettings()
"""Without TLS."""
ADVICE = "look at spark.hermes.host.address and at the files of spark.hermes.host.tls_certificate_file and tls_key_file"

ROWS = pa.schema(
    [
        pa.field("partition", pa.string(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp_ms", pa.int64(), nullable=False),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("fault", pa.string(), nullable=False),
    ]
)
"""Rows of a source, not looked into: `events.Row` as columns."""


class Span(msgspec.Struct, frozen=True, array_like=True):
    """The offsets `[start, stop)` of one partition that a batch hands over. Only sources with offsets have spans."""

    start: int
    stop: int


class OfferHeader(msgspec.Struct, frozen=True):
    """What an offer of rows says about itself; the i-th row belongs to `shards[i]`."""

    batch: int
    shards: tuple[int, ...]
    terms: dict[int, TermId]
    """The term under which the sender believes each shard to be owned by the receiver."""
    spans: dict[str, Span] = {}
    """By partition; a partition that is not here has no offsets (its rows are known by id within the batch)."""
    ahead: tuple[AheadRange, ...] = ()
    """Of an offer by run-ahead, which comes without spans: the ranges that its rows make up, in order."""


class OfferAnswer(msgspec.Struct, frozen=True):
    """What became of the rows of an offer. Whatever is not in `untaken` is durable in the journal."""

    taken: int
    skipped: int
    """Taken before: by an earlier attempt, or a replay."""
    untaken: tuple[int, ...] = ()
    """Row numbers to offer again: the host was full for as long as it lets an offer wait, or is not the owner."""
    full: bool = False
    """Some were not taken for want of room."""
    ended: int = 0
    """Turns this host has ended so far: shows progress while it is full."""
    wanted: tuple[int, ...] = ()
    """For each range of run-ahead: `TAKEN`, or the offset that the shard wants next, or `cursors.NOBODY`."""


class HostPayload(msgspec.Struct, frozen=True):
    """All that a host needs to start: sent by the driver through Spark."""

    index: int
    token: str
    driver: str
    """Flight address of the driver."""
    address: str
    """Interface address to listen on; empty: this machine's, as its name resolves."""
    query_id: str
    state_path: str
    settings: bytes
    """`Settings` as JSON."""
    tool_file: str = ""
    """The text of the tool file, which this machine may not have."""
    machine: str = ""
    """Where the state lies, as `machine_id` names it; empty: wherever."""


class Registration(msgspec.Struct, frozen=True):
    """A host says that it is there."""

    index: int
    address: str
    pid: int
    node: str


class Assignment(msgspec.Struct, frozen=True):
    """Shards to open, each for a fresh term."""

    terms: dict[int, TermId]
    committed: dict[int, Position]
    """Each shard's position in the last commit; its journal cannot end below that."""
    ends: dict[str, int]
    """Offsets up to which the last commit has taken each partition; empty for sources without offsets."""


class Release(msgspec.Struct, frozen=True):
    """Shards to let go of, because they get another owner."""

    shards: tuple[int, ...]


class ShardPosition(msgspec.Struct, frozen=True):
    """A shard's durable position under the term that answers."""

    shard: int
    position: Position


class Barrier(msgspec.Struct, frozen=True):
    """A host's answer to a barrier: everything appended before it is durable and below these positions."""

    positions: tuple[ShardPosition, ...]
    open_turns: int
    """Sessions with an open turn or a waiting event."""
    ended: int


class HostExit(msgspec.Struct, frozen=True):
    """How a host ended, as its task's result; the error by the name of its class."""

    error: str = ""
    message: str = ""


class Handler(Protocol):
    """The receiving side, called on Flight's threads."""

    def offer(self, header: OfferHeader, rows: Sequence[Row]) -> OfferAnswer:
        """Take rows. May block while the host is full, within its own bound."""
        ...

    def act(self, action: str, body: bytes) -> bytes:
        """Answer an action. Raises `HermesError`s, which the caller sees again."""
        ...


T = TypeVar("T")


def pack(message: msgspec.Struct) -> bytes:
    """Msgpack bytes of a message."""
    return msgspec.msgpack.encode(message)


def unpack(data: bytes, kind: type[T]) -> T:
    """The message behind `data`. Raises `HostError` when it is none: the two sides run different versions."""
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except msgspec.MsgspecError as exc:
        raise HostError(
            f"a {kind.__name__} message cannot be read ({exc}); driver and hosts must run the same version of hermes-spark"
        ) from None


def rows_to_batch(rows: Sequence[Row]) -> pa.RecordBatch:
    """Rows as one record batch of schema `ROWS`."""
    return pa.record_batch(
        [
            pa.array([r.coordinates.partition for r in rows], pa.string()),
            pa.array([r.coordinates.offset for r in rows], pa.int64()),
            pa.array([r.timestamp_ms for r in rows], pa.int64()),
            pa.array([r.value for r in rows], pa.binary()),
            pa.array([r.fault for r in rows], pa.string()),
        ],
        schema=ROWS,
    )


def batch_to_rows(batch: pa.RecordBatch) -> list[Row]:
    """The rows of a record batch that has the columns of `ROWS`."""
    columns = [batch.column(name).to_pylist() for name in ROWS.names]
    return [Row(Coordinates(p, o), ts, value, fault) for p, o, ts, value, fault in zip(*columns, strict=True)]


class WireServer(flight.FlightServerBase):  # type: ignore[misc]
    """Serves a `Handler` on an address of this machine, to callers that know the token. Runs on threads of its own."""

    def __init__(self, address: str, token: str, handler: Handler, settings: HostSettings = PLAIN) -> None:
        scheme, options = serving(settings)
        try:
            super().__init__(f"{scheme}://{address}:0", middleware={"token": _TokenGate(token)}, **options)
        except pa.ArrowException as exc:
            raise StartError(f"nothing can be served on {address} ({first_line(exc)}); {ADVICE}") from None
        self._handler = handler
        self.address = f"{address}:{self.port}"

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """One offer."""
        with answering():
            header = unpack(descriptor.command, OfferHeader)
            rows = [row for batch in reader.read_all().to_batches() for row in batch_to_rows(batch)]
            writer.write(pack(self._handler.offer(header, rows)))

    def do_action(self, context: Any, action: Any) -> list[bytes]:
        """One action."""
        with answering():
            return [self._handler.act(action.type, action.body.to_pybytes())]


class WireClient:
    """Talks to one `WireServer`. Every call has a deadline; a server that is not there raises `HostAbsent`."""

    def __init__(self, address: str, token: str, settings: HostSettings = PLAIN) -> None:
        self.address = address
        scheme, options = calling(settings)
        self._client = flight.FlightClient(f"{scheme}://{address}", **options)
        self._headers = [(b"authorization", f"Bearer {token}".encode())]

    def offer(self, header: OfferHeader, rows: Sequence[Row], timeout_s: float) -> OfferAnswer:
        """Offer rows; see `OfferAnswer`."""
        with self._asking():
            options = flight.FlightCallOptions(timeout=timeout_s, headers=self._headers)
            writer, reader = self._client.do_put(flight.FlightDescriptor.for_command(pack(header)), ROWS, options)
            with writer:
                writer.write_batch(rows_to_batch(rows))
                writer.done_writing()
                answer = reader.read()
            if answer is None:
                raise HostAbsent(f"the host at {self.address} ended an offer without an answer")
            return unpack(answer.to_pybytes(), OfferAnswer)

    def act(self, action: str, body: bytes, timeout_s: float) -> bytes:
        """Run an action and return its answer."""
        with self._asking():
            options = flight.FlightCallOptions(timeout=timeout_s, headers=self._headers)
            results = list(self._client.do_action(flight.Action(action, body), options))
            if not results:
                raise HostAbsent(f"{self.address} ended a request without an answer")
            return bytes(results[0].body.to_pybytes())

    def close(self) -> None:
        """Drop the connection."""
        self._client.close()

    @contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        except (flight.FlightUnavailableError, flight.FlightTimedOutError) as exc:
            check_trust(self.address, str(exc))
            raise HostAbsent(f"no answer from {self.address}: {first_line(exc)}") from None
        except flight.FlightUnauthenticatedError:
            raise HostError(f"{self.address} refused the token: it belongs to another run") from None
        except (flight.FlightError, pa.ArrowException) as exc:
            raise carried(exc) or HostError(f"{self.address} failed: {first_line(exc)}") from None


def local_address(toward: str) -> str:
    """The address of the interface of this machine that leads to `toward` (`host:port`)."""
    host, port = toward.rsplit(":", 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, int(port)))
        return str(probe.getsockname()[0])


class _TokenGate(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        super().__init__()
        self._expected = f"Bearer {token}"

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> None:
        given = next((values[0] for name, values in headers.items() if name.lower() == "authorization"), "")
        if not hmac.compare_digest(given.encode(), self._expected.encode()):
            raise flight.FlightUnauthenticatedError("wrong token")

"""Our errors over Arrow Flight, which knows none of them: as text of the form `hermes-error <class> <text>`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyarrow import flight

from hermes_spark import errors
from hermes_spark.errors import HermesError, HostError

_MARK = "hermes-error "


@contextmanager
def answering() -> Iterator[None]:
    """On the server: let our own errors travel."""
    try:
        yield
    except HermesError as exc:
        raise flight.FlightServerError(f"{_MARK}{type(exc).__name__} {exc}") from exc


def carried(exc: BaseException) -> HermesError | None:
    """On the client: the error of ours that travelled in `exc`, if one did."""
    text = str(exc)
    if _MARK not in text:
        return None
    name, _, message = text.split(_MARK, 1)[1].partition(" ")
    return error_named(name, _told(message))


def error_named(name: str, message: str) -> HermesError:
    """One of our errors from its class name and text; a `HostError` when the name is unknown."""
    kind: Callable[[str], HermesError] = getattr(errors, name, HostError)
    return kind(message)


def first_line(exc: BaseException) -> str:
    """What an error says, without what Flight adds to it."""
    return _told(str(exc)).partition("\n")[0] or type(exc).__name__


def _told(text: str) -> str:
    return text.split(". Detail:", 1)[0].split(". gRPC client debug context", 1)[0]

"""TLS between driver, tasks and hosts: certificate, key and authorities from files, at the same places on every machine.

Each of them serves, calls or does both, so all have the same files. A caller checks whom it talks to; the run's token says who
calls.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hermes_spark.errors import StartError
from hermes_spark.settings import HostSettings

_UNTRUSTED = ("certificate verify failed", "not in peer certificate", "hostname verification check failed")
"""gRPC's words for it, which differ with the TLS library that it was built with."""


def serving(settings: HostSettings) -> tuple[str, dict[str, Any]]:
    """The scheme that a server listens under, and Flight's options for it. Raises `StartError` for a file it cannot read."""
    if not settings.tls_ca_file:
        return "grpc", {}
    pair = (
        _read("tls_certificate_file", settings.tls_certificate_file),
        _read("tls_key_file", settings.tls_key_file),
    )
    return "grpc+tls", {"tls_certificates": [pair]}


def calling(settings: HostSettings) -> tuple[str, dict[str, Any]]:
    """The same for a caller."""
    if not settings.tls_ca_file:
        return "grpc", {}
    options: dict[str, Any] = {"tls_root_certs": _read("tls_ca_file", settings.tls_ca_file)}
    if settings.tls_server_name:
        options["override_hostname"] = settings.tls_server_name
    return "grpc+tls", options


def check_trust(address: str, text: str) -> None:
    """Raise `StartError` if a failed call, by what Flight says about it, failed because its server cannot be trusted."""
    words = text.lower().replace("_", " ")
    if any(sign in words for sign in _UNTRUSTED):
        raise StartError(
            f"the certificate of {address} is not to be trusted: an authority of spark.hermes.host.tls_ca_file must have "
            "signed it, and it must name that address or spark.hermes.host.tls_server_name; give every machine the same files"
        )


def _read(name: str, file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as exc:
        raise StartError(
            f"host.{name}: cannot read {file} ({exc.strerror}); every machine needs this PEM file at that place"
        ) from None

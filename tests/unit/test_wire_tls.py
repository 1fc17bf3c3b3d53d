"""TLS on the wire, with real certificates: who is trusted, and what is said about who is not."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from certificates import Authority
from hermes_spark.errors import HostAbsent, HostError, SettingsError, StartError
from hermes_spark.events import Coordinates, Row
from hermes_spark.host.wire import OfferAnswer, OfferHeader, WireClient, WireServer
from hermes_spark.settings import HostSettings, Settings, validate

TOKEN = "run-token"


class Echo:
    def offer(self, header: OfferHeader, rows: Sequence[Row]) -> OfferAnswer:
        return OfferAnswer(len(rows), 0)

    def act(self, action: str, body: bytes) -> bytes:
        return body


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


def settings_of(authority: Authority, name: str = "host", subject: str = "IP:127.0.0.1") -> HostSettings:
    certificate, key = authority.sign(name, subject)
    return HostSettings(
        tls_certificate_file=str(certificate), tls_key_file=str(key), tls_ca_file=str(authority.ca_file)
    )


@contextmanager
def serving(settings: HostSettings) -> Iterator[str]:
    server = WireServer("127.0.0.1", TOKEN, Echo(), settings)
    try:
        yield server.address
    finally:
        server.shutdown()


def test_whoever_has_the_authority_is_served(authority: Authority) -> None:
    settings = settings_of(authority)
    with serving(settings) as address:
        client = WireClient(address, TOKEN, settings)
        assert client.act("x", b"hello", 5) == b"hello"
        assert client.offer(OfferHeader(1, (0,), {}), [Row(Coordinates("p", 1), 0, b"{}")], 5).taken == 1
        client.close()


def test_what_travels_cannot_be_read(authority: Authority) -> None:
    settings = settings_of(authority)
    with serving(settings) as address:
        host, port = address.split(":")
        with socket.create_connection((host, int(port)), 5) as plain:
            plain.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            plain.settimeout(5)
            assert b"grpc" not in plain.recv(1000)
        client = WireClient(address, TOKEN)
        with pytest.raises(HostAbsent):
            client.act("x", b"hello", 5)
        client.close()


def test_a_server_of_another_authority_is_refused(authority: Authority, tmp_path: Path) -> None:
    settings = settings_of(authority)
    other = Authority(tmp_path, "other")
    with serving(settings_of(other)) as address:
        client = WireClient(address, TOKEN, settings)
        with pytest.raises(StartError, match=r"certificate of 127\.0\.0\.1:\d+ is not to be trusted.*tls_ca_file"):
            client.act("x", b"hello", 5)
        with pytest.raises(StartError, match="is not to be trusted"):
            client.offer(OfferHeader(1, (), {}), [], 5)
        client.close()


def test_a_certificate_for_another_name_is_refused_unless_the_name_is_given(authority: Authority) -> None:
    settings = settings_of(authority, "named", "DNS:hosts.example")
    with serving(settings) as address:
        client = WireClient(address, TOKEN, settings)
        with pytest.raises(StartError, match=r"is not to be trusted.*tls_server_name"):
            client.act("x", b"hello", 5)
        client.close()
        named = WireClient(address, TOKEN, msgspec.structs.replace(settings, tls_server_name="hosts.example"))
        assert named.act("x", b"hello", 5) == b"hello"
        named.close()


def test_the_token_counts_under_tls_too(authority: Authority) -> None:
    settings = settings_of(authority)
    with serving(settings) as address:
        stranger = WireClient(address, "guess", settings)
        with pytest.raises(HostError, match="refused the token"):
            stranger.act("x", b"", 5)
        stranger.close()


def test_a_file_that_is_missing_is_named(authority: Authority, tmp_path: Path) -> None:
    settings = settings_of(authority)
    missing = str(tmp_path / "nowhere.pem")
    for name in ("tls_certificate_file", "tls_key_file"):
        with pytest.raises(StartError, match=rf"host\.{name}: cannot read .*nowhere\.pem"):
            WireServer("127.0.0.1", TOKEN, Echo(), msgspec.structs.replace(settings, **{name: missing}))
    with pytest.raises(StartError, match=r"host\.tls_ca_file: cannot read"):
        WireClient("127.0.0.1:1", TOKEN, msgspec.structs.replace(settings, tls_ca_file=missing))


def test_a_key_that_is_none_is_said_so(authority: Authority, tmp_path: Path) -> None:
    broken = tmp_path / "broken.key"
    broken.write_text("no key")
    settings = msgspec.structs.replace(settings_of(authority), tls_key_file=str(broken))
    with pytest.raises(StartError, match=r"nothing can be served on 127\.0\.0\.1.*tls_key_file"):
        WireServer("127.0.0.1", TOKEN, Echo(), settings)


def test_files_are_given_together() -> None:
    settings = Settings(checkpoint="/c", host=HostSettings(tls_ca_file="/ca.pem"))
    with pytest.raises(SettingsError, match="are set in part"):
        validate(settings)

"""TLS and a login for the tests' broker: real certificates on both sides, and SCRAM."""

from __future__ import annotations

from pathlib import Path

from certificates import Authority

LISTENER = "SASL_SSL"
PASSWORD = "seldom-typed-7431"


class Secured:
    """What broker and clients need for a listener that wants the client's certificate and a login."""

    def __init__(self, directory: Path) -> None:
        self.environment = {"KAFKA_USERNAME": "kim", "KAFKA_PASSWORD": PASSWORD}
        self.authority = Authority(directory)
        self.other_ca_file = str(Authority(directory, "other").ca_file)
        """Of an authority that has signed nothing here."""
        certificate, key = self.authority.sign("broker")
        self._certificate, self._key = self.authority.sign("client")
        own = directory / "broker-all.pem"
        own.write_bytes(key.read_bytes() + certificate.read_bytes())
        prefix = f"listener.name.{LISTENER.lower()}.ssl"
        properties = {
            f"{prefix}.keystore.type": "PEM",
            f"{prefix}.keystore.location": own,
            f"{prefix}.truststore.type": "PEM",
            f"{prefix}.truststore.location": self.authority.ca_file,
            f"{prefix}.client.auth": "required",
        }
        self.broker_options = ["--listener", LISTENER, "--add-scram", f"SCRAM-SHA-512=[name=kim,password={PASSWORD}]"]
        for name, value in properties.items():
            self.broker_options += ["--set", f"{name}={value}"]

    def settings(self, address: str) -> dict[str, object]:
        """The section `kafka` for the listener at `address`."""
        return {
            "bootstrap_servers": address,
            "security_protocol": LISTENER,
            "ca_file": str(self.authority.ca_file),
            "certificate_file": str(self._certificate),
            "key_file": str(self._key),
        }

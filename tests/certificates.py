"""Real certificates for tests, made by openssl: an authority, and what it signs."""

from __future__ import annotations

import subprocess
from pathlib import Path

DAYS = "2"


class Authority:
    """Signs certificates for addresses; its own is `ca_file`."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self.ca_file = directory / f"{name}.pem"
        self._key = directory / f"{name}.key"
        _openssl(
            *_new_key(self._key), "-x509", "-days", DAYS, "-subj", f"/CN={name}", "-out", self.ca_file,
            "-addext", "basicConstraints=critical,CA:TRUE",
        )  # fmt: skip

    def sign(self, name: str, subject: str = "IP:127.0.0.1") -> tuple[Path, Path]:
        """Certificate and key (PEM files) for `subject`, such as `IP:127.0.0.1` or `DNS:hosts.example`."""
        request, certificate, key = (self._directory / f"{name}.{kind}" for kind in ("csr", "pem", "key"))
        extensions = self._directory / f"{name}.ext"
        extensions.write_text(f"subjectAltName={subject}\n", encoding="ascii")
        _openssl(*_new_key(key), "-subj", f"/CN={name}", "-out", request)
        _openssl(
            "x509", "-req", "-in", request, "-CA", self.ca_file, "-CAkey", self._key, "-CAcreateserial", "-days", DAYS,
            "-extfile", extensions, "-out", certificate,
        )  # fmt: skip
        return certificate, key


def _new_key(file: Path) -> list[str]:
    return ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(file)]


def _openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=60)

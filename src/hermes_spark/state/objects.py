"""Objects by key, as the modules that keep them see a storage."""

from __future__ import annotations

from typing import Protocol


class Objects(Protocol):
    """`state.storage.Storage`, without what concerns only its making."""

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Write unless the key exists; whether it wrote."""
        ...

    def put(self, key: str, data: bytes) -> None:
        """Write, replacing what is there."""
        ...

    def get(self, key: str) -> bytes | None:
        """The bytes, or None."""
        ...

    def list(self, prefix: str) -> list[str]:
        """Sorted keys under a prefix."""
        ...

    def delete(self, key: str) -> None:
        """Remove a key."""
        ...

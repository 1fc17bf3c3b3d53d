"""Storage: small objects under one location (settings of a checkpoint, epochs, commits, sink files), with put-if-absent.

A local directory is written by hand for one reason: a put must survive a power cut *before* anybody can see the object, and a
general object store client makes a local file visible before it is synced. Everything else goes through `obstore`.
"""

from __future__ import annotations

import errno
import os
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from urllib.parse import unquote, urlsplit

import obstore
import obstore.store
from obstore.exceptions import AlreadyExistsError, BaseError

from hermes_spark.errors import SettingsError, StateError, StorageFull

_REMOTE = ("s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss")
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""What the system answers when a device, a quota or the process's file size limit is used up."""
_CONNECT_TIMEOUT, _REQUEST_TIMEOUT = timedelta(seconds=5), timedelta(seconds=10)
"""Of one request to an object store; without an answer until then it counts as failed."""
_ALLOW_HTTP = ("AWS_ALLOW_HTTP", "AZURE_ALLOW_HTTP", "GOOGLE_ALLOW_HTTP")
_RETRIES: obstore.store.RetryConfig = {"max_retries": 5, "retry_timeout": timedelta(seconds=20)}
"""Of requests that are safe to repeat; in all shorter than the bounds of who waits for them."""
_SEGMENT = re.compile(r"[A-Za-z0-9_=-][A-Za-z0-9_=.-]*")
_STAGED = ".staged"
"""Directory of local files that are not objects yet; no key can begin with a dot."""


class Storage:
    """Objects by key under one location. Safe to use from several threads and processes."""

    def __init__(self, store: obstore.store.ObjectStore, location: str, directory: Path | None = None) -> None:
        self.location = location
        """As given; for messages."""
        self._store = store
        self._directory = directory

    @classmethod
    def at(cls, location: str) -> Storage:
        """The storage at a local path (created) or `file://`, `s3://`, `gs://` or `az://` URL.

        Credentials of the clouds come from their usual environment variables. Raises `SettingsError` for any other scheme or
        a URL that lacks a part, `StorageFull` or `StateError` when a local directory cannot be created.
        """
        if is_remote(location):
            try:
                return cls(obstore.store.from_url(location, client_options=_options(), retry_config=_RETRIES), location)
            except (BaseError, ValueError) as error:
                raise SettingsError(f"{location} cannot be used as storage: {_first_line(error)}.") from error
        directory = local_path(location)
        with storage_errors(directory):
            make_directory(directory)
        return cls(obstore.store.LocalStore(directory), location, directory)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Store `data` unless the key exists; False if it does. Durable on return, whole or not at all."""
        with self._errors(key):
            try:
                if self._directory is None:
                    obstore.put(self._store, _checked(key), data, mode="create")
                else:
                    _write_local(self._directory, self._directory / _checked(key), data, os.link)
            except (FileExistsError, AlreadyExistsError):
                return False
        return True

    def put(self, key: str, data: bytes) -> None:
        """Store `data`, replacing what is there: a reader sees the old or the new, never a mixture. Durable on return."""
        with self._errors(key):
            if self._directory is None:
                obstore.put(self._store, _checked(key), data)
            else:
                _write_local(self._directory, self._directory / _checked(key), data, os.replace)

    def get(self, key: str) -> bytes | None:
        """The object's bytes, or None if there is none."""
        with self._errors(key):
            try:
                return bytes(obstore.get(self._store, _checked(key)).bytes())
            except FileNotFoundError:
                return None

    def list(self, prefix: str, *, after: str = "") -> list[str]:
        """All keys below `prefix` (whole segments: `commits` or `commits/`; empty: all), sorted as text.

        With `after`, only those that sort behind it.
        """
        folder = prefix.rstrip("/")
        with self._errors(prefix):
            batches = obstore.list(
                self._store, _checked(folder) if folder else None, offset=after or None, chunk_size=1000
            )
            return sorted(meta["path"] for batch in batches for meta in batch if not meta["path"].startswith(_STAGED))

    def delete(self, key: str) -> None:
        """Remove the object; nothing happens if there is none."""
        with self._errors(key):
            try:
                obstore.delete(self._store, _checked(key))
            except FileNotFoundError:
                return

    @contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        where = f"{self.location.rstrip('/')}/{key}"
        try:
            with storage_errors(where):
                yield
        except BaseError as error:
            raise StateError(f"{where} cannot be read or written: {_first_line(error)}.") from error


def _options() -> obstore.store.ClientConfig:
    """The client's options. They replace all that it finds in the environment, so what that may say is given again."""
    allow_http = any(os.environ.get(name, "").lower() in ("1", "true") for name in _ALLOW_HTTP)
    return {"connect_timeout": _CONNECT_TIMEOUT, "timeout": _REQUEST_TIMEOUT, "allow_http": allow_http}


def is_remote(location: str) -> bool:
    """True for the URL of an object store."""
    return urlsplit(location).scheme in _REMOTE


def as_local(location: str) -> Path | None:
    """The absolute path behind a local path or a `file:` URL; None for any other URL."""
    parts = urlsplit(location)
    if parts.scheme not in ("", "file"):
        return None
    return Path(unquote(parts.path) if parts.scheme else location).absolute()


def local_path(location: str) -> Path:
    """`as_local`, for a setting that must be local. Raises `SettingsError` for any other URL."""
    path = as_local(location)
    if path is None:
        raise SettingsError(
            f"{location} cannot be used as storage; expected a local directory or an s3://, gs:// or az:// URL "
            "(set spark.hermes.state.path to put the state elsewhere than Spark's checkpoint)."
        )
    return path


def storage_error(error: OSError, where: str | Path) -> StateError:
    """The error of this package for what the system said about `where`: `StorageFull` when there is no space or quota."""
    if error.errno in FULL:
        return StorageFull(f"No space is left for {where}; free some or enlarge the device, then start the job again.")
    return StateError(f"{where} cannot be read or written: {error.strerror or error}.")


@contextmanager
def storage_errors(where: str | Path) -> Iterator[None]:
    """Translate every `OSError` of the block with `storage_error`."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, where) from error


def make_directory(path: Path) -> None:
    """Create `path` and its missing parents so that they outlive a power cut. Raises `OSError`."""
    if path.is_dir():
        return
    make_directory(path.parent)
    path.mkdir(exist_ok=True)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable. Raises `OSError`."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_synced(path: Path, data: bytes) -> None:
    """Write a new file and sync its bytes, but not its name. Raises `OSError`; `FileExistsError` if it exists."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _write_local(root: Path, target: Path, data: bytes, publish: Callable[[Path, Path], object]) -> None:
    staged = root / _STAGED / uuid.uuid4().hex
    make_directory(staged.parent)
    make_directory(target.parent)
    try:
        write_synced(staged, data)
        publish(staged, target)
    finally:
        staged.unlink(missing_ok=True)
        # Also when another put was first: whoever goes on with its object needs the name to last.
        sync_directory(target.parent)


def _checked(key: str) -> str:
    if not key or not all(_SEGMENT.fullmatch(segment) for segment in key.split("/")):
        raise StateError(
            f"{key!r} is no storage key; expected letters, digits, '_', '=', '-' or '.' (not first), with '/' between parts."
        )
    return key


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".")

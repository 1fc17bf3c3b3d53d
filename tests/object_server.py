"""A real S3-compatible server for tests: S3Proxy on files, which honours put-if-absent (`If-None-Match: *`) atomically.

Its jar comes from Maven Central once and is kept in `.state`. `FaultyWay` is a way to it that loses answers and requests.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import obstore.store
import stamina
from aiohttp import ClientSession, web

from hermes_spark.state.storage import Storage

ROOT = Path(__file__).resolve().parents[1]
VERSION = "4.1.0"
JAR_URL = f"https://repo1.maven.org/maven2/org/gaul/s3proxy/{VERSION}/s3proxy-{VERSION}-jar-with-dependencies.jar"
JAR_SHA256 = "a4d025969aaf796616ed4b1e2491d87d455ce84bb28cb9db086b2e6aaa68b48d"
START_S = 60.0


@dataclass(frozen=True)
class S3Server:
    """A running server."""

    url: str
    data: Path
    """A directory in it is a bucket."""


@dataclass(frozen=True)
class Bucket:
    """A bucket of one test, reached over `url`."""

    url: str
    name: str

    def storage(self, *, timeout_s: float = 10.0, retries: int = 5) -> Storage:
        """The bucket as storage; one request fails after `timeout_s`, and the client repeats those that are safe to repeat."""
        store = obstore.store.S3Store(
            self.name,
            endpoint=self.url,
            region="us-east-1",
            access_key_id="test",
            secret_access_key="test",
            client_options={"allow_http": True, "timeout": timedelta(seconds=timeout_s)},
            retry_config={"max_retries": retries, "retry_timeout": timedelta(seconds=10)},
        )
        return Storage(store, f"s3://{self.name}")

    def environment(self) -> dict[str, str]:
        """What a process needs to reach the bucket by its URL."""
        return {
            "AWS_ENDPOINT": self.url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
        }


def s3_bucket(server: S3Server, url: str | None = None) -> Bucket:
    """A new bucket; `url` is another way to the server."""
    name = f"bucket-{uuid.uuid4().hex[:12]}"
    (server.data / name).mkdir()
    return Bucket(url or server.url, name)


@contextmanager
def running_s3() -> Iterator[S3Server]:
    """A server for the length of a `with`, on a free port."""
    home = Path(tempfile.mkdtemp(prefix="hermes-s3-"))
    data, log = home / "data", home / "log"
    data.mkdir()
    url = f"http://127.0.0.1:{_free_port()}"
    (home / "conf").write_text(
        f"s3proxy.authorization=none\ns3proxy.endpoint={url}\n"
        f"jclouds.provider=filesystem-nio2\njclouds.filesystem.basedir={data}\n"
    )
    java = str(Path(os.environ["JAVA_HOME"]) / "bin" / "java") if os.environ.get("JAVA_HOME") else "java"
    command = [java, "-Xmx192m", "-jar", str(_jar()), "--properties", str(home / "conf")]
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            _wait_until_up(url, process, log)
            yield S3Server(url, data)
        finally:
            process.kill()
    shutil.rmtree(home)


def _wait_until_up(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"the S3 server did not come up within {START_S:g} s: {log.read_text()[-2000:]}")


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@stamina.retry(on=(OSError, ValueError), attempts=5, timeout=300)
def _jar() -> Path:
    """The server's jar, fetched if it is not there."""
    path = ROOT / ".state" / f"s3proxy-{VERSION}.jar"
    if not path.exists():
        with urllib.request.urlopen(JAR_URL, timeout=120) as answer:
            content = answer.read()
        if hashlib.sha256(content).hexdigest() != JAR_SHA256:
            raise ValueError(f"{JAR_URL} gave {len(content)} bytes with another checksum than expected")
        path.parent.mkdir(exist_ok=True)
        staged = path.with_suffix(f".{os.getpid()}")
        staged.write_bytes(content)
        staged.replace(path)
    return path


class FaultyWay:
    """A proxy before the server. Each put takes the next of `faults`, and goes through untouched when there is none:

    - `lose answer`: it is stored, but nobody answers
    - `lose request`: nobody stores it, and nobody answers
    - `hold`: it is stored once `release` was called; nobody answers
    - `refuse`: it is answered with status 500 and not stored
    - `store and refuse`: it is stored, and answered with status 500
    """

    def __init__(self, server: S3Server) -> None:
        self.faults: deque[str] = deque()
        self.fired: list[str] = []
        self.held_status: list[int] = []
        """What the server answered to the puts that were held."""
        self._server = server
        self._loop = asyncio.new_event_loop()
        self._released = asyncio.Event()
        self._settled = asyncio.Event()
        self._ending = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.url = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(30)

    def release(self) -> None:
        """Let held puts go on to the server, and wait until it has answered one."""

        async def release() -> None:
            self._released.set()
            await asyncio.wait_for(self._settled.wait(), 30)

        asyncio.run_coroutine_threadsafe(release(), self._loop).result(30)

    def close(self) -> None:
        """Stop."""

        async def stop() -> None:
            self._ending.set()
            self._released.set()
            await self._runner.cleanup()
            await self._session.close()

        asyncio.run_coroutine_threadsafe(stop(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    async def _start(self) -> str:
        self._session = ClientSession(auto_decompress=False)
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _handle(self, request: web.Request) -> web.Response:
        fault = self.faults.popleft() if request.method == "PUT" and self.faults else ""
        body = await request.read()
        if fault:
            self.fired.append(fault)
        if fault == "hold":
            await self._released.wait()
        answer = web.Response(status=500)
        if fault not in ("lose request", "refuse"):
            answer = await self._forward(request, body)
        if fault == "hold":
            self.held_status.append(answer.status)
            self._settled.set()
        if fault in ("lose answer", "lose request", "hold"):
            await self._ending.wait()
        return web.Response(status=500) if fault == "store and refuse" else answer

    async def _forward(self, request: web.Request, body: bytes) -> web.Response:
        headers = {name: value for name, value in request.headers.items() if name.lower() != "host"}
        url = self._server.url + request.raw_path
        async with self._session.request(request.method, url, headers=headers, data=body) as answer:
            kept = {k: v for k, v in answer.headers.items() if k.lower() not in ("transfer-encoding", "content-length")}
            return web.Response(status=answer.status, body=await answer.read(), headers=kept)

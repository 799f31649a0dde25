"""A hub's address as people outside see it: traefik with TLS, and behind it a real pool with real workers, and the edge."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import fork_server
import httpx
from forebay_admin.certificates.folder import CertificateFolder
from forebay_edge.service import Service as Edge
from forebay_edge.settings import Settings as EdgeSettings
from forebay_service.identity import SERVICE, Identity, TokenAuthenticator

START_SECONDS_MAX = 20
PATIENCE_SECONDS = 60
CLOUD_ADDRESS, LAPTOP_ADDRESS = "10.213.77.1", "10.213.77.2"


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that is a coroutine, as a function that pytest calls."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(test(**fixtures))

    return run


class Laptop:
    """A network namespace whose one cable ends at the hub's address; nothing else of this machine's network is there."""

    def __init__(self) -> None:
        name = uuid.uuid4().hex[:8]
        self.name, self._near, self._far = f"fb{name}", f"fc{name}", f"fl{name}"
        self._ip("netns", "add", self.name)
        self._ip("link", "add", self._near, "type", "veth", "peer", "name", self._far, "netns", self.name)
        self._ip("addr", "add", f"{CLOUD_ADDRESS}/30", "dev", self._near)
        self._ip("link", "set", self._near, "up")
        self._ip("-n", self.name, "addr", "add", f"{LAPTOP_ADDRESS}/30", "dev", self._far)
        self._ip("-n", self.name, "link", "set", self._far, "up")
        self._ip("-n", self.name, "link", "set", "lo", "up")

    def _ip(self, *words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    def cut(self, whether: bool) -> None:
        """Pulls the cable out, or puts it in."""
        self._ip("link", "set", self._near, "down" if whether else "up")

    def command(self, *words: str) -> list[str]:
        """A program there."""
        return ["ip", "netns", "exec", self.name, *words]

    def close(self) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):
            self._ip("link", "del", self._near)
        self._ip("netns", "del", self.name)


@contextmanager
def laptop() -> Iterator[Laptop]:
    made = Laptop()
    try:
        yield made
    finally:
        made.close()


class Cloud:
    """What answers at the hub's address."""

    def __init__(self, pool: Any, start_edge: Callable[[int], Edge]) -> None:
        self.pool, self._start_edge = pool, start_edge
        self.edge = start_edge(0)
        self.url, self.authority = "", Path()

    async def restart_edge(self) -> None:
        """Ends all streams, and has another edge answer where this one did."""
        port = self.edge.port
        await self.edge.close()
        self.edge = self._start_edge(port)

    def environment(self) -> dict[str, str]:
        """Of a program outside."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("FOREBAY_", "JUPYTERHUB_"))}
        told = {"FOREBAY_URL": f"{self.url}/services/pool/", "FOREBAY_TOKEN": "ada", "FOREBAY_OUTSIDE": "1"}
        return {**kept, **told, "SSL_CERT_FILE": str(self.authority), "OMP_NUM_THREADS": "1", "FOREBAY_KNOWN_CALLS": ""}

    async def program(self, text: str, at: Laptop | None = None, **variables: str) -> asyncio.subprocess.Process:
        command = [str(fork_server.programs()), "-c", text] if at is None else at.command(sys.executable, "-c", text)  # no fork is there
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        environment = {**self.environment(), **variables}
        return await asyncio.create_subprocess_exec(*command, env=environment, **pipes)  # type: ignore[arg-type]


async def outcome(process: asyncio.subprocess.Process, seconds: float = PATIENCE_SECONDS) -> list[str]:
    """What a program printed that ends well."""
    async with asyncio.timeout(seconds):
        printed, said = await process.communicate()
    assert process.returncode == 0, said.decode()
    return printed.decode().splitlines()


def free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


@contextmanager
def front(folder: Path, host: str, pool_port: int, edge_port: int) -> Iterator[tuple[str, Path]]:
    """Traefik, as `make up` and the chart have it before the services: its address, and the authority of its certificate."""
    certificates = CertificateFolder(folder / "certificates")
    certificates.make_authority("tests")
    certificates.issue("front", [host], 2)
    certificate, port = folder / "certificates" / "front.crt", free_port(host)
    services = {"pool": pool_port, "edge": edge_port}
    dynamic = {
        "tls": {"certificates": [{"certFile": str(certificate), "keyFile": str(certificate.with_suffix(".key"))}]},
        "http": {
            "routers": {
                name: {"rule": f"PathPrefix(`/services/{name}/`)", "service": name, "entryPoints": ["https"], "tls": {}}
                for name in services
            },
            "services": {
                name: {"loadBalancer": {"servers": [{"url": f"http://127.0.0.1:{at}"}]}} for name, at in services.items()
            },
        },
    }
    static: dict[str, Any] = {
        "entryPoints": {"https": {"address": f"{host}:{port}", "transport": {"respondingTimeouts": {"readTimeout": "0s"}}}},
        "providers": {"file": {"filename": str(folder / "dynamic.yaml"), "watch": False}},
    }
    (folder / "dynamic.yaml").write_text(json.dumps(dynamic))
    (folder / "static.yaml").write_text(json.dumps(static))
    traefik = shutil.which("traefik", path=f"{sys.prefix}/bin:{os.environ['PATH']}")
    assert traefik is not None
    with (folder / "traefik.log").open("wb") as log:
        process = subprocess.Popen([traefik, f"--configfile={folder / 'static.yaml'}"], stdout=log, stderr=log)
    try:
        yield f"https://{host}:{port}", folder / "certificates" / "authority.crt"
    finally:
        process.kill()  # it would wait for connections that are open
        process.wait(START_SECONDS_MAX)


@asynccontextmanager
async def cloud(
    make: Callable[..., Any],
    folder: Path,
    people: dict[str, Identity],
    host: str = "127.0.0.1",
    edge: dict[str, Any] | None = None,
    **settings: Any,
) -> AsyncIterator[Cloud]:
    """A pool that ``make`` makes, behind one address."""
    known = TokenAuthenticator({**people, "edge": Identity("edge", "service", None, frozenset({SERVICE}))})
    real = {"devices": [{"kind": "cpu", "model": "cpu-dev", "memory": "4 GiB", "count": 2}], "real_workers": True, **settings}
    async with make(authenticator=known, prefix="/services/pool/", **real) as pool:
        told = {"hub_token": "edge", "pool_url": pool.service.url, **(edge or {})}
        made = Cloud(pool, lambda port: Edge(EdgeSettings.load(None, {}, {**told, "port": port}, managed=False), known))
        try:
            with front(folder, host, pool.service.port, made.edge.port) as (made.url, made.authority):
                await _reached(made.url, made.authority)
                yield made
        finally:
            await made.edge.close()


async def _reached(url: str, authority: Path) -> None:
    async with asyncio.timeout(START_SECONDS_MAX), httpx.AsyncClient(verify=ssl.create_default_context(cafile=str(authority))) as client:
        for name in ("pool", "edge"):
            while True:
                with contextlib.suppress(httpx.TransportError):
                    if (await client.get(f"{url}/services/{name}/health")).status_code != httpx.codes.NOT_FOUND:
                        break
                await asyncio.sleep(0.05)

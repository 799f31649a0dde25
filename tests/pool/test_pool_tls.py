"""The pool behind TLS of its own: clients and workers link up over ``wss``, and only to a pool whose certificate they trust."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import fork_server
import pytest
from forebay_pool.settings import Settings
from forebay_pool.standby import Follower
from forebay_service.errors import SettingsError
from forebay_wire import messages as wire
from websockets.asyncio.client import connect

WAIT_SECONDS = 30
OPENSSL = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate of its own authority for this host, and its key."""
    certificate, key = tmp_path / "pool.pem", tmp_path / "pool.key"
    names = ("-subj", "/CN=pool", "-addext", "subjectAltName=IP:127.0.0.1")
    subprocess.run([*OPENSSL, *names, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    return certificate, key


REAL = {
    "real_workers": True,
    "devices": [{"kind": "cpu", "model": "cpu-dev", "memory": "1 GiB", "count": 1}],
    "warm_workers": 0,
}
PROGRAM = """
import torch
import forebay
x = torch.arange(1000, device="cuda")
print(int((x * x).sum()), forebay.flavor().name)
"""
needs_extensions = pytest.mark.skipif(
    importlib.util.find_spec("forebay_worker._executor") is None or importlib.util.find_spec("forebay._C") is None,
    reason="the extensions are not built",
)


async def lease(url: str, token: str, trust: ssl.SSLContext) -> wire.Granted:
    """The first lease of a client that trusts those."""
    headers = {"Authorization": f"token {token}"}
    async with connect(url.replace("https", "wss", 1) + "api/session", ssl=trust, additional_headers=headers, proxy=None) as link:
        await link.send(wire.Hello(process="x", pid=1, torch="2").encode())
        await link.send(wire.Acquire(request=1, span=wire.Span(id="s", kind="process", label="x")).encode())
        while True:
            message = wire.to_client(await asyncio.wait_for(link.recv(), WAIT_SECONDS))
            if isinstance(message, wire.Granted):
                return message


def test_clients_and_workers_link_up_over_tls_with_a_pool_that_they_trust(
    pool: Callable[..., Any], certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown, key = certificate
    monkeypatch.setenv("SSL_CERT_FILE", str(shown))

    async def scenario() -> None:
        async with pool(tls_certificate=shown, tls_key=key) as running:
            assert running.service.url.startswith("https://127.0.0.1:")
            granted = await lease(running.service.url, "ada", ssl.create_default_context())
            assert granted.address.startswith("unix:"), "its worker has linked up too"
            with pytest.raises(ssl.SSLCertVerificationError):
                await lease(running.service.url, "ada", ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
            with pytest.raises((urllib.error.URLError, ConnectionError)):
                plain = running.service.url.replace("https", "http", 1)
                await asyncio.to_thread(urllib.request.urlopen, plain + "health", timeout=WAIT_SECONDS)

    asyncio.run(scenario())


@needs_extensions
def test_a_program_computes_on_a_worker_behind_a_pool_that_it_trusts_and_is_told_of_one_that_it_does_not(
    pool: Callable[..., Any], certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown, key = certificate
    monkeypatch.setenv("SSL_CERT_FILE", str(shown))

    async def scenario() -> None:
        async with pool(tls_certificate=shown, tls_key=key, **REAL) as running:
            out, _ = await outcome(running.service.url, SSL_CERT_FILE=str(shown))
            assert out.split() == ["332833500", "dev.1gb"], out
            out, complaint = await outcome(running.service.url)
            assert out == "" and "PoolUnreachable" in complaint and "CERTIFICATE_VERIFY_FAILED" in complaint
            await running.until(lambda: not running.machine.sessions)
            await running.until(running.records)  # more than one where the program was idle for a while

    asyncio.run(scenario())


async def outcome(url: str, **trust: str) -> tuple[str, str]:
    """What the program prints, and what it complains of."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("FOREBAY_", "SSL_"))}
    environment |= {"FOREBAY_URL": url, "FOREBAY_TOKEN": "ada", "OMP_NUM_THREADS": "1", **trust}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = await asyncio.create_subprocess_exec(fork_server.programs(), "-c", PROGRAM, env=environment, **pipes)
    out, complaint = await asyncio.wait_for(process.communicate(), WAIT_SECONDS)
    return out.decode(), complaint.decode()


def is_listened_at(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_pool_that_waits_to_lead_answers_over_tls_alone(certificate: tuple[Path, Path]) -> None:
    shown, key = certificate
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = Settings(port=port, tls_certificate=shown, tls_key=key)
    leads, leader = SimpleNamespace(take=lambda: False), SimpleNamespace(leader_url=lambda: "https://127.0.0.1:1/")
    trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trust.load_verify_locations(shown)

    def ask() -> str:
        with urllib.request.urlopen(f"https://127.0.0.1:{port}/health", timeout=WAIT_SECONDS, context=trust) as answer:
            return str(json.loads(answer.read())["role"])

    async def scenario() -> None:
        stopped = asyncio.Event()
        waiting = asyncio.create_task(Follower(settings, cast(Any, leader), cast(Any, leads)).until_leading(stopped))
        while not is_listened_at(port):
            await asyncio.sleep(0.01)
        assert await asyncio.to_thread(ask) == "follower"
        with pytest.raises((urllib.error.URLError, ConnectionError)):
            await asyncio.to_thread(urllib.request.urlopen, f"http://127.0.0.1:{port}/health", timeout=WAIT_SECONDS)
        stopped.set()
        assert await waiting is False

    asyncio.run(scenario())


def test_a_certificate_that_cannot_be_used_is_said_at_the_start(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    shown, key = certificate
    assert Settings(tls_certificate=shown, tls_key=key).tls() is not None
    assert Settings().tls() is None
    for missing in (Settings(tls_certificate=tmp_path / "none.pem"), Settings(tls_certificate=shown), Settings(tls_certificate=key)):
        with pytest.raises(SettingsError, match="tls_certificate and tls_key cannot be used"):
            missing.tls()


CERTIFICATE = "0f" * 32


@pytest.mark.parametrize("address", ["tcp:10.0.0.7:9", "tcp:[fd00::7]:9", "tcp:gpu-1:9"])
def test_a_worker_that_is_reached_over_a_network_without_tls_is_refused(
    pool: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, address: str
) -> None:
    monkeypatch.setenv("FAKE_ADDRESS", address)

    async def scenario() -> None:
        async with pool(worker_environment=["FAKE_ADDRESS"], worker_attempts_max=1) as running:
            client = await running.client()
            await client.hello()
            await client.ask()
            await client.hears(wire.Refused)

    asyncio.run(scenario())
    assert f"it is reached at {address} without TLS, and the setting plaintext does not allow that" in caplog.text


@pytest.mark.parametrize(
    ("address", "certificate", "plaintext"),
    [("tcp:10.0.0.7:9", CERTIFICATE, False), ("tcp:10.0.0.7:9", None, True), ("tcp:127.0.0.1:9", None, False)],
    ids=["by tls", "in clear", "on this host"],
)
def test_the_client_is_told_which_certificate_its_worker_shows(
    pool: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, address: str, certificate: str | None, plaintext: bool
) -> None:
    monkeypatch.setenv("FAKE_ADDRESS", address)
    if certificate is not None:
        monkeypatch.setenv("FAKE_CERTIFICATE", certificate)

    async def scenario() -> None:
        async with pool(worker_environment=["FAKE_ADDRESS", "FAKE_CERTIFICATE"], plaintext=plaintext) as running:
            client = await running.client()
            await client.hello()
            await client.ask()
            granted = await client.hears(wire.Granted)
            assert (granted.address, granted.certificate) == (address, certificate)

    asyncio.run(scenario())


def test_a_door_that_a_worker_opens_for_a_process_is_held_to_the_same(
    pool: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    given = ["FAKE_DOOR", "FAKE_DOOR_CERTIFICATE"]
    monkeypatch.setenv("FAKE_DOOR", "tcp:10.0.0.7:9")

    async def answer() -> wire.Granted | wire.Refused:
        async with pool(worker_environment=given, worker_attempts_max=1) as running:
            client = await running.client()
            await client.hello()
            await client.ask()
            heard: wire.Granted | wire.Refused = await client.hears(wire.Granted | wire.Refused)
            return heard

    assert isinstance(asyncio.run(answer()), wire.Refused)
    assert "it is reached at tcp:10.0.0.7:9 without TLS, and the setting plaintext does not allow that" in caplog.text
    monkeypatch.setenv("FAKE_DOOR_CERTIFICATE", CERTIFICATE)
    granted = asyncio.run(answer())
    assert isinstance(granted, wire.Granted)
    assert (granted.address, granted.certificate) == ("tcp:10.0.0.7:9", CERTIFICATE)

"""Pool, billing, pages, a hub and a worker with certificates of an authority of their own: each is renewed while others are connected, and
none takes a certificate that ended, is for another host, or is of another authority."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from dashboards_installation import Hub, Installation, eventually, install, running
from forebay_admin.certificates import signing
from forebay_admin.certificates.folder import CertificateFolder
from forebay_dashboards.errors import UpstreamUnavailable
from forebay_dashboards.upstream.client import Upstream, open_client
from forebay_service.peers.tls import ServerCertificate, Trust
from forebay_spawner.local import LocalVirtualGpuSpawner
from websockets.sync.client import connect

SERVICES = ("billing", "pool", "dashboards")
HERE = ["127.0.0.1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> CertificateFolder:
    made = CertificateFolder(tmp_path_factory.mktemp("certificates"))
    made.make_authority("tests")
    for name in ("hub", *SERVICES):
        made.issue(name, HERE, 90)
    return made


@pytest.fixture(scope="module")
def authority(folder: CertificateFolder) -> Path:
    return folder.path / "authority.crt"


@pytest.fixture(scope="module")
def cloud(
    folder: CertificateFolder, authority: Path, worker_python: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    """All of them, on loopback; the variable by which these tests trust the authority is not the services'."""
    hub = Hub(ServerCertificate(folder.path / "hub.crt", folder.path / "hub.key").context)
    made = install(hub, worker_python, tmp_path_factory.mktemp("cloud"))
    for name in SERVICES:
        process = getattr(made, name)
        settings = {"certificate": folder.path / f"{name}.crt", "key": folder.path / f"{name}.key", "authority": authority}
        own = {key: value.replace("http://", "https://") for key, value in process.environment.items()}
        process.environment = own | {f"FOREBAY_{name.upper()}_TLS_{key.upper()}": str(value) for key, value in settings.items()}
        process.environment["SSL_CERT_FILE"] = os.devnull
        process.health_url = process.health_url.replace("http://", "https://")
    made.pool.environment["FOREBAY_POOL_BILLING_HEARTBEAT_SECONDS"] = "0.5"
    made.urls = {name: url.replace("http://", "https://") for name, url in made.urls.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(authority))
        with running(made, *SERVICES):
            eventually(lambda: troubles(made) == {} and live(made))
            yield made
    hub.close()


def troubles(cloud: Installation) -> dict[str, str]:
    """What the pool misses."""
    found: dict[str, str] = httpx.get(cloud.pool.health_url).json()["troubles"]
    return found


def live(cloud: Installation) -> bool:
    return bool(httpx.get(cloud.dashboards.health_url).json()["live"])


def shown(cloud: Installation, name: str, authority: Path) -> int:
    """The serial number of the certificate that a service shows to who connects now."""
    trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trust.load_verify_locations(authority)
    port = httpx.URL(cloud.urls[name]).port
    with socket.create_connection(("127.0.0.1", port or 0)) as plain, trust.wrap_socket(plain, server_hostname="127.0.0.1") as link:
        return int(str((link.getpeercert() or {})["serialNumber"]), 16)


def test_all_of_them_reach_each_other_and_a_worker_serves_a_session(cloud: Installation) -> None:
    assert cloud.ask("pool", "acme-member", "GET", "api/flavors"), "the pool asked the hub whose token it is"
    assert cloud.get("acme-member", "usage").is_success, "the pages asked the hub, pool and billing"
    with cloud.session("acme-member") as session:
        assert session.release(session.acquire().epoch).reason == "released"
    eventually(lambda: cloud.ask("billing", "operator", "GET", "api/usage"))
    for name in SERVICES:
        told = httpx.get(cloud.urls[name] + "metrics").text
        (left,) = (line.split()[1] for line in told.splitlines() if line.startswith(f"forebay_{name}_certificate_left_seconds "))
        assert 89 * 86_400 < float(left) < 90 * 86_400


def test_a_service_with_tls_answers_nobody_in_clear(cloud: Installation) -> None:
    for name in SERVICES:
        with pytest.raises(httpx.TransportError):
            httpx.get(cloud.urls[name].replace("https", "http") + "health")


def test_renewed_certificates_are_shown_at_once_and_nobody_who_is_connected_notices(
    cloud: Installation, folder: CertificateFolder, authority: Path
) -> None:
    with cloud.session("acme-member") as session:
        granted = session.acquire()
        before = {name: shown(cloud, name, authority) for name in SERVICES}
        for entry in folder.entries()[1:]:
            folder.renew(entry)
        after = {name: shown(cloud, name, authority) for name in SERVICES}
        assert all(before[name] != after[name] for name in SERVICES)
        assert session.release(granted.epoch).reason == "released", "the links of program and worker are those of before"
        assert session.release(session.acquire().epoch).reason == "released"
    assert troubles(cloud) == {} and live(cloud)


def test_no_handshake_fails_while_a_certificate_is_renewed_again_and_again(
    cloud: Installation, folder: CertificateFolder, authority: Path
) -> None:
    (entry,) = (entry for entry in folder.entries() if entry.name == "billing")
    serials, end = set(), time.monotonic() + 2
    while time.monotonic() < end:
        folder.renew(entry)
        serials |= {shown(cloud, "billing", authority) for _ in range(3)}
    assert len(serials) > 3


def is_reached(cloud: Installation, name: str, authority: Path) -> bool:
    """Whether the pages' client takes the certificate of a service, with a new connection."""

    async def ask() -> None:
        async with open_client(Trust(authority)) as client:
            await Upstream(name, cloud.urls[name], 5, client).fetch("", "health")

    try:
        asyncio.run(ask())
    except UpstreamUnavailable:
        return False
    return True


def wrong_host(folder: CertificateFolder, other: CertificateFolder) -> None:
    folder.issue("billing", ["10.0.0.5"], 90)


def ended(folder: CertificateFolder, other: CertificateFolder) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(signing, "EARLIER", timedelta(days=91))
        folder.issue("billing", HERE, 90)


def of_another_authority(folder: CertificateFolder, other: CertificateFolder) -> None:
    other.issue("billing", HERE, 90)
    for ending in ("key", "crt"):
        (folder.path / f"billing.{ending}").write_bytes((other.path / f"billing.{ending}").read_bytes())


@pytest.mark.parametrize("spoil", [wrong_host, ended, of_another_authority])
def test_a_certificate_that_is_no_good_is_taken_by_no_peer_until_a_good_one_is_there(
    cloud: Installation,
    folder: CertificateFolder,
    authority: Path,
    tmp_path: Path,
    spoil: Callable[[CertificateFolder, CertificateFolder], None],
) -> None:
    other = CertificateFolder(tmp_path)
    other.make_authority("other")
    spoil(folder, other)
    try:
        assert not is_reached(cloud, "billing", authority) and is_reached(cloud, "pool", authority)
        eventually(lambda: "billing" in troubles(cloud), 20)
        assert "CERTIFICATE_VERIFY_FAILED" in cloud.pool.log.read_text()
    finally:
        folder.issue("billing", HERE, 90)
    eventually(lambda: troubles(cloud) == {}, 20)
    assert is_reached(cloud, "billing", authority)


def test_a_program_trusts_no_pool_of_another_authority(cloud: Installation, tmp_path: Path) -> None:
    other = CertificateFolder(tmp_path)
    other.make_authority("other")
    trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trust.load_verify_locations(other.path / "authority.crt")
    with pytest.raises(ssl.SSLCertVerificationError):
        connect(cloud.urls["pool"].replace("https", "wss") + "api/session", ssl=trust)


def test_the_spawn_page_asks_a_pool_and_a_billing_whose_authority_it_is_told_and_no_others(
    cloud: Installation, authority: Path, tmp_path: Path
) -> None:
    other = CertificateFolder(tmp_path)
    other.make_authority("other")
    user = SimpleNamespace(
        name="acme-member",
        groups=[SimpleNamespace(name="tenant-acme")],
        url="/user/acme-member/",
        new_api_token=lambda **_: cloud.hub.tokens["acme-member"],
    )
    urls = {"pool_url": cloud.urls["pool"], "billing_url": cloud.urls["billing"]}
    for trusted, shown in ((authority, True), (other.path / "authority.crt", False)):
        spawner = LocalVirtualGpuSpawner(user=user, hub=SimpleNamespace(public_host=""), authority=str(trusted), **urls)
        form = asyncio.run(spawner.flavor_form())
        assert ("dev.1gb" in form and "cannot be asked" not in form and "Billing does not answer" not in form) == shown
        assert ("cannot be asked right now" in form) != shown

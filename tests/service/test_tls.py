"""The certificate that a service shows, whom it trusts, and what it refuses to do in clear.

That services reach each other so is shown by ``tests/dashboards/test_services_over_tls.py``.
"""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from forebay_admin.certificates import signing
from forebay_admin.certificates.folder import CertificateFolder
from forebay_billing.settings import Settings as BillingSettings
from forebay_dashboards.settings import Settings as DashboardsSettings
from forebay_pool.settings import Settings as PoolSettings
from forebay_service.errors import SettingsError
from forebay_service.peers.tls import ServerCertificate, Trust, seconds_left
from forebay_service.settings import ServiceSettings

WAIT_SECONDS = 30
LOCAL_URLS = {"POOL_URL": "http://127.0.0.1:8091/", "BILLING_URL": "http://localhost:8712/", "HUB_TOKEN": "secret"}
NEEDS: dict[type[ServiceSettings], dict[str, str]] = {PoolSettings: {}, BillingSettings: {}, DashboardsSettings: LOCAL_URLS}


@pytest.fixture
def folder(tmp_path: Path) -> CertificateFolder:
    made = CertificateFolder(tmp_path / "certificates")
    made.make_authority("tests")
    made.issue("pool", ["127.0.0.1"], 90)
    return made


def certificate(folder: CertificateFolder) -> ServerCertificate:
    return ServerCertificate(folder.path / "pool.crt", folder.path / "pool.key")


@asynccontextmanager
async def echoing(shown: ServerCertificate) -> AsyncIterator[int]:
    """The port of a server that says again what it is told."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)
        writer.close()

    async with await asyncio.start_server(echo, "127.0.0.1", 0, ssl=shown.context) as server:
        yield server.sockets[0].getsockname()[1]


class Link:
    """A connection to it, and the certificate that it was shown."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.serial = writer.get_extra_info("peercert")["serialNumber"]

    @classmethod
    async def open(cls, port: int, trust: Trust, host: str = "127.0.0.1") -> Link:
        """Raises ssl.SSLError."""
        return cls(*await asyncio.open_connection("127.0.0.1", port, ssl=trust.context, server_hostname=host))

    async def answers(self) -> bool:
        self._writer.write(b"hello\n")
        return await asyncio.wait_for(self._reader.readline(), WAIT_SECONDS) == b"hello\n"

    def close(self) -> None:
        self._writer.close()


def test_half_of_a_renewed_pair_changes_nothing_and_the_whole_of_it_takes_effect(folder: CertificateFolder, tmp_path: Path) -> None:
    other = CertificateFolder(tmp_path / "other")
    other.path.mkdir()
    for name in ("authority.crt", "authority.key"):
        (other.path / name).write_bytes((folder.path / name).read_bytes())
    other.issue("pool", ["127.0.0.1"], 90)

    async def scenario() -> None:
        trust = Trust(folder.path / "authority.crt")
        async with echoing(certificate(folder)) as port:
            first = await Link.open(port, trust)
            (folder.path / "pool.key").write_bytes((other.path / "pool.key").read_bytes())
            second = await Link.open(port, trust)
            assert second.serial == first.serial and await second.answers()
            (folder.path / "pool.crt").unlink()
            third = await Link.open(port, trust)
            assert third.serial == first.serial
            (folder.path / "pool.crt").write_bytes((other.path / "pool.crt").read_bytes())
            fourth = await Link.open(port, trust)
            assert fourth.serial != first.serial and await fourth.answers()
            assert await first.answers(), "who is connected goes on"
            for link in (first, second, third, fourth):
                link.close()

    asyncio.run(scenario())


def test_many_connections_under_way_meet_one_certificate_or_the_other_while_it_is_renewed(folder: CertificateFolder) -> None:
    async def scenario() -> None:
        trust = Trust(folder.path / "authority.crt")
        async with echoing(certificate(folder)) as port:
            kept = await Link.open(port, trust)
            serials = set()
            for _ in range(10):
                attempts = [asyncio.create_task(Link.open(port, trust)) for _ in range(8)]
                (entry,) = folder.entries()[1:]
                await asyncio.to_thread(folder.renew, entry)
                links = await asyncio.gather(*attempts)
                assert all(await asyncio.gather(*(link.answers() for link in links)))
                serials |= {link.serial for link in links}
                for link in links:
                    link.close()
            assert len(serials) > 5
            assert await kept.answers()
            kept.close()

    asyncio.run(scenario())


def test_an_authority_that_is_added_is_trusted_once_it_is_read(folder: CertificateFolder, tmp_path: Path) -> None:
    other = CertificateFolder(tmp_path / "other")
    other.make_authority("other")
    trusted = tmp_path / "peers.pem"
    trusted.write_bytes((other.path / "authority.crt").read_bytes())

    async def scenario() -> None:
        trust = Trust(trusted)
        async with echoing(certificate(folder)) as port:
            with pytest.raises(ssl.SSLCertVerificationError):
                await Link.open(port, trust)
            trusted.write_bytes(trusted.read_bytes() + (folder.path / "authority.crt").read_bytes())
            trust.refresh()
            link = await Link.open(port, trust)
            assert await link.answers()
            link.close()
            trusted.write_text("nothing")
            trust.refresh()
            (await Link.open(port, trust)).close()
            with pytest.raises(ssl.SSLCertVerificationError, match="IP address mismatch"):
                await Link.open(port, trust, "10.0.0.5")

    asyncio.run(scenario())


def test_a_key_that_everybody_reads_is_refused_and_one_of_a_group_is_not(folder: CertificateFolder) -> None:
    key = folder.path / "pool.key"
    for mode in (0o644, 0o604, 0o602):
        key.chmod(mode)
        with pytest.raises(SettingsError, match=rf"tls_key {key} is open to everybody on this host: chmod 600 it"):
            certificate(folder)
    for mode in (0o600, 0o640, 0o400):
        key.chmod(mode)
        assert certificate(folder).context is not None


def test_files_that_cannot_be_used_are_said_in_one_sentence(folder: CertificateFolder, tmp_path: Path) -> None:
    shown, key = folder.path / "pool.crt", folder.path / "pool.key"
    folder.issue("billing", [], 90)
    for wrong in ((tmp_path / "none.pem", key), (shown, tmp_path / "none.pem"), (key, key), (shown, folder.path / "billing.key")):
        with pytest.raises(SettingsError, match="tls_certificate and tls_key cannot be used"):
            ServerCertificate(*wrong)
    for missing in (tmp_path / "none.pem", key):
        with pytest.raises(SettingsError, match=r"tls_authority .* cannot be used"):
            Trust(missing)


def test_the_end_of_a_certificate_is_known_and_told_of_when_it_is_near(
    folder: CertificateFolder, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING)
    assert 89 * 86_400 < seconds_left(certificate(folder)) < 90 * 86_400 and not caplog.records
    assert seconds_left(None) == math.inf
    folder.issue("pool", [], 5)
    certificate(folder)
    assert "ends in 5 days" in caplog.text
    monkeypatch.setattr(signing, "EARLIER", timedelta(days=6))
    folder.issue("pool", [], 5)
    assert seconds_left(certificate(folder)) < 0
    assert "has ended: peers refuse it" in caplog.text


@pytest.mark.parametrize("settings", NEEDS)
def test_a_service_listens_beyond_this_host_with_tls_or_where_it_is_told_to_do_without(
    settings: type[ServiceSettings], folder: CertificateFolder
) -> None:
    def load(**given: str) -> ServiceSettings:
        prefix = f"{settings.package.upper()}_"
        return settings.load(None, {prefix + name.upper(): value for name, value in {**NEEDS[settings], **given}.items()})

    for host in ("", "10.0.0.5", "::", "gpu.example.org"):
        with pytest.raises(SettingsError, match=r"host is .*, which other hosts reach, .* set tls_.*, or plaintext = true"):
            load(host=host)
        assert load(host=host, plaintext="true").host == host
        assert load(host=host, tls_certificate=str(folder.path / "pool.crt")).host == host
    for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost"):
        assert load(host=host).host == host


def test_a_pool_lends_no_workers_on_other_hosts_in_clear_unless_it_is_told_to() -> None:
    def load(address: str, **given: str) -> ServiceSettings:
        given = {"launcher": "ray", "ray_address": address, **given}
        return PoolSettings.load(None, {f"FOREBAY_POOL_{name.upper()}": value for name, value in given.items()})

    for address in ("10.93.0.1:6379", "head:6379", "[fd00::1]:6379"):
        with pytest.raises(SettingsError, match=r"ray_address is .*, a cluster beyond this host, .* set plaintext = true"):
            load(address)
        assert load(address, plaintext="true").plaintext
        assert load(address, launcher="local")
    for address in ("127.0.0.1:6379", "localhost:6379", "auto"):
        assert load(address)


@pytest.mark.parametrize(("settings", "name"), [(settings, name) for settings in NEEDS for name in settings.peers])
def test_a_service_reaches_no_peer_on_another_host_in_clear(settings: type[ServiceSettings], name: str) -> None:
    def load(url: str, **given: str) -> ServiceSettings:
        prefix = f"{settings.package.upper()}_"
        value = f'["{url}"]' if name == "replicas" else url
        given = {**NEEDS[settings], **given, name.upper(): value}
        return settings.load(None, {prefix + key.upper(): text for key, text in given.items()})

    for url in ("http://10.0.0.5:8712/x/", "http://billing:8712/x/", "http://[fd00::5]:8712/x/"):
        with pytest.raises(SettingsError, match=rf"^{name} is http://.*, .* without TLS: use https, or set plaintext = true"):
            load(url)
        load(url, plaintext="true")
        load(url.replace("http", "https"))
    for url in ("http://127.0.0.1:8712/x/", "http://localhost:8712/x/", "http://[::1]:8712/x/"):
        load(url)

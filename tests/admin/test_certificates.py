"""``forebay admin certificates``: what it makes, renews, lists and refuses, and that TLS takes it."""

from __future__ import annotations

import hashlib
import io
import json
import os
import ssl
import stat
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from forebay.toolkit.command import main
from forebay_admin.certificates import command, signing
from forebay_admin.certificates.folder import CertificateFolder

Run = Callable[..., int]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "certificates"


@pytest.fixture
def run(folder: Path) -> Run:
    return lambda *words: main(["admin", "certificates", *words, "--folder", str(folder)])


def mode(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


def certificate(file: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(file.read_bytes())


def rows(run: Run, capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert run(*words, "--json") == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


def shakes_hands(folder: Path, name: str, asked: str, authority: Path) -> bool:
    """Whether a client that trusts the authority takes the certificate for that host."""
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cafile=authority)
    server.load_cert_chain(folder / f"{name}.crt", folder / f"{name}.key")
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(back, there, server_hostname=asked), server.wrap_bio(there, back, server_side=True)]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError:
                return False
    return True


def test_the_authority_is_for_ten_years_of_p256_and_its_key_is_its_owners_alone(run: Run, folder: Path) -> None:
    assert run("init", "--name", "gpu.example.org") == 0
    made = certificate(folder / "authority.crt")
    key = made.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name == "secp256r1"
    assert 3649 <= (made.not_valid_after_utc - datetime.now(UTC)) / timedelta(days=1) <= 3650
    assert (mode(folder / "authority.key"), mode(folder / "authority.crt")) == (0o600, 0o644)


def test_tls_takes_a_certificate_for_each_of_its_hosts_and_for_no_other(run: Run, folder: Path, tmp_path: Path) -> None:
    assert run("init") == 0
    assert run("issue", "pool.internal", "--host", "10.0.0.5", "--host", "::1") == 0
    assert mode(folder / "pool.internal.key") == 0o600
    for asked in ("pool.internal", "10.0.0.5", "::1"):
        assert shakes_hands(folder, "pool.internal", asked, folder / "authority.crt"), asked
    for asked in ("billing.internal", "10.0.0.6"):
        assert not shakes_hands(folder, "pool.internal", asked, folder / "authority.crt"), asked
    other = CertificateFolder(tmp_path / "other")
    other.make_authority("other")
    assert not shakes_hands(folder, "pool.internal", "pool.internal", other.path / "authority.crt")


def test_only_those_are_renewed_that_end_soon_and_each_stays_what_it_was(
    run: Run, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("init") == 0
    with monkeypatch.context() as patch:
        patch.setattr(signing, "EARLIER", timedelta(days=70))
        assert run("issue", "old", "--host", "10.0.0.5") == 0
    assert run("issue", "fresh", "--days", "30") == 0
    (folder / "old.key").chmod(0o640)
    before = {name: (folder / name).read_bytes() for name in ("old.crt", "old.key", "fresh.crt")}
    assert [row["name"] for row in rows(run, capsys, "renew")] == ["old"]
    renewed, earlier = certificate(folder / "old.crt"), x509.load_pem_x509_certificate(before["old.crt"])
    assert signing.names_of(renewed) == signing.names_of(earlier) == ["old", "10.0.0.5"]
    assert renewed.not_valid_after_utc > earlier.not_valid_after_utc + timedelta(days=69)
    assert (folder / "old.key").read_bytes() != before["old.key"], "a new key"
    assert mode(folder / "old.key") == 0o640, "whoever read it before reads it"
    assert (folder / "fresh.crt").read_bytes() == before["fresh.crt"]
    assert shakes_hands(folder, "old", "10.0.0.5", folder / "authority.crt")
    assert rows(run, capsys, "renew") == []
    assert [row["name"] for row in rows(run, capsys, "renew", "fresh", "--within", "31")] == ["fresh"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_renewed_key_belongs_to_whom_it_belonged_to(run: Run, folder: Path) -> None:
    assert run("init") == 0 and run("issue", "pool") == 0
    os.chown(folder / "pool.key", 12345, 12346)
    assert run("renew", "--all") == 0
    told = (folder / "pool.key").stat()
    assert (told.st_uid, told.st_gid, mode(folder / "pool.key")) == (12345, 12346, 0o600)


def test_what_is_there_is_replaced_only_after_a_question(
    run: Run, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("init") == 0 and run("issue", "pool") == 0
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    asked: list[str] = []

    def answer(question: str) -> str:
        asked.append(question)
        return ""

    for words in (("init",), ("issue", "pool")):
        assert run(*words) == 1
        assert "There is nobody to ask: add --yes." in capsys.readouterr().err
        monkeypatch.setattr(sys, "stdin", Terminal())
        monkeypatch.setattr("builtins.input", answer)
        assert run(*words) == 1
        monkeypatch.undo()
    assert asked[0].startswith(f"Replace the authority in {folder}? Peers refuse the 1 certificates")
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    assert run("init", "--yes") == 0
    assert (folder / "authority.key").read_bytes() != before["authority.key"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_list_tells_all_and_warns_of_what_peers_will_refuse(
    run: Run, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("init") == 0 and run("issue", "pool", "--host", "10.0.0.5") == 0
    capsys.readouterr()
    told = rows(run, capsys, "list")
    assert [row["name"] for row in told] == ["authority", "pool"]
    assert told[1]["hosts"] == ["pool", "10.0.0.5"] and told[1]["days_left"] == 89 and told[1]["signed_here"] is True
    der = ssl.PEM_cert_to_DER_cert((folder / "pool.crt").read_text())
    assert told[1]["fingerprint"] == hashlib.sha256(der).hexdigest()
    with monkeypatch.context() as patch:
        patch.setattr(signing, "EARLIER", timedelta(days=91))
        assert run("issue", "over") == 0
        patch.setattr(signing, "EARLIER", timedelta(days=80))
        assert run("issue", "soon") == 0
    capsys.readouterr()
    assert run("list") == 0
    warned = capsys.readouterr().err
    assert "warning: over has ended: peers refuse it" in warned and "warning: soon ends soon" in warned and "pool" not in warned
    assert run("init", "--yes") == 0
    capsys.readouterr()
    assert run("list") == 0
    assert "warning: pool was signed by another authority" in capsys.readouterr().err
    assert run("renew", "--all") == 0
    capsys.readouterr()
    assert run("list") == 0 and capsys.readouterr().err == ""


def test_what_cannot_be_is_refused_with_a_sentence_and_nothing_is_written(
    run: Run, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("list") == 1
    assert f"are not in {folder}: make them with `forebay admin certificates init`" in capsys.readouterr().err
    assert run("init") == 0
    before = sorted(folder.iterdir())
    for words, sentence in (
        (("issue", "../pool"), "is no name for a certificate"),
        (("issue", "authority"), "is no name for a certificate"),
        (("issue", "pool", "--host", "a b"), "'a b' is no host name, and no address"),
        (("issue", "pool", "--days", "0"), "0 days is no life"),
        (("renew", "pool"), "There is no certificate of pool"),
    ):
        capsys.readouterr()
        assert run(*words) == 1
        assert sentence in capsys.readouterr().err
    assert sorted(folder.iterdir()) == before
    (folder / "strange.crt").write_text("nothing")
    assert run("list") == 1
    assert "strange.crt is no certificate" in capsys.readouterr().err


def test_no_certificate_outlives_its_authority_and_one_that_ended_signs_none(
    run: Run, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signing, "AUTHORITY_DAYS", 40)
    assert run("init") == 0 and run("issue", "pool") == 0
    assert certificate(folder / "pool.crt").not_valid_after_utc == certificate(folder / "authority.crt").not_valid_after_utc
    monkeypatch.setattr(signing, "EARLIER", timedelta(days=41))
    assert run("init", "--yes") == 0
    capsys.readouterr()
    assert run("issue", "other") == 1
    assert "ended on" in capsys.readouterr().err and not (folder / "other.key").exists()


def test_the_folder_is_one_of_the_installation_unless_another_is_named() -> None:
    assert Path("/etc/forebay/certificates") == command.FOLDER

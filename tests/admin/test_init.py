"""``forebay admin init``: what it asks, writes, keeps and refuses.

That its units work is shown by ``tests/acceptance/test_a_host_as_a_service.py``.
"""

from __future__ import annotations

import os
import re
import shutil
import ssl
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from forebay.toolkit.command import main
from forebay_admin.certificates import signing
from forebay_admin.host import answers as questions
from forebay_admin.host.answers import Answers, InitError
from forebay_admin.host.files import files
from forebay_admin.host.layout import Layout
from forebay_billing.settings import Settings as BillingSettings
from forebay_dashboards.settings import Settings as DashboardsSettings
from forebay_edge.settings import Settings as EdgeSettings
from forebay_hub.host import LISTENERS, Host
from forebay_hub.tenants import read_directory
from forebay_pool.settings import Settings as PoolSettings
from forebay_service.settings import ServiceSettings

ANSWERS = 'name = "gpu.example.org"\ndevices = "cpu"\n'
SERVICES: dict[str, type[ServiceSettings]] = {
    "pool": PoolSettings,
    "billing": BillingSettings,
    "dashboards": DashboardsSettings,
    "edge": EdgeSettings,
}
EXPOSURE_MAX = {"hub": 6.0, "pool": 2.7, "billing": 2.0, "dashboards": 2.0, "edge": 2.0, "proxy": 2.0}
"""Of ``systemd-analyze security``, from 0 to 10. The hub and the pool start programs under other uids."""
needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="Debian's systemd is not installed")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "answers.toml").write_text(ANSWERS)
    return tmp_path / "root"


def init(root: Path, *options: str) -> int:
    return main(["admin", "init", "--root", str(root), "--answers", str(root.parent / "answers.toml"), *options])


def tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_dry_run_names_every_file_and_writes_none(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init(root, "--dry-run") == 0
    named = set(re.findall(r"^would write (\S+) \(\d{4}\)$", capsys.readouterr().out, re.MULTILINE))
    assert not root.exists()
    assert init(root) == 0
    assert {str(root / name) for name in tree(root)} == named


def test_a_second_time_changes_nothing_and_asks_nothing(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init(root) == 0
    before = tree(root)
    capsys.readouterr()
    assert main(["admin", "init", "--root", str(root)]) == 0
    assert tree(root) == before
    assert capsys.readouterr().out.startswith(f"{len(before)} files are as they should be.\n")


def test_what_somebody_changed_is_written_over_only_by_force_and_operators_files_never(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert init(root) == 0
    unit, pool = root / "etc" / "systemd" / "system" / "forebay-hub.service", root / "etc" / "forebay" / "pool.toml"
    unit.write_text("[Service]\n")
    pool.write_text('log_level = "debug"\n')
    before = tree(root)
    assert init(root) == 1
    assert f"these are there and differ: {unit}. Add --force" in capsys.readouterr().err
    assert tree(root) == before
    assert init(root, "--force") == 0
    assert "ExecStart" in unit.read_text() and pool.read_text() == 'log_level = "debug"\n'


def test_secrets_and_the_authority_stay_and_a_new_name_gets_a_new_certificate(root: Path) -> None:
    assert init(root) == 0
    settings = root / "etc" / "forebay"
    before = {name: (settings / name).read_bytes() for name in ("secrets/hub.env", "tls/ca.key", "tls/server.crt")}
    (root.parent / "answers.toml").write_text(ANSWERS.replace("gpu.", "other."))
    assert init(root, "--force") == 0
    after = {name: (settings / name).read_bytes() for name in before}
    assert [name for name in before if after[name] != before[name]] == ["tls/server.crt"]
    assert signing.is_of(after["tls/server.crt"], "other.example.org")


def test_nobody_else_can_read_what_is_secret(root: Path) -> None:
    assert init(root) == 0
    secret = [*(root / "etc/forebay/secrets").iterdir(), *(root / "etc/forebay/tls").glob("*.key")]
    assert len(secret) == 8 and {stat.S_IMODE(path.stat().st_mode) for path in secret} == {0o600}
    tokens = set(re.findall(rb"'([0-9a-f]{64})'", (root / "etc/forebay/secrets/hub.env").read_bytes()))
    assert len(tokens) == 6
    others = {name: content for name, content in tree(root).items() if not name.startswith("etc/forebay/secrets/")}
    assert not [name for name, content in others.items() if any(token in content for token in tokens)]


@pytest.mark.parametrize("name", SERVICES)
@pytest.mark.parametrize("database", ["sqlite", "postgresql+psycopg://forebay:a%27word@db.example.org"])
def test_each_service_takes_its_files_and_listens_where_the_hub_looks_for_it(root: Path, name: str, database: str) -> None:
    (root.parent / "answers.toml").write_text(f'{ANSWERS}database = "{database}"\n')
    assert init(root) == 0
    folder = root / "etc" / "forebay"
    lines = (folder / "secrets" / f"{name}.env").read_text().splitlines()
    variables = {key: value.strip("'") for key, _, value in (line.partition("=") for line in lines)}
    settings = SERVICES[name].load(folder / f"{name}.toml", variables)
    host = Host.read(folder / "host.toml")
    assert f"http://{settings.host}:{settings.port}" == host.address_of(name)
    assert settings.prefix == f"/services/{name}/" and len(settings.metrics_token) == 64
    if name == "dashboards":
        assert getattr(settings, "public_url", None) == f"https://{host.name}", "what mails link to"
        assert variables["JUPYTERHUB_CLIENT_ID"] == "service-dashboards", "by which the hub knows where people sign in"
    elif name == "edge":
        assert getattr(settings, "pool_url", None) == f"{host.address_of('pool')}/services/pool/"
    else:
        assert getattr(settings, "worker_account", None) == (
            ("1879048192-1879113727", "forebay-worker", "@devices") if name == "pool" else None
        )
        url = getattr(settings, "database_url", None)
        assert url == (None if database == "sqlite" else f"{database}/forebay_{name}")
        assert getattr(settings, "state_dir", None) == root / "var" / "lib" / "forebay" / name


def test_the_hub_takes_its_files(root: Path) -> None:
    assert init(root) == 0
    directory = read_directory(root / "etc" / "forebay" / "hub.toml")
    assert directory.operators == {"operator"} and directory.people == {"operator", "acme-owner"}
    host = Host.read(root / "etc" / "forebay" / "host.toml")
    proxy = tomllib.loads((root / "etc" / "forebay" / "proxy.toml").read_text())
    assert proxy["entryPoints"]["auth_api"]["address"] == host.address_of("proxy").removeprefix("http://")
    assert proxy["providers"]["file"]["directory"] == str(host.state / "routes")
    assert LISTENERS[0] == "hub"
    config = (root / "etc" / "forebay" / "jupyterhub_config.py").read_text()
    assert f'configure_host(c, Path("{root / "etc" / "forebay"}"))' in config


def test_the_certificate_is_one_that_tls_takes_for_this_name_and_no_other() -> None:
    authority = signing.new_authority("gpu.example.org")
    for name, asked in (("gpu.example.org", "gpu.example.org"), ("10.0.0.7", "10.0.0.7"), ("gpu.example.org", "evil.org")):
        assert shaken(signing.new_server(name, authority), authority, asked) == (name == asked)
    assert not shaken(signing.new_server("gpu.example.org", signing.new_authority("x")), authority, "gpu.example.org")


def shaken(server: signing.Pair, authority: signing.Pair, name: str) -> bool:
    """Whether a client that trusts the authority takes the server for that name."""
    inside, outside = ssl.MemoryBIO(), ssl.MemoryBIO()
    there, back = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cadata=authority.certificate.decode())
    file = Path(f"/dev/shm/forebay-test-{os.getpid()}.pem")
    file.write_bytes(server.certificate + server.key)
    there.load_cert_chain(file)
    file.unlink()
    ends = [there.wrap_bio(inside, outside, server_side=True), back.wrap_bio(outside, inside, server_hostname=name)]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError:
                return False
    return True


def test_a_person_is_asked_five_questions_and_may_take_every_default() -> None:
    asked: list[str] = []
    given = iter(["gpu.example.org", "", "globex/ann", "", "cpu"])

    def ask(question: str) -> str:
        asked.append(question)
        return next(given)

    assert questions.asked(ask) == Answers("gpu.example.org", payer="globex/ann", devices="cpu")
    assert len(asked) == 5 and asked[1] == "Login of the first operator [operator]: "


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('payer = "acme"', "'acme' is not like acme/acme-owner"),
        ('payer = "acme/operator"', "operator is the operator, who belongs to no tenant"),
        ('operator = "Ann"', "'Ann' is no login"),
        ('database = "mysql://db"', "give sqlite, or postgresql"),
        ('database = "postgresql+psycopg://db/forebay"', "without the name of a database"),
        ("port = 70000", "port: 70000 is none"),
        ('port = "443"', "port must be a number"),
        ("first_port = 80", "no free ports"),
        ('colour = "blue"', "colour is no answer; known are name"),
        ('certificate = "a.crt"', "certificate and key go together"),
    ],
)
def test_an_answer_that_cannot_be_is_refused_before_anything_is_written(
    root: Path, line: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (root.parent / "answers.toml").write_text(f"{ANSWERS}{line}\n")
    assert init(root) == 1
    assert sentence in capsys.readouterr().err
    assert not root.exists()


def test_a_host_without_accelerators_says_so_where_they_are_to_be_found(tmp_path: Path) -> None:
    with pytest.raises(InitError, match="answer cpu for two devices"):
        files(Answers("gpu.example.org"), Layout(tmp_path))


def test_an_environment_that_the_units_would_not_see_is_refused() -> None:
    with pytest.raises(InitError, match=r"The units do not see /home, where /home/ann/forebay is; install into another folder"):
        files(Answers("gpu.example.org", devices="cpu"), Layout(Path("/"), Path("/home/ann/forebay")))


@needs_systemd
@pytest.mark.parametrize("database", ["sqlite", "postgresql+psycopg://db.example.org"])
def test_systemd_finds_no_fault_in_the_units(root: Path, database: str) -> None:
    (root.parent / "answers.toml").write_text(f'{ANSWERS}database = "{database}"\n')
    assert init(root) == 0
    paths = sorted(map(str, (root / "etc" / "systemd" / "system").iterdir()))
    assert ("forebay-rehearsal" in " ".join(paths)) == (database == "sqlite")
    done = subprocess.run(["systemd-analyze", "verify", *paths], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@needs_systemd
def test_the_units_are_as_hardened_as_is_said(root: Path) -> None:
    assert init(root) == 0
    for name, most in EXPOSURE_MAX.items():
        unit = root / "etc" / "systemd" / "system" / f"forebay-{name}.service"
        told = subprocess.run(["systemd-analyze", "security", "--offline=true", unit], capture_output=True, text=True, check=False).stdout
        (level,) = re.findall(r"Overall exposure level for \S+: ([\d.]+)", told)
        assert float(level) <= most, told


def test_dated_backups_are_kept_so_many_and_the_newest_is_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sqlite3

    monkeypatch.setenv("FOREBAY_STATE", str(tmp_path / "state"))
    for name in ("pool/pool.sqlite", "billing/billing.sqlite3"):
        (tmp_path / "state" / name).parent.mkdir(parents=True)
        with sqlite3.connect(tmp_path / "state" / name) as connection:
            connection.executescript("CREATE TABLE lease_segments (id); CREATE TABLE usage_outbox (segment); CREATE TABLE told (what)")
    folder = tmp_path / "backups"
    for number in range(4):
        with sqlite3.connect(tmp_path / "state" / "pool/pool.sqlite") as connection:
            connection.execute("INSERT INTO told VALUES (?)", (number,))
        monkeypatch.setattr("forebay_admin.backup.time.time", lambda number=number: 1_700_000_000.0 + number)
        assert main(["admin", "backup", str(folder), "--dated", "--keep", "2"]) == 0
    (folder / "2099-01-01T000000Z").mkdir()
    assert [path.name for path in sorted(folder.iterdir())] == ["2023-11-14T221322Z", "2023-11-14T221323Z", "2099-01-01T000000Z"]
    places = [f"--{name}=sqlite:///{tmp_path}/{name}.copy" for name in ("pool", "billing")]
    assert main(["admin", "restore", str(folder), "--newest", *places]) == 0
    with sqlite3.connect(tmp_path / "pool.copy") as connection:
        assert connection.execute("SELECT max(what) FROM told").fetchone() == (3,)
    assert main(["admin", "restore", str(tmp_path / "none"), "--newest", *places]) == 1
    assert main(["admin", "backup", str(folder), "--keep", "2"]) == 1


def test_init_has_nobody_to_ask_in_a_pipe(tmp_path: Path) -> None:
    forebay = Path(sys.executable).with_name("forebay")
    command = [str(forebay), "admin", "init", "--root", str(tmp_path)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "forebay: There is nobody to ask: give the answers with --answers FILE.\n")

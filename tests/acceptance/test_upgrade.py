"""The page on upgrades, played on a host in namespaces of its own: from the release before to today's, and back; on both databases."""

from __future__ import annotations

import json
import re
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(CHECKOUT / "tests" / "packages"), str(CHECKOUT / "deploy" / "packages")]

import namespaces  # noqa: E402 - lies in a folder that was just added
import release_before  # noqa: E402 - as above
import wheels  # noqa: E402 - as above
from release_host import ReleaseHost, lay, lines  # noqa: E402 - as above

NOTEBOOK = {"cells": [], "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3"}}, "nbformat": 4, "nbformat_minor": 5}
BEFORE = (release_before.revision_of("pool"), release_before.revision_of("billing"))
PRODUCT = "import torch\nx = torch.arange(4., device='cuda')\nprint((x @ x).item())"
POSTGRES_ANSWER = 'database = "postgresql+psycopg://forebay@127.0.0.1"\n'
OLDER = """
set -e; mkdir -p /run/older; cd /run/older
for package in pool billing service wire; do {python} -m zipfile -e {before}/forebay_$package-*.whl .; done
set -a; . /etc/forebay/secrets/{service}.env; set +a
unset FOREBAY_POOL_WORKER_ACCOUNT  # which names what that release does not know
export PYTHONPATH=/run/older
account="--reuid forebay-{service} --regid forebay-{service} --clear-groups"
exec setpriv $account {python} -m forebay_{service} --config /etc/forebay/{service}.toml
"""
"""The release before, whose service meets the schema of the one after it."""
pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.full_sweep,
    pytest.mark.timeout(2400),
    *namespaces.NEEDED,
]


class Installation(ReleaseHost):
    """A host on which the release before was installed as the page on that says."""

    def __init__(self, folder: Path, prefix: list[str], postgres: Path | None) -> None:
        super().__init__(lay(folder), namespaces.NetworkHost("gpu", "127.0.0.1", folder / "gpu", prefix))
        self.postgres = postgres
        self.host.begin_loopback()

    def set_up(self) -> None:
        if self.postgres is not None:
            self.type(namespaces.POSTGRES.replace("{bin}", str(self.postgres)), self.before)
        answers = 'name = "localhost"\ndevices = "cpu"\n' + ("" if self.postgres is None else POSTGRES_ANSWER)
        self.host.path(f"{self.before}/answers.toml").write_text(answers)
        typed = [*lines("install.md", "Install"), *lines("install.md", "Set up")]
        self.install([line.replace(" forebay-rehearsal.timer", "") if self.postgres else line for line in typed])
        self.wait()

    def version(self) -> str:
        return self.type("/opt/forebay/bin/forebay --version; /opt/forebay/notebook/bin/forebay --version", self.today)

    def schema(self, name: str) -> str:
        """The revision of a database."""
        if self.postgres is not None:
            query = "SELECT version_num FROM alembic_version"
            return self.type(f'psql -h 127.0.0.1 -U forebay -d forebay_{name} -tAc "{query}"', self.today).strip()
        file = {"pool": "pool/pool.sqlite", "billing": "billing/billing.sqlite3"}[name]
        query = f"import sqlite3; print(*sqlite3.connect('/var/lib/forebay/{file}').execute('SELECT * FROM alembic_version'))"  # noqa: S608
        return self.type(f'/opt/forebay/bin/python -c "{query}"', self.today).strip("(',)\n")


def revisions(made: Installation) -> tuple[str, str]:
    return made.schema("pool"), made.schema("billing")


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def installation(request: pytest.FixtureRequest, passable: Any) -> Iterator[Installation]:
    postgres = request.getfixturevalue("postgres_binaries") if request.param == "postgresql" else None
    folder = passable.folder / request.param
    folder.mkdir(mode=0o755)
    made = Installation(folder, passable.prefix, postgres)
    try:
        made.set_up()
        yield made
    finally:
        made.host.turn_off()


@pytest.fixture
def compute(installation: Installation, person_type: Any, kernel_type: Any, eventually: Any) -> Callable[[], int]:
    """Computes in a notebook of the tenant's owner; how many records of usage billing has of the tenant afterwards."""

    def go() -> int:
        with pytest.MonkeyPatch.context() as patch, installation.host.network(), installation.browser() as web:
            patch.setenv("SSL_CERT_FILE", str(installation.authority))
            owner = person_type("acme-owner", web)
            passwords = json.loads(installation.host.path("/var/lib/forebay/hub/logins.json").read_text())
            assert owner.sign_in(passwords["acme-owner"]).status_code == httpx.codes.OK
            asking = {"headers": {"Authorization": f"token {owner.new_token()}"}, "params": {"tenant": "acme"}}

            def records() -> int:
                return len(web.get("/services/billing/api/usage", **asking).raise_for_status().json()["records"])

            before = records()
            owner.spawn("dev.4gb")
            owner.open_lab()
            headers = {"X-XSRFToken": owner.xsrf("/user/acme-owner/")}
            body = {"type": "notebook", "content": NOTEBOOK}
            web.put("/user/acme-owner/api/contents/try.ipynb", json=body, headers=headers).raise_for_status()
            kernel = kernel_type(owner, "try.ipynb")
            assert kernel.run(PRODUCT).splitlines()[-1] == "14.0"
            kernel.close()
            assert eventually(lambda: records() > before), installation.log()
            owner.stop_server()
            return records()

    return go


def test_the_page_brings_a_host_to_this_release_and_back(installation: Installation, compute: Callable[[], int]) -> None:
    made = installation
    assert made.version().count("forebay 0.0.9") == 2 and revisions(made) == BEFORE
    first = compute()
    check, install = lines("upgrade.md", "Upgrade")[:2]
    for environment in ("/opt/forebay", "/opt/forebay/notebook"):
        made.lay_others(environment, made.today)
    said = made.type(check, made.today)
    assert said.count("0.0.9 -> 0.1.0") == 2 and said.endswith("Nothing was changed.\n") and revisions(made) == BEFORE
    said = made.type(install, made.today)
    assert re.search(rf"Brought the database of pool from {BEFORE[0]} to \d+\.", said) and said.endswith("goes back to 0.0.9.\n")
    assert made.version().count("forebay 0.1.0") == 2
    made.wait()
    again = made.run(install, made.today)
    assert again.returncode == 1 and "This host has 0.1.0" in again.stderr

    second = compute()
    assert second > first, "what was billed before stands"
    made.type("systemctl stop forebay.target", made.today)
    for service in ("pool", "billing"):
        met = made.run(OLDER.format(python="/opt/forebay/bin/python", before=made.before, service=service), made.today)
        told = met.stderr.strip().splitlines()[-1]
        assert met.returncode != 0 and re.search(rf"Can't locate revision identified by '{made.schema(service)}'", told), met.stderr
    made.type("systemctl start forebay.target", made.today)
    made.wait()
    (back,) = lines("upgrade.md", "Back")
    refused = made.run(back, made.today)
    assert refused.returncode == 1 and re.search(r"would be lost: \d+ leases.* records of usage", refused.stderr), refused.stderr
    made.wait()
    said = made.type(f"{back} --lose-records", made.today)
    assert said.endswith("This host serves 0.0.9 again.\n")
    assert made.version().count("forebay 0.0.9") == 2 and revisions(made) == BEFORE
    made.wait()
    third = compute()
    assert first < third < second + (second - first), "what was before the upgrade is there, and it serves"
    made.type(install, made.today)
    made.wait()
    assert compute() > third, "a way back leaves nothing in the way of the next upgrade"
    made.type(f"{back} --lose-records", made.today)
    made.wait()


def test_an_upgrade_whose_services_do_not_start_goes_back_by_itself(
    installation: Installation, compute: Callable[[], int], tmp_path: Path
) -> None:
    made, broken = installation, tmp_path / "broken"
    shutil.copytree(made.host.path(str(made.today)), broken)
    (pages,) = broken.glob("forebay_dashboards-*.whl")
    draft = broken / "draft" / pages.name
    draft.parent.mkdir()
    with zipfile.ZipFile(pages) as whole, zipfile.ZipFile(draft, "w") as archive:
        for name in whole.namelist():
            archive.writestr(name, b"raise SystemExit(1)\n" if name == "forebay_dashboards/__main__.py" else whole.read(name))
    pages.unlink()
    wheels.seal([draft], broken, wheels.epoch_of(CHECKOUT))
    shutil.rmtree(draft.parent)
    (broken / release_before.release.SUMS).unlink()
    release_before.write_sums(broken)

    refused = made.run(lines("upgrade.md", "Upgrade")[2], made.bring(broken))
    assert refused.returncode == 1 and refused.stderr.endswith("This host serves 0.0.9 again.\n"), refused.stdout + refused.stderr
    assert "It failed: forebay-dashboards is not well" in refused.stdout
    assert made.version().count("forebay 0.0.9") == 2 and revisions(made) == BEFORE
    made.wait()
    compute()

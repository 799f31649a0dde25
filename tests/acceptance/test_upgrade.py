"""The page on upgrades, played on a host in namespaces of its own: from the release before to today's, and back."""

from __future__ import annotations

import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(CHECKOUT / "tests" / "packages"), str(CHECKOUT / "deploy" / "packages")]

import release_before  # noqa: E402 - lies in a folder that was just added
import wheels  # noqa: E402 - as above
from installing import OUTSIDE  # noqa: E402 - as above
from namespaces import NetworkHost  # noqa: E402 - as above

PAGES = CHECKOUT / "docs" / "operators"
NOTEBOOK = {"cells": [], "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3"}}, "nbformat": 4, "nbformat_minor": 5}
PRODUCT = "import torch\nx = torch.arange(4., device='cuda')\nprint((x @ x).item())"
LINKED = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from installing import asked_for, link
link(Path({folder!r}), asked_for(Path({release!r}), ["host", "notebook", "traefik", "postgresql"]) | {{"numpy"}})
"""
START_SECONDS_MAX = 120
pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.full_sweep,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(os.getuid() != 0, reason="namespaces and units' users need root"),
    pytest.mark.skipif(shutil.which("systemd-sysusers") is None or shutil.which("ip") is None, reason="systemd or iproute2 is missing"),
]


def lines(page: str, heading: str) -> list[str]:
    """What a section of a page has typed."""
    section = (PAGES / page).read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return "".join(re.findall(r"^```sh\n(.*?)^```", section, re.MULTILINE | re.DOTALL)).splitlines()


class Installation:
    """A host on which the release before was installed as the page on that says."""

    def __init__(self, folder: Path, prefix: list[str]) -> None:
        release_before.lay(folder / "before")
        wheels.make(folder / "today", [], None, wheels.epoch_of(CHECKOUT))
        release_before.write_sums(folder / "today")
        self.host = NetworkHost("gpu", "127.0.0.1", folder / "gpu", prefix)
        self.host.begin_loopback()
        self.before, self.today = self.bring(folder / "before"), self.bring(folder / "today")
        kept = {name: value for name, value in os.environ.items() if not name.startswith((*OUTSIDE, "SSL_"))}
        self.variables = kept | {"HOME": "/run", "PIP_NO_INDEX": "1", "no_proxy": "*", "NO_PROXY": "*"}

    def bring(self, folder: Path) -> Path:
        """A copy of a folder on the host; where it is there."""
        shutil.copytree(folder, self.host.path(f"/run/{folder.name}"))
        return Path("/run", folder.name)

    def install(self) -> None:
        self.host.path(f"{self.before}/answers.toml").write_text('name = "localhost"\ndevices = "cpu"\n')
        for line in [*lines("install.md", "Install"), *lines("install.md", "Set up")]:
            self.type(line, self.before)
            if " -m venv " in line:
                self.lay_others(line.split()[-1], self.before)
        self.wait()

    def lay_others(self, environment: str, release: Path) -> None:
        """What a release needs of others, which an index would bring."""
        code = LINKED.format(tests=str(CHECKOUT / "tests" / "packages"), folder=environment, release=str(release))
        self.host.path("/run/link.py").write_text(code)
        self.type(f"{sys.executable} /run/link.py", release)

    def run(self, line: str, folder: Path) -> subprocess.CompletedProcess[str]:
        return self.host.run(line, self.variables, str(folder))

    def type(self, line: str, folder: Path) -> str:
        """What a command says, which must succeed."""
        done = self.run(line, folder)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}\n{self.log()}"
        return done.stdout

    def log(self) -> str:
        file = self.host.path("/var/lib/units.log")
        return file.read_text(errors="replace")[-4000:] if file.exists() else ""

    def wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        with self.host.network(), self.browser() as web:
            while not self._serves(web):
                assert time.monotonic() < deadline, self.log()
                time.sleep(0.5)

    def _serves(self, web: httpx.Client) -> bool:
        try:
            paths = ("hub", "services/pool", "services/billing", "services/dashboards")
            return all(web.get(f"/{path}/health").status_code == httpx.codes.OK for path in paths)
        except httpx.TransportError:
            return False

    @property
    def authority(self) -> Path:
        return self.host.path("/etc/forebay/tls/ca.crt")

    def browser(self) -> httpx.Client:
        trust = ssl.create_default_context(cafile=str(self.authority))
        return httpx.Client(base_url="https://localhost", verify=trust, follow_redirects=True, timeout=60, trust_env=False)

    def version(self) -> str:
        return self.type("/opt/forebay/bin/forebay --version; /opt/forebay/notebook/bin/forebay --version", self.today)

    def schema(self, name: str) -> str:
        """The revision of a database."""
        file = {"pool": "pool/pool.sqlite", "billing": "billing/billing.sqlite3"}[name]
        query = f"import sqlite3; print(*sqlite3.connect('/var/lib/forebay/{file}').execute('SELECT * FROM alembic_version'))"  # noqa: S608
        return self.type(f'/opt/forebay/bin/python -c "{query}"', self.today).strip("(',)\n")


@pytest.fixture(scope="module")
def installation(passable: Any) -> Iterator[Installation]:
    made = Installation(passable.folder, passable.prefix)
    try:
        made.install()
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
    assert made.version().count("forebay 0.0.9") == 2 and made.schema("pool") == "0016" and made.schema("billing") == "0018"
    first = compute()
    install, script = lines("upgrade.md", "Upgrade")[:2], lines("upgrade.md", "Upgrade")[2]
    refused = made.run(install[0], made.today)
    assert refused.returncode == 2 and "invalid choice" in refused.stderr, "the release before has no such command"

    lacking = made.run(script, made.today)
    assert lacking.returncode == 1 and "No matching distribution found for cronsim" in lacking.stderr, "and nothing was changed"
    for environment in ("/opt/forebay", "/opt/forebay/notebook"):
        made.lay_others(environment, made.today)
    said = made.type(script.replace("upgrade .", "upgrade . --check"), made.today)
    assert said.count("0.0.9 -> 0.1.0") == 2 and said.endswith("Nothing was changed.\n")
    said = made.type(script, made.today)
    assert re.search(r"Brought the database of pool from 0016 to \d+\.", said) and said.endswith("goes back to 0.0.9.\n")
    assert made.version().count("forebay 0.1.0") == 2
    made.wait()
    again = made.run(install[1], made.today)
    assert again.returncode == 1 and "This host has 0.1.0" in again.stderr

    second = compute()
    assert second > first, "what was billed before stands"
    (back,) = lines("upgrade.md", "Back")
    refused = made.run(back, made.today)
    assert refused.returncode == 1 and re.search(r"would be lost: \d+ leases.* records of usage", refused.stderr), refused.stderr
    made.wait()
    said = made.type(f"{back} --lose-records", made.today)
    assert said.endswith("This host serves 0.0.9 again.\n")
    assert made.version().count("forebay 0.0.9") == 2 and made.schema("pool") == "0016" and made.schema("billing") == "0018"
    made.wait()
    assert first < compute() < second + (second - first), "what was before the upgrade is there, and it serves"


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
    assert made.version().count("forebay 0.0.9") == 2 and made.schema("pool") == "0016"
    made.wait()
    compute()

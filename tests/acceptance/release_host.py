"""A host in namespaces of its own on which releases are installed as the pages say; other packages lie there as links."""

from __future__ import annotations

import os
import re
import shutil
import ssl
import subprocess
import sys
import time
from pathlib import Path

import httpx
import namespaces
import release_before
from installing import OUTSIDE

CHECKOUT = Path(__file__).resolve().parents[2]
PAGES = CHECKOUT / "docs" / "operators"
LINKED = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from installing import asked_for, link, pretend
pretend("nvidia-ml-py", next(Path({folder!r}).glob("lib/python*/site-packages")))
link(Path({folder!r}), asked_for(Path({release!r}), ["host", "notebook", "traefik", "postgresql", "node", "ray"]) | {{"numpy"}})
"""
"""Ray is there too, as on a control host that others have joined. NVIDIA's library, which goes with it, has nothing to do here."""
START_SECONDS_MAX = 120


def lay(folder: Path) -> list[Path]:
    """The release before, and today's, each in a folder of its own below this one."""
    release_before.lay(folder / "before")
    release_before.lay_today(folder / "today")
    return [folder / "before", folder / "today"]


def lines(page: str, heading: str) -> list[str]:
    """What a section of a page has typed."""
    section = (PAGES / page).read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return "".join(re.findall(r"^```sh\n(.*?)^```", section, re.MULTILINE | re.DOTALL)).splitlines()


class ReleaseHost:
    """A host that has both releases as people bring them there."""

    def __init__(self, releases: list[Path], host: namespaces.NetworkHost, name: str = "localhost") -> None:
        self.host, self.name = host, name
        self.before, self.today = (self.bring(release) for release in releases)
        kept = {name: value for name, value in os.environ.items() if not name.startswith((*OUTSIDE, "SSL_"))}
        self.variables = kept | {"HOME": "/run", "PIP_NO_INDEX": "1", "no_proxy": "*", "NO_PROXY": "*"}

    def bring(self, folder: Path) -> Path:
        """A copy of a folder on the host; where it is there."""
        shutil.copytree(folder, self.host.path(f"/run/{folder.name}"))
        return Path("/run", folder.name)

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

    def install(self, lines: list[str]) -> None:
        """Types what a page has typed, and lays the packages of others into each environment that it makes."""
        for line in lines:
            self.type(line, self.before)
            if " -m venv " in line:
                self.lay_others(line.split()[-1], self.before)

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
        return httpx.Client(base_url=f"https://{self.name}", verify=trust, follow_redirects=True, timeout=60, trust_env=False)

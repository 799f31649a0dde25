"""The page on adding hosts, played between a control host and two others, each a set of namespaces.

The page's commands are typed where its headings say. What installs is not: this checkout's environment stands for it on all hosts.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(CHECKOUT / "tests" / "packages")]

from installing import OUTSIDE  # noqa: E402 - lies in a folder that was just added
from namespaces import NetworkHost, Switch  # noqa: E402 - as above

PAGE = CHECKOUT / "docs" / "operators" / "add-a-host.md"
CONTROL, GPU_1, GPU_2 = "10.93.0.1", "10.93.0.2", "10.93.0.3"
ANSWERS = f'name = "{CONTROL}"\ndevices = "cpu"\n'
INIT = ("forebay admin init --answers /run/answers.toml", "systemd-sysusers", "systemctl enable --now forebay.target")
NOTEBOOK = {"cells": [], "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3"}}, "nbformat": 4, "nbformat_minor": 5}
PRODUCT = "import torch\nx = torch.arange(4., device='cuda')\nprint((x @ x).item())"
NOTICE_SECONDS_MAX = 120
pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.full_sweep,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.getuid() != 0, reason="namespaces and units' users need root"),
    pytest.mark.skipif(shutil.which("systemd-sysusers") is None or shutil.which("ip") is None, reason="systemd or iproute2 is missing"),
]


def blocks(heading: str, language: str) -> str:
    """What a section of the page has in its blocks of a language."""
    section = PAGE.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return "".join(re.findall(rf"^```{language}\n(.*?)^```", section, re.MULTILINE | re.DOTALL))


class Cluster:
    """A control host with the pool, and two hosts that lend their CPUs."""

    def __init__(self, folder: Path, prefix: list[str]) -> None:
        self.ends = contextlib.ExitStack()
        self.switch = Switch()
        self.ends.callback(self.switch.stop)
        self.hosts: dict[str, NetworkHost] = {}
        for name, address in {"control": CONTROL, "gpu-1": GPU_1, "gpu-2": GPU_2}.items():
            self.hosts[name] = host = NetworkHost(name, address, folder / name, prefix)
            self.ends.callback(host.turn_off)
            self.switch.plug(host)
        self.control = self.hosts["control"]
        kept = {name: value for name, value in os.environ.items() if not name.startswith((*OUTSIDE, "SSL_"))}
        self.variables = kept | {"HOME": "/run", "no_proxy": "*", "NO_PROXY": "*"}
        self.token = ""

    def type(self, host: NetworkHost, line: str) -> str:
        """What a command says, which must succeed."""
        done = self.run(host, line)
        assert done.returncode == 0, f"{host.name}: {line}\n{done.stdout}{done.stderr}\n{self.logs()}"
        return str(done.stdout)

    def run(self, host: NetworkHost, line: str) -> Any:
        here = re.sub(r"(/opt/forebay/bin/|\b)forebay (?=admin|node)", f"{sys.prefix}/bin/forebay ", line)
        token = {"FOREBAY_TOKEN": self.token} if self.token else {}
        return host.run(here, self.variables | token)

    def logs(self) -> str:
        """The ends of what the units say."""
        files = {name: host.path("/var/lib/units.log") for name, host in self.hosts.items() if host.process.poll() is None}
        return "\n".join(f"--- {name}\n{file.read_text(errors='replace')[-3000:]}" for name, file in files.items() if file.exists())

    def get(self, path: str) -> Any:
        """What the pool answers the operator, over TLS at its public address."""
        headers = {"Authorization": f"token {self.token}"}
        with self.control.network(), httpx.Client(verify=self.trust, trust_env=False, timeout=30) as web:
            return web.get(f"https://{CONTROL}/services/pool/{path}", headers=headers).raise_for_status().json()

    def states(self) -> dict[str, str]:
        return {row["node"]: row["state"] for row in self.get("api/nodes")}

    def busy(self) -> set[str]:
        """The nodes on which somebody computes or has tensors."""
        return {row["node"] for row in self.get("api/nodes") if row["leases"] + row["residents"]}

    def until(self, good: Callable[[], bool], seconds: float = NOTICE_SECONDS_MAX) -> float:
        """How long it took, in seconds."""
        began = time.monotonic()
        while not good():
            assert time.monotonic() - began < seconds, self.logs()
            time.sleep(0.5)
        return time.monotonic() - began

    @property
    def authority(self) -> Path:
        return self.control.path("/etc/forebay/tls/ca.crt")

    @property
    def trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.authority))

    def stop(self) -> None:
        self.ends.close()


@pytest.fixture(scope="module")
def cluster(passable: Any) -> Iterator[Cluster]:
    """All of it, before the page is played; the control host is one host as a service."""
    made = Cluster(passable.folder, passable.prefix)
    try:
        made.control.path("/run/answers.toml").write_text(ANSWERS)
        for line in INIT:
            made.type(made.control, line)
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def operator(cluster: Cluster, person_type: Any) -> Iterator[None]:
    """Signs the operator in, whose token the page's commands have."""
    cluster.until(lambda: answered(cluster))
    with cluster.control.network(), browser(cluster) as web:
        person = person_type("operator", web)
        assert person.sign_in(logins(cluster)["operator"]).status_code == httpx.codes.OK
        cluster.token = person.new_token()
    yield


def answered(cluster: Cluster) -> bool:
    """Whether the services answer on the public address."""
    with cluster.control.network(), browser(cluster) as web:
        return answers(web)


def browser(cluster: Cluster) -> httpx.Client:
    return httpx.Client(base_url=f"https://{CONTROL}", verify=cluster.trust, follow_redirects=True, timeout=60, trust_env=False)


def answers(web: httpx.Client) -> bool:
    try:
        return all(web.get(f"/{path}/health").status_code == httpx.codes.OK for path in ("hub", "services/pool", "services/billing"))
    except httpx.TransportError:
        return False


def logins(cluster: Cluster) -> dict[str, str]:
    return dict(json.loads(cluster.control.path("/var/lib/forebay/hub/logins.json").read_text()))


@pytest.fixture(scope="module")
def joined(cluster: Cluster, operator: None) -> Cluster:
    """Both hosts, after the page."""
    settings = cluster.control.path("/etc/forebay/pool.toml")
    for line in blocks("On the control host", "sh").splitlines():
        if line == "systemctl restart forebay-pool":
            wanted = blocks("On the control host", "toml").replace("gpu.example.org", CONTROL).replace("/opt/forebay", sys.prefix)
            settings.write_text(wanted + settings.read_text())
        if "/pip " not in line:
            cluster.type(cluster.control, f"{line} --cpu" if " invite " in line else line)
    cluster.until(lambda: answered(cluster))
    cluster.type(cluster.control, f"forebay node invite gpu-2 {GPU_2} --cpu --switch rack-2")
    cluster.type(cluster.hosts["gpu-2"], "useradd --system somebody")  # so that uids differ
    for name in ("gpu-1", "gpu-2"):
        host = cluster.hosts[name]
        host.path(f"/run/{name}.toml").write_bytes(cluster.control.path(f"/run/{name}.toml").read_bytes())
        for line in blocks("On the new host", "sh").splitlines():
            if not re.search(r"/pip | -m venv ", line):
                cluster.type(host, line.replace("gpu-1", name))
    return cluster


@pytest.fixture(scope="module")
def kernel(joined: Cluster, person_type: Any, kernel_type: Any) -> Iterator[Callable[[str], tuple[str, list[str]]]]:
    """Runs cells in a notebook of a third user, on the control host."""
    with pytest.MonkeyPatch.context() as patch, joined.control.network(), browser(joined) as web:
        patch.setenv("SSL_CERT_FILE", str(joined.authority))
        owner = person_type("acme-owner", web)
        assert owner.sign_in(logins(joined)["acme-owner"]).status_code == httpx.codes.OK
        owner.spawn("dev.4gb")
        owner.open_lab()
        body = {"type": "notebook", "content": NOTEBOOK}
        headers = {"X-XSRFToken": owner.xsrf("/user/acme-owner/")}
        web.put("/user/acme-owner/api/contents/try.ipynb", json=body, headers=headers).raise_for_status()
        made = kernel_type(owner, "try.ipynb")
        yield lambda source: last_line(*made.execute(source))
        made.disconnect()


def last_line(printed: str, errors: list[str]) -> tuple[str, list[str]]:
    """Before it, a cell that waits says for what."""
    return "".join(printed.splitlines()[-1:]), errors


def ids(host: NetworkHost) -> set[int]:
    """The uids of the workers there."""
    found = set()
    for entry in host.path("/proc").iterdir():
        if entry.name.isdigit() and b"forebay_worker" in (entry / "cmdline").read_bytes().split(b"\0"):
            found.add((entry).stat().st_uid)
    return found


def test_hosts_join_serve_a_notebook_are_drained_leave_and_come_back(joined: Cluster, kernel: Any) -> None:
    assert joined.states() == {"gpu-1": "up", "gpu-2": "up"}
    assert kernel(PRODUCT) == ("14.0", []), joined.logs()
    (busy,) = joined.busy()
    host = joined.hosts[busy]
    account = next(line.split(":") for line in host.path("/etc/passwd").read_text().splitlines() if line.startswith("forebay-node:"))
    assert ids(host) == {int(account[2])}
    assert "files are as they should be" in joined.type(host, "forebay node join")
    kernel("y = x + 1")
    said = joined.type(host, "forebay node drain --timeout 60")
    assert f"{busy} gets no new lease, and has none" in said
    assert kernel("print(y.sum().item())") == ("10.0", []), "its tensors came along"
    assert joined.busy() == joined.hosts.keys() - {"control", busy}
    joined.type(host, "forebay node leave --timeout 60")
    joined.until(lambda: joined.states()[busy] == "lost")
    assert joined.run(host, "forebay node status").returncode == 1
    joined.type(host, "forebay node join")
    assert joined.states()[busy] == "up"

"""The pages on upgrades and on adding hosts, played between a control host and one that joined it: to today's release, and back."""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(CHECKOUT / "tests" / "packages"), str(CHECKOUT / "deploy" / "packages")]

import namespaces  # noqa: E402 - lies in a folder that was just added
from release_host import PAGES, ReleaseHost, lay, lines  # noqa: E402 - as above

CONTROL, GPU_1 = "10.93.0.1", "10.93.0.2"
ANSWERS = f'name = "{CONTROL}"\ndevices = "cpu"\n'
NOTEBOOK = {"cells": [], "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3"}}, "nbformat": 4, "nbformat_minor": 5}
PRODUCT = "import torch\nx = torch.arange(4., device='cuda')\nprint((x @ x).item())"
NOTICE_SECONDS_MAX = 180
WAIT_SECONDS = 5
"""After which a cell that gets no device is seen to wait."""
pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.full_sweep,
    pytest.mark.timeout(2400),
    *namespaces.NEEDED,
]


class Cluster:
    """A control host that has no devices of its own, and a host that has joined it."""

    def __init__(self, folder: Path, prefix: list[str]) -> None:
        self.switch = namespaces.Switch()
        releases = lay(folder)
        self.control, self.gpu = (
            ReleaseHost(releases, namespaces.NetworkHost(name, address, folder / name, prefix), CONTROL)
            for name, address in (("control", CONTROL), ("gpu-1", GPU_1))
        )
        for host in (self.control, self.gpu):
            self.switch.plug(host.host)
        self.token = ""

    def set_up(self) -> None:
        self.control.host.path(f"{self.control.before}/answers.toml").write_text(ANSWERS)
        self.control.install([*lines("install.md", "Install"), *lines("install.md", "Set up")])
        self.control.wait()

    def sign_in(self, person: Any) -> None:
        passwords = json.loads(self.control.host.path("/var/lib/forebay/hub/logins.json").read_text())
        assert person.sign_in(passwords[person.name]).status_code == httpx.codes.OK

    def allow(self) -> None:
        """The operator's token is in the variables of both hosts, as the pages say."""
        for host in (self.control, self.gpu):
            host.variables["FOREBAY_TOKEN"] = self.token
        self.control.variables |= {"FOREBAY_URL": f"https://{CONTROL}/services/pool/", "SSL_CERT_FILE": "/etc/forebay/tls/ca.crt"}

    def join(self) -> None:
        """As the page on adding hosts says, of the release before."""
        settings = self.control.host.path("/etc/forebay/pool.toml")
        section = (PAGES / "add-a-host.md").read_text().partition("\n## On the control host\n")[2].partition("\n## ")[0]
        wanted = "".join(re.findall(r"^```toml\n(.*?)^```", section, re.MULTILINE | re.DOTALL)).replace("gpu.example.org", CONTROL)
        for line in lines("add-a-host.md", "On the control host"):
            if line == "systemctl restart forebay-pool":
                settings.write_text(wanted + settings.read_text())
            self.control.type(f"{line} --cpu" if " invite " in line else line, self.control.before)
        self.control.wait()
        invitation = self.control.host.path(f"{self.control.before}/gpu-1.toml")
        self.gpu.host.path(f"{self.gpu.before}/gpu-1.toml").write_bytes(invitation.read_bytes())
        typed = lines("add-a-host.md", "On the new host")
        join = next(line for line in typed if line.endswith("node join gpu-1.toml"))
        self.gpu.install(typed[: typed.index(join)])
        self.gpu.type(join, self.gpu.before)

    def lead(self, release: Path) -> None:
        """What the page has typed on the control host after it was brought to another release."""
        for line in lines("upgrade.md", "Hosts that joined: the control host"):
            self.control.type(line, release)
        self.control.wait()

    def get(self, path: str) -> Any:
        """What the pool answers the operator."""
        with self.control.host.network(), self.control.browser() as web:
            return web.get(f"/services/pool/api/{path}", headers={"Authorization": f"token {self.token}"}).raise_for_status().json()

    def node(self) -> dict[str, Any]:
        (row,) = self.get("nodes")
        return dict(row)

    def until(self, good: Callable[[dict[str, Any]], bool]) -> None:
        deadline = time.monotonic() + NOTICE_SECONDS_MAX
        while True:
            try:
                if good(self.node()):
                    return
            except (httpx.HTTPError, ValueError):
                pass
            assert time.monotonic() < deadline, f"{self.control.log()}\n--- gpu-1\n{self.gpu.log()}"
            time.sleep(0.5)

    def stop(self) -> None:
        for host in (self.control, self.gpu):
            host.host.turn_off()
        self.switch.stop()


@pytest.fixture(scope="module")
def cluster(passable: Any, person_type: Any) -> Iterator[Cluster]:
    made = Cluster(passable.folder, passable.prefix)
    try:
        made.set_up()
        with made.control.host.network(), made.control.browser() as web:
            operator = person_type("operator", web)
            made.sign_in(operator)
            made.token = operator.new_token()
        made.allow()
        made.join()
        yield made
    finally:
        made.stop()


@pytest.fixture
def compute(cluster: Cluster, person_type: Any, kernel_type: Any) -> Callable[..., None]:
    """Computes in a notebook on the control host, on the device of the other one; tells before when a cell begins."""

    def go(begins: Callable[[], None] = lambda: None) -> None:
        with pytest.MonkeyPatch.context() as patch, cluster.control.host.network(), cluster.control.browser() as web:
            patch.setenv("SSL_CERT_FILE", str(cluster.control.authority))
            owner = person_type("acme-owner", web)
            cluster.sign_in(owner)
            owner.spawn("dev.4gb")
            owner.open_lab()
            headers = {"X-XSRFToken": owner.xsrf("/user/acme-owner/")}
            body = {"type": "notebook", "content": NOTEBOOK}
            web.put("/user/acme-owner/api/contents/try.ipynb", json=body, headers=headers).raise_for_status()
            kernel = kernel_type(owner, "try.ipynb")
            begins()
            assert kernel.run(PRODUCT).splitlines()[-1] == "14.0"
            kernel.close()
            owner.stop_server()

    return go


def test_a_control_host_and_then_a_host_that_joined_are_brought_to_this_release_and_back(
    cluster: Cluster, compute: Callable[..., None]
) -> None:
    control, gpu = cluster.control, cluster.gpu
    compute()
    drain, upgrade, first = lines("upgrade.md", "Hosts that joined: each host")
    key = gpu.host.path("/etc/forebay/tls/node.key").read_bytes()
    gpu.lay_others("/opt/forebay", gpu.today)
    assert gpu.type(f"{first} --check", gpu.today).endswith("once the pool has 0.1.0. Nothing was changed.\n")
    early = gpu.run(first, gpu.today).stderr
    assert "has 0.0.9, and /run/today is 0.1.0: bring the control host to that first" in early, early
    assert "gpu-1 gets no new lease, and has none" in gpu.type(drain, gpu.before)

    for environment in ("/opt/forebay", "/opt/forebay/notebook"):
        control.lay_others(environment, control.today)
    control.type(lines("upgrade.md", "Upgrade")[1], control.today)
    cluster.lead(control.today)
    cluster.until(lambda row: [cause["code"] for cause in row["causes"]] == ["other_release"])
    assert cluster.node()["state"] == "lost"
    said = control.type("/opt/forebay/bin/forebay admin nodes list", control.today)
    assert re.search(r"gpu-1 .*another release of Forebay than the pool's 0\.1\.0 is installed there", said), said

    begun = threading.Event()
    with ThreadPoolExecutor(1) as apart:
        cell = apart.submit(compute, begun.set)
        assert begun.wait(NOTICE_SECONDS_MAX)
        time.sleep(WAIT_SECONDS)
        assert not cell.done() and not cluster.get("leases"), "nothing is lent there"
        said = gpu.type(first, gpu.today)
        assert "gpu-1 is on the device map: up" in said and said.endswith("goes back to 0.0.9.\n"), said
        cell.result()
    cluster.until(lambda row: row["state"] == "up" and not row["causes"])
    compute()
    again = gpu.run(upgrade, gpu.today)
    assert again.returncode == 1 and "This host has 0.1.0" in again.stderr
    assert gpu.host.path("/etc/forebay/tls/node.key").read_bytes() == key, "it is who it was"

    (back,) = lines("upgrade.md", "Hosts that joined: back")
    refused = gpu.run(back, gpu.today)
    assert refused.returncode == 1 and "has 0.1.0: `forebay admin rollback` on the control host comes first" in refused.stderr
    (control_back,) = lines("upgrade.md", "Back")
    control.type(f"{control_back} --lose-records", control.today)
    cluster.lead(control.before)
    said = gpu.type(back, gpu.today)
    assert "gpu-1 is on the device map: up" in said and said.endswith("This host has 0.0.9 again.\n"), said
    cluster.until(lambda row: row["state"] == "up")
    compute()

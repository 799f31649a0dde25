"""The page on adding hosts, played between a control host and two others, each a set of namespaces.

The page's commands are typed where its headings say. What installs is not: this checkout's environment stands for it on all hosts.
Then the network of a host is cut, and another one loses its power.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(CHECKOUT / "tests" / "packages")]

from installing import OUTSIDE  # noqa: E402 - lies in a folder that was just added
from namespaces import NEEDED, POSTGRES, NetworkHost, Switch  # noqa: E402 - as above

PAGE = CHECKOUT / "docs" / "operators" / "add-a-host.md"
CONTROL, GPU_1, GPU_2 = "10.93.0.1", "10.93.0.2", "10.93.0.3"
ANSWERS = f'name = "{CONTROL}"\ndevices = "cpu"\ndatabase = "postgresql+psycopg://forebay@127.0.0.1"\n'
INIT = ("forebay admin init --answers /run/answers.toml", "systemd-sysusers", "systemctl enable --now forebay.target")
NOTEBOOK = {"cells": [], "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3"}}, "nbformat": 4, "nbformat_minor": 5}
PRODUCT = "import torch\nx = torch.arange(4., device='cuda')\nprint((x @ x).item())"
KEY_AS_WORKER = "setpriv --reuid {uid} --regid forebay-worker --clear-groups cat /run/credentials/forebay-node.service/node.key"
WORKER_UIDS = (1879048192, 1879113727)
BUSY = """
import time
x = torch.eye(256, device='cuda')
until = time.monotonic() + 150
while time.monotonic() < until:
    x = x @ x
    torch.cuda.synchronize()
"""
LOSS_SECONDS_MAX = 45
"""Until a cell whose host is gone ends, the device map says so, and what runs next runs elsewhere; the page says half a minute."""
NOTICE_SECONDS_MAX = 120
pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.full_sweep,
    pytest.mark.timeout(900),
    *NEEDED,
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
        if host is self.control:
            token |= {"FOREBAY_URL": f"https://{CONTROL}/services/pool/", "SSL_CERT_FILE": "/etc/forebay/tls/ca.crt"}
        return host.run(here, self.variables | token)

    def logs(self) -> str:
        """The ends of what the units say."""
        files = {name: host.path("/var/lib/units.log") for name, host in self.hosts.items() if host.process.poll() is None}
        return "\n".join(f"--- {name}\n{file.read_text(errors='replace')[-3000:]}" for name, file in files.items() if file.exists())

    def get(self, path: str, service: str = "pool") -> Any:
        """What a service answers the operator, over TLS at its public address."""
        return self.ask("GET", f"{service}/{path}")

    def ask(self, method: str, path: str, body: object = None) -> Any:
        headers = {"Authorization": f"token {self.token}"}
        with self.control.network(), httpx.Client(verify=self.trust, trust_env=False, timeout=30) as web:
            return web.request(method, f"https://{CONTROL}/services/{path}", json=body, headers=headers).raise_for_status().json()

    @contextlib.contextmanager
    def only(self, node: str) -> Iterator[None]:
        """What asks for a device meanwhile gets one there."""
        others = [row["device"] for row in self.get("api/devices") if row["node"] != node]
        for device in others:
            self.ask("PUT", f"pool/api/devices/{quote(device, safe='')}", {"cordoned": True})
        yield
        for device in others:
            self.ask("PUT", f"pool/api/devices/{quote(device, safe='')}", {"cordoned": False})

    def leases(self, node: str) -> list[Any]:
        return [row for row in self.get("api/leases") if row["node"] == node]

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
def cluster(passable: Any, postgres_binaries: Path) -> Iterator[Cluster]:
    """All of it, before the page is played; the control host is one host as a service, with PostgreSQL beside it."""
    made = Cluster(passable.folder, passable.prefix)
    try:
        made.type(made.control, POSTGRES.replace("{bin}", str(postgres_binaries)))
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


Run = Callable[[str], tuple[str, list[str]]]
"""Runs a cell: the last line that it printed, and its errors."""


@pytest.fixture(scope="module")
def notebook(joined: Cluster, person_type: Any, kernel_type: Any) -> Iterator[Callable[[str], Run]]:
    """Opens notebooks of a third user, on the control host."""
    with pytest.MonkeyPatch.context() as patch, joined.control.network(), browser(joined) as web, contextlib.ExitStack() as open_ones:
        patch.setenv("SSL_CERT_FILE", str(joined.authority))
        owner = person_type("acme-owner", web)
        assert owner.sign_in(logins(joined)["acme-owner"]).status_code == httpx.codes.OK
        owner.spawn("dev.4gb")
        owner.open_lab()

        def go(name: str) -> Run:
            body = {"type": "notebook", "content": NOTEBOOK}
            headers = {"X-XSRFToken": owner.xsrf("/user/acme-owner/")}
            web.put(f"/user/acme-owner/api/contents/{name}.ipynb", json=body, headers=headers).raise_for_status()
            made = kernel_type(owner, f"{name}.ipynb")
            open_ones.callback(made.disconnect)
            return lambda source: last_line(*made.execute(source))

        yield go


def last_line(printed: str, errors: list[str]) -> tuple[str, list[str]]:
    """Before it, a cell that waits says for what."""
    return "".join(printed.splitlines()[-1:]), errors


def workers(host: NetworkHost) -> dict[tuple[str, str], int]:
    """The uid of each worker process there, by its id and the clock tick in which it began."""
    found = {}
    for entry in host.path("/proc").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if entry.name.isdigit() and b"forebay_worker" in (entry / "cmdline").read_bytes().split(b"\0"):
                began = (entry / "stat").read_text().rpartition(")")[2].split()[19]
                status = (entry / "status").read_text()  # whose folder it is says nothing: the process is closed
                found[entry.name, began] = int(re.findall(r"^Uid:\t(\d+)", status, re.MULTILINE)[0])
    return found


def account(host: NetworkHost, name: str) -> int:
    """Its uid there."""
    return next(int(line.split(":")[2]) for line in host.path("/etc/passwd").read_text().splitlines() if line.startswith(f"{name}:"))


def test_hosts_join_serve_a_notebook_are_drained_leave_and_come_back(joined: Cluster, notebook: Callable[[str], Run]) -> None:
    kernel = notebook("try")
    assert joined.states() == {"gpu-1": "up", "gpu-2": "up"}
    assert kernel(PRODUCT) == ("14.0", []), joined.logs()
    (busy,) = joined.busy()
    host = joined.hosts[busy]
    uids = list(workers(host).values())
    assert len(set(uids)) == len(uids) and min(uids) >= WORKER_UIDS[0] and max(uids) <= WORKER_UIDS[1], "each has one of its own"
    assert "Permission denied" in joined.run(host, KEY_AS_WORKER.replace("{uid}", str(uids[0]))).stderr
    assert joined.run(host, KEY_AS_WORKER.replace("{uid}", str(account(host, "forebay-node")))).returncode == 0
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


@dataclass
class Cell:
    """Runs in a thread of its own, since it ends when its host is found lost."""

    run: Run
    began: float = field(default_factory=time.monotonic)
    errors: list[str] = field(default_factory=list)
    ended: float = 0.0

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        _, self.errors = self.run(BUSY)
        self.ended = time.monotonic()


def lose_network(cluster: Cluster, host: NetworkHost) -> None:
    cluster.switch.cut(host)


def find_network(cluster: Cluster, host: NetworkHost) -> None:
    """With what ran there when it was cut, as far as it still does."""
    cluster.switch.mend(host)


def lose_power(cluster: Cluster, host: NetworkHost) -> None:
    cluster.switch.unplug(host)
    host.turn_off()


def find_power(cluster: Cluster, host: NetworkHost) -> None:
    host.turn_on()
    cluster.switch.plug(host)
    cluster.type(host, "systemctl default")


@pytest.mark.parametrize(("lose", "find"), [(lose_network, find_network), (lose_power, find_power)])
def test_a_host_is_lost_others_go_on_and_it_is_lent_again_when_it_is_back(
    lose: Callable[[Cluster, NetworkHost], None],
    find: Callable[[Cluster, NetworkHost], None],
    joined: Cluster,
    notebook: Callable[[str], Run],
) -> None:
    host = joined.hosts["gpu-1"]
    with joined.only("gpu-1"):
        there = notebook(f"{lose.__name__}-there")
        assert there("import os; os.environ['FOREBAY_JOURNAL_BYTES'] = '0'") == ("", []), "so that it ends with its worker"
        assert there(PRODUCT) == ("14.0", [])
    with joined.only("gpu-2"):
        elsewhere = notebook(f"{lose.__name__}-elsewhere")
        assert elsewhere(PRODUCT) == ("14.0", [])
    cell = Cell(there)
    joined.until(lambda: bool(joined.leases("gpu-1")))
    time.sleep(6)  # so that a heartbeat has confirmed some of it
    (lease,) = joined.leases("gpu-1")
    before = workers(host)
    lose(joined, host)
    lost_at, lost_at_ns = time.monotonic(), time.time_ns()

    def goes_on() -> bool:
        assert elsewhere("x = x + 1; print(x.numel())") == ("4", [])
        return True

    took = {"lease": joined.until(lambda: goes_on() and not joined.leases("gpu-1"), LOSS_SECONDS_MAX)}
    joined.until(lambda: goes_on() and bool(cell.ended), LOSS_SECONDS_MAX)
    took["cell"] = cell.ended - lost_at
    (name, (error,)) = there("print((x @ x).sum().item())")
    assert not name and "this tensor is lost:" in error
    assert there(PRODUCT) == ("14.0", []), "in a new session, on the host that is left"
    took["again"] = time.monotonic() - lost_at
    joined.until(lambda: goes_on() and joined.states() == {"gpu-1": "lost", "gpu-2": "up"}, LOSS_SECONDS_MAX)
    took["map"] = time.monotonic() - lost_at
    assert re.search(r"gpu-1 .*lost", joined.type(joined.control, "forebay admin nodes list"))
    assert len(cell.errors) == 1 and "that held this session's tensors is gone" in cell.errors[0], cell.errors
    assert max(took.values()) < LOSS_SECONDS_MAX, took
    usage = joined.get("api/usage?tenant=acme&limit=500", "billing")["records"]
    records = [row for row in usage if row["lease"] == lease["lease"]]
    assert all(row["started_at_ns"] + row["duration_ns"] <= lost_at_ns for row in records) and records, records
    assert {row["close_reason"] for row in records} == {"failed"} and sum(row["cost_nano"] for row in records) == 0
    assert joined.get("api/check", "billing")["differences"] == []

    find(joined, host)
    took["back"] = joined.until(lambda: goes_on() and joined.states() == {"gpu-1": "up", "gpu-2": "up"})
    print(f"{lose.__name__}: " + ", ".join(f"{what} {seconds:.0f} s" for what, seconds in took.items()))
    joined.until(lambda: not before.keys() & workers(host).keys(), LOSS_SECONDS_MAX)
    with joined.only("gpu-1"):
        assert notebook(f"{lose.__name__}-back")(PRODUCT) == ("14.0", [])
        assert joined.busy() == {"gpu-1", "gpu-2"}

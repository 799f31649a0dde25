"""Whatever ``make up`` started is started again when it is killed, and both is told; nothing stays a zombie.

A cell trains through all of it: it goes on, its session stays, and it computes what it computes undisturbed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import psutil
import pytest

pytestmark = [pytest.mark.acceptance, pytest.mark.slow]

BACK_SECONDS = 90
"""JupyterHub itself looks after a service's keeper twice a minute."""
HEALTH = ("hub/health", "services/pool/health", "services/billing/health", "services/dashboards/health")


class Watched:
    """An installation whose terminal is read on."""

    def __init__(self, cloud: Any) -> None:
        self.cloud = cloud
        self.said = ""
        Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.cloud.process.stdout:
            self.said += line

    def find(self, part: str) -> psutil.Process:
        """The outermost living process with ``part`` in its command line."""
        root = psutil.Process(self.cloud.process.pid)
        found = [one for one in root.children(recursive=True) if one.status() != psutil.STATUS_ZOMBIE and part in " ".join(one.cmdline())]
        return found[0]

    def wait_until_well(self) -> None:
        deadline = time.monotonic() + BACK_SECONDS
        while not all(self._answers(path) for path in HEALTH):
            assert time.monotonic() < deadline, f"it did not come back:\n{self.said}\n{self.cloud.log[-3000:]}"
            time.sleep(0.2)

    def _answers(self, path: str) -> bool:
        try:
            return httpx.get(f"{self.cloud.url}/{path}", timeout=2).status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False


TRAIN = """
import pathlib, time, torch
from torch import nn

def train(out, steps=None, until=None):
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.25), nn.Linear(32, 4)).to("cuda")
    steady = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with open(out, "w", buffering=1) as lines:
        step = 0
        while step != steps and not (until and pathlib.Path(until).exists()):
            x = torch.randn(24, 16, device="cuda")
            loss = nn.functional.cross_entropy(model(x), x[:, :4].argmax(1))
            steady.zero_grad()
            loss.backward()
            steady.step()
            print(loss.item().hex(), file=lines)
            step += 1
            if until:
                time.sleep(0.05)
        print("done", file=lines)

print(pathlib.Path.cwd())
"""


class Training:
    """A cell of a notebook that trains until it is told to stop; what it has computed so far lies in a file."""

    def __init__(self, cloud: Any, kernel_type: type[Any]) -> None:
        self._cloud = cloud
        self._operator = cloud.person("operator").new_token()
        person = cloud.person("acme-member")
        person.spawn("dev.4gb")
        person.open_lab()
        self._kernel = kernel_type(person, "digits.ipynb")
        self._home = Path(self._kernel.run(TRAIN).strip())
        self._kernel.start("train('disturbed', until='enough')")
        self.wait_for(5)
        self.sessions = self.sessions_now()

    def losses(self, name: str = "disturbed") -> list[str]:
        file = self._home / name
        return file.read_text().split() if file.exists() else []

    def wait_for(self, steps: int) -> None:
        """Until so many more are done."""
        wanted, deadline = len(self.losses()) + steps, time.monotonic() + BACK_SECONDS
        while len(self.losses()) < wanted:
            assert time.monotonic() < deadline, f"the cell stands still after {len(self.losses())} steps\n{self._cloud.log[-3000:]}"
            time.sleep(0.05)

    def sessions_now(self) -> list[tuple[str, str]]:
        """Each session with a lease that it holds."""
        rows = self._cloud.service("pool/api/leases", self._operator).raise_for_status().json()
        return [(row["session"], row["lease"]) for row in rows]

    def end(self) -> tuple[list[str], list[str]]:
        """What was computed, and the same undisturbed."""
        self._kernel.reconnect()
        assert self._kernel.state == "busy", "the cell runs still"
        (self._home / "enough").touch()
        deadline = time.monotonic() + BACK_SECONDS
        while self.losses()[-1] != "done":
            assert time.monotonic() < deadline and self._kernel.state == "busy", self.losses()[-1]
            time.sleep(0.05)
        self._kernel.run(f"train('undisturbed', steps={len(self.losses()) - 1})")
        return self.losses(), self.losses("undisturbed")


@pytest.fixture(scope="module")
def training(watched: Watched, kernel_type: type[Any]) -> Training:
    return Training(watched.cloud, kernel_type)


@pytest.fixture(scope="module")
def watched(passable: Any, starter: Callable[..., Any]) -> Iterator[Watched]:
    watched = Watched(starter(passable.folder / "state", passable.prefix))
    yield watched
    assert watched.cloud.stop() == 0
    assert "has not stopped within" not in watched.said, "the second hub stops the servers that the first one started"


@pytest.mark.parametrize(
    ("part", "inner", "told"),
    [
        ("traefik --configfile", False, "the proxy was killed by SIGKILL"),
        ("forebay_service.processes.supervisor the service pool", True, "the service pool was killed by SIGKILL"),
        *(
            pytest.param(
                f"forebay_service.processes.supervisor the service {name}",
                True,
                f"the service {name} was killed by SIGKILL",
                marks=pytest.mark.full_sweep,
            )
            for name in ("billing", "dashboards")
        ),
        pytest.param("forebay_service.processes.supervisor the service billing", False, None, marks=pytest.mark.full_sweep),
        ("jupyterhub --config", False, "JupyterHub ended by itself (exit code -9); it is started again"),
    ],
)
def test_a_process_that_is_killed_is_back_soon_and_people_are_told(
    watched: Watched, training: Training, part: str, inner: bool, told: str | None
) -> None:
    watched.wait_until_well()
    outer = watched.find(part)
    victim = outer.children()[0] if inner else outer
    victim.kill()
    psutil.wait_procs([victim], timeout=10)
    time.sleep(0.5)
    watched.wait_until_well()
    again = watched.find(part)
    assert (again.children()[0] if inner else again).pid != victim.pid
    training.wait_for(5)
    assert training.sessions_now() == training.sessions, "the cell's session and its lease are the same"
    root = psutil.Process(watched.cloud.process.pid)
    time.sleep(1)
    zombies = [one for one in root.children(recursive=True) if one.status() == psutil.STATUS_ZOMBIE]
    assert not zombies
    assert told is None or told in watched.said, watched.said


def test_what_a_cell_computes_through_all_of_this_is_what_it_computes_undisturbed(watched: Watched, training: Training) -> None:
    watched.wait_until_well()
    disturbed, undisturbed = training.end()
    assert disturbed == undisturbed and len(set(disturbed)) > 100

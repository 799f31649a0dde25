"""Whatever ``make up`` started is started again when it is killed, and both is told; nothing stays a zombie."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
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


@pytest.fixture(scope="module")
def watched(passable: Any, starter: Callable[..., Any]) -> Iterator[Watched]:
    watched = Watched(starter(passable.folder / "state", passable.prefix))
    yield watched
    assert watched.cloud.stop() == 0


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
        ("forebay_service.processes.supervisor the service billing", False, None),
        ("jupyterhub --config", False, "JupyterHub ended by itself (exit code -9); it is started again"),
    ],
)
def test_a_process_that_is_killed_is_back_soon_and_people_are_told(watched: Watched, part: str, inner: bool, told: str | None) -> None:
    watched.wait_until_well()
    outer = watched.find(part)
    victim = outer.children()[0] if inner else outer
    victim.kill()
    psutil.wait_procs([victim], timeout=10)
    time.sleep(0.5)
    watched.wait_until_well()
    again = watched.find(part)
    assert (again.children()[0] if inner else again).pid != victim.pid
    root = psutil.Process(watched.cloud.process.pid)
    time.sleep(1)
    zombies = [one for one in root.children(recursive=True) if one.status() == psutil.STATUS_ZOMBIE]
    assert not zombies
    assert told is None or told in watched.said, watched.said

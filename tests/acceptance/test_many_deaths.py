"""Six notebooks train while processes of the installation are killed, or stand still, at moments of chance: none of them notices.

``--deaths N``: so many, of which a sixth stand still. Each loss is what the same notebook computes undisturbed, bit for bit. No session
ends, and the bill is what the pool's books say, to the nano-unit.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

import httpx
import pytest
from forebay_billing.model.types import PARKED
from forebay_billing.rules.parked import gib_hours_text
from processes import command_line, family, suspend

pytestmark = [pytest.mark.acceptance, pytest.mark.slow, pytest.mark.full_sweep, pytest.mark.timeout(4 * 3600)]

SOURCE = Path(__file__).with_name("trainings.py").read_text()
PROGRAMS = ("perceptron", "convolutions", "language_model", "reinforcement", "loader", "large_upload")
PERSON, TENANT = "acme-member", "acme"
FLAVOR = "dev.1gb"
STEP_SECONDS_MAX = 180
STILL_SECONDS = (0.5, 20.0)
ALL_LOOKED_AT = 10
"""After so many deaths each notebook is waited for, after the others one of them."""
NANO = 10**9
IMAGES_NANO = 10 * NANO
"""What a GiB of images costs in an hour, in nano-units."""
VICTIMS = {
    "worker": (8, "forebay_worker"),
    "pool": (2, "-m forebay_pool"),
    "billing": (1, "-m forebay_billing"),
    "dashboards": (1, "-m forebay_dashboards"),
    "hub": (1, "jupyterhub --config"),
    "proxy": (1, "traefik --configfile"),
}
"""By name: how often it is chosen, and what its command line has."""


class Notebook:
    """One that trains, and what it has computed so far."""

    def __init__(self, person: Any, kernel_type: type[Any], program: str) -> None:
        self.program = program
        self.kernel = kernel_type(person, f"{program}/{program}.ipynb")
        self._home = Path(self.kernel.run(SOURCE + "\nprint(pathlib.Path.cwd())").split()[-1])
        self.kernel.start(f"train({program!r}, 'disturbed')")
        self.kernel.disconnect()

    def losses(self, name: str = "disturbed") -> list[str]:
        file = self._home / name
        error = self._home / f"{name}.error"
        assert not error.exists(), f"{self.program} failed: {error.read_text()}"
        return file.read_text().split() if file.exists() else []

    def wait_for(self, steps: int, log: Callable[[], str]) -> None:
        wanted, deadline = len(self.losses()) + steps, time.monotonic() + STEP_SECONDS_MAX
        while len(self.losses()) < wanted:
            assert time.monotonic() < deadline, f"{self.program} stands still after {len(self.losses())} steps\n{log()}"
            time.sleep(0.05)

    def end(self) -> None:
        (self._home / "disturbed.enough").touch()
        deadline = time.monotonic() + STEP_SECONDS_MAX
        while self.losses()[-1] != "done":
            assert time.monotonic() < deadline, f"{self.program} does not end"
            time.sleep(0.05)

    def again(self) -> list[str]:
        """What it computes undisturbed, in as many steps."""
        self.kernel.reconnect()
        self.kernel.run(f"train({self.program!r}, 'undisturbed', steps={len(self.losses()) - 1})")
        return self.losses("undisturbed")


class Chance:
    """Kills a process, or has it stand still for a while."""

    def __init__(self, root: int, seed: int) -> None:
        self._root = root
        self._random = random.Random(seed)
        self.counts: dict[str, int] = {}

    def strike(self, stands_still: bool) -> str:
        names = list(VICTIMS)
        name = self._random.choices(names, [VICTIMS[each][0] for each in names])[0]
        found = [one for one in family(self._root) if VICTIMS[name][1] in command_line(one) and "supervisor" not in command_line(one)]
        if not found:
            return f"no {name} was there"
        victim = self._random.choice(found)
        seconds = self._random.uniform(*STILL_SECONDS) if stands_still else 0.0
        try:
            if stands_still:
                suspend(victim.pid)
                time.sleep(seconds)
                os.kill(victim.pid, signal.SIGCONT)
            else:
                os.kill(victim.pid, signal.SIGKILL)
        except (ProcessLookupError, FileNotFoundError):
            return f"the {name} was gone already"
        what = f"{name} {'stood still' if stands_still else 'killed'}"
        self.counts[what] = self.counts.get(what, 0) + 1
        return f"{what} {seconds:.1f} s"

    def one_of(self, notebooks: list[Notebook]) -> Notebook:
        return self._random.choice(notebooks)

    def pause(self) -> None:
        time.sleep(self._random.uniform(0.1, 2.0))


@pytest.fixture
def notebooks(cloud: Any, kernel_type: type[Any]) -> Iterator[list[Notebook]]:
    operator = {"Authorization": f"token {cloud.person('operator').new_token()}"}
    price = {"price_nano_per_gib_hour": IMAGES_NANO}
    httpx.put(f"{cloud.url}/services/billing/api/parked-prices/USD", json=price, headers=operator).raise_for_status()
    person = cloud.person(PERSON)
    person.spawn(FLAVOR)
    person.open_lab()
    root = f"/user/{PERSON}/"
    headers = {"X-XSRFToken": person.xsrf(root)}
    content = person.web.get(f"{root}api/contents/digits.ipynb").raise_for_status().json()["content"]
    notebook = {"type": "notebook", "content": content}
    for program in PROGRAMS:
        person.web.put(f"{root}api/contents/{program}", json={"type": "directory"}, headers=headers).raise_for_status()
        person.web.put(f"{root}api/contents/{program}/{program}.ipynb", json=notebook, headers=headers).raise_for_status()
    opened = [Notebook(person, kernel_type, program) for program in PROGRAMS]
    yield opened
    for each in opened:
        each.kernel.close()


def test_no_notebook_notices_what_dies(cloud: Any, notebooks: list[Notebook], pytestconfig: pytest.Config, eventually: Any) -> None:
    deaths: int = pytestconfig.getoption("--deaths")
    operator = cloud.person("operator").new_token()
    headers = {"Authorization": f"token {operator}"}

    def sessions() -> set[str]:
        rows = cloud.service("pool/api/sessions", operator).raise_for_status().json()
        return {row["session"] for row in rows if row["tenant"] == TENANT}

    for each in notebooks:
        each.wait_for(3, lambda: cloud.log[-3000:])
    before, chance = sessions(), Chance(cloud.process.pid, seed=deaths)
    for number in range(deaths):
        told = chance.strike(stands_still=number % 6 == 5)
        print(number, told, [len(each.losses()) for each in notebooks], flush=True)
        chance.pause()
        for each in notebooks if number % ALL_LOOKED_AT == 0 else [chance.one_of(notebooks)]:
            each.wait_for(1, lambda: cloud.log[-3000:])
    for each in notebooks:
        each.wait_for(1, lambda: cloud.log[-3000:])
        each.end()
    print(chance.counts)
    assert eventually(lambda: sessions() == before)
    for each in notebooks:
        losses = each.losses()
        assert each.again() == losses and len(set(losses)) > deaths, each.program
    assert eventually(lambda: cloud.service("pool/api/leases", operator).json() == [])
    for session in before:
        httpx.delete(f"{cloud.url}/services/pool/api/sessions/{session}", headers=headers).raise_for_status()
    token = cloud.person("acme-owner").new_token()
    prices = {price["flavor"]: price["price_nano_per_hour"] for price in cloud.service("billing/api/prices", token).json()}
    assert eventually(lambda: billed(cloud, token) == booked(cloud, prices))
    images, stretches = images_billed(cloud, token), images_booked(cloud)
    print(f"images: {images}")
    assert images == stretches


def booked(cloud: Any, prices: dict[str, int]) -> tuple[int, int]:
    """Of the pool's own books: how many segments of leases there are, and what they cost in 1e-18 units of the currency."""
    with sqlite3.connect(f"file:{cloud.state}/pool/pool.sqlite?mode=ro", uri=True) as books:
        asked = "select duration_ns from lease_segments where tenant = ? and flavor = ?"
        rows = books.execute(asked, (TENANT, FLAVOR)).fetchall()
    books.close()
    return len(rows), round(Fraction(sum(duration for (duration,) in rows) * prices[FLAVOR], 3600))


def billed(cloud: Any, token: str) -> tuple[int, int]:
    """Of billing's statement, the same."""
    month = datetime.now(UTC).strftime("%Y-%m")
    statement = cloud.service("billing/api/statement", token, tenant=TENANT, month=month).raise_for_status().json()
    (line,) = [line for line in statement["lines"] if line["flavor"] == FLAVOR]
    whole, _, fraction = line["cost_exact"].partition(".")
    return line["leases"], int(whole) * NANO**2 + int(fraction.ljust(18, "0"))


def images_booked(cloud: Any) -> tuple[int, int, str]:
    """Of the pool's own books: for how many stretches there were images, the nanoseconds of all, and their GiB-hours."""
    with sqlite3.connect(f"file:{cloud.state}/pool/pool.sqlite?mode=ro", uri=True) as books:
        asked = "select lease, duration_ns, parked_bytes from lease_segments where tenant = ? and parked_bytes is not null"
        rows = books.execute(asked, (TENANT,)).fetchall()
    books.close()
    gib_hours = gib_hours_text(sum(duration * count for _, duration, count in rows))
    return len({lease for lease, _, _ in rows}), sum(duration for _, duration, _ in rows), gib_hours


def images_billed(cloud: Any, token: str) -> tuple[int, int, str]:
    """Of billing's statement, the same; the memory of these sessions was never parked."""
    month = datetime.now(UTC).strftime("%Y-%m")
    statement = cloud.service("billing/api/statement", token, tenant=TENANT, month=month).raise_for_status().json()
    (line,) = [line for line in statement["lines"] if line["flavor"] == PARKED]
    assert line["amount"] != "0.00" and line["price_nano_per_gib_hour"] == IMAGES_NANO
    return line["leases"], line["duration_ns"], line["gib_hours"]

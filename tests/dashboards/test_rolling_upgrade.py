"""A rolling upgrade while somebody computes: billing, pages and pool are replaced one after another, and those that are not yet, or not any
more, of the next release read what it answers. That a loop trains on is shown by ``tests/pool/test_pool_releases.py``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from dashboards_installation import PYTHONPATH, Hub, Installation, Process, eventually, install, running

HERE = Path(__file__).parent
PAGES = ("usage", "tenant", "tenant/bills", "tenant/budgets")
CONSOLE = ("operator", "operator/devices", "operator/queue", "operator/leases", "operator/nodes", "operator/flavors", "operator/usage")


@pytest.fixture(scope="module")
def cloud(hub: Hub, worker_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """One of its own, whose pool speaks to billing often."""
    made = install(hub, worker_python, tmp_path_factory.mktemp("cloud"))
    made.pool.environment |= {"FOREBAY_POOL_BILLING_HEARTBEAT_SECONDS": "0.5", "FOREBAY_POOL_PRICE_POLL_SECONDS": "0.5"}
    with running(made, "billing", "pool", "dashboards"):
        yield made


@contextmanager
def upgraded(process: Process) -> Iterator[None]:
    """The next release of a service runs in its place, told to stop as an upgrade does it; afterwards this one runs again."""
    more = {"NEXT_RELEASE_OF": process.module, "PYTHONPATH": os.pathsep.join([PYTHONPATH, str(HERE)])}
    newer = replace(process, module="next_answers", environment={**process.environment, **more}, process=None)
    with process.stopped():
        newer.start()
        try:
            answer = httpx.get(process.health_url.replace("health", "api/openapi.json"), timeout=60).json()
            assert answer["also"] == 1, "it is the next release"
            yield
        finally:
            assert newer.stop() == 0


def settled(cloud: Installation) -> bool:
    """Whether the pool's words reach billing, and the pool's events the pages."""
    troubles = httpx.get(cloud.pool.health_url).json()["troubles"]
    return troubles == {} and httpx.get(cloud.dashboards.health_url).json()["live"]


def assert_pages_are_whole(cloud: Installation) -> None:
    for who, paths in (("acme-owner", PAGES), ("operator", CONSOLE)):
        for path in paths:
            page = cloud.get(who, path)
            assert page.status_code == 200 and "another version" not in page.text and "does not answer" not in page.text, path


def leases(cloud: Installation) -> list[str]:
    return [row["lease"] for row in cloud.ask("pool", "operator", "GET", "api/leases")]


def usage_of(cloud: Installation, notebook: str) -> list[dict[str, object]]:
    found = cloud.ask("billing", "operator", "GET", "api/usage", params={"tenant": "acme"})["records"]
    return [row for row in found if row["span"]["label"] == notebook]


def test_a_lease_goes_on_while_billing_and_the_pages_are_replaced_and_is_billed_once(cloud: Installation) -> None:
    with cloud.session("acme-member") as session:
        granted = session.acquire("rolled.ipynb")
        held = leases(cloud)
        with upgraded(cloud.billing):
            eventually(lambda: settled(cloud))
            assert_pages_are_whole(cloud)
            with cloud.dashboards.stopped():
                assert leases(cloud) == held
            eventually(lambda: settled(cloud))
            assert_pages_are_whole(cloud)
            assert leases(cloud) == held and len(held) == 1
        eventually(lambda: settled(cloud))
        assert leases(cloud) == held, "back again, as a rollback does it"
        assert session.release(granted.epoch).reason == "released"
    eventually(lambda: usage_of(cloud, "rolled.ipynb"))
    assert len(usage_of(cloud, "rolled.ipynb")) == 1


def test_the_pages_of_this_release_show_a_pool_of_the_next_one_and_its_leases_are_billed(cloud: Installation) -> None:
    with upgraded(cloud.pool):
        eventually(lambda: settled(cloud))
        with cloud.session("acme-member") as session:
            granted = session.acquire("next.ipynb")
            assert_pages_are_whole(cloud)
            assert session.release(granted.epoch).reason == "released"
        eventually(lambda: usage_of(cloud, "next.ipynb"))
    eventually(lambda: settled(cloud))
    assert_pages_are_whole(cloud)

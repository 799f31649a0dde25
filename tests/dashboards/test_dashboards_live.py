"""News reach the right browsers in time, and the pages live through outages."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, IncompleteRead
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from dashboards_installation import Hub, Installation, eventually, install, running
from processes import suspend

VISIBLE_SECONDS_MAX = 1.0
"""DESIGN: usage is visible less than a second after it happened."""


class Browser:
    """An open event stream, read in a thread."""

    def __init__(self, cloud: Installation, who: str, view: str) -> None:
        self.topics: list[tuple[float, str]] = []
        url = urlsplit(cloud.urls["dashboards"])
        self._connection = HTTPConnection(url.netloc, timeout=60)
        self._connection.request("GET", f"{url.path}events?view={view}", headers={"Authorization": f"token {cloud.hub.tokens[who]}"})
        self._socket = self._connection.sock
        self._response = self._connection.getresponse()
        assert self._response.status == 200, self._response.read()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        eventually(lambda: self.heard("begin"))

    def _read(self) -> None:
        with contextlib.suppress(IncompleteRead):
            while line := self._response.readline().decode():
                if line.startswith("event: "):
                    self.topics.append((time.monotonic(), line.removeprefix("event: ").rstrip()))

    def heard(self, topic: str) -> list[float]:
        return [when for when, name in self.topics if name == topic]

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._response.close()
        self._connection.close()


@contextmanager
def listening(cloud: Installation, who: str, view: str) -> Iterator[Browser]:
    browser = Browser(cloud, who, view)
    try:
        yield browser
    finally:
        browser.close()


def figure(cloud: Installation, name: str) -> float:
    found = re.search(rf"^{re.escape(name)} (\S+)$", cloud.get(None, "metrics").text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def test_a_record_is_on_the_page_less_than_a_second_after_its_lease_closed(cloud: Installation) -> None:
    waits = []
    with cloud.session("acme-member") as session, listening(cloud, "acme-member", "usage") as browser:

        def told_and_shown(before: int, cell: int) -> bool:
            told = len(browser.heard("usage")) > before  # perhaps of an earlier test's record
            return told and f"cell {cell}" in cloud.get("acme-member", "usage/records", headers={"HX-Request": "true"}).text

        for cell in range(900, 905):
            granted = session.acquire("latency.ipynb", cell)
            before = len(browser.heard("usage"))
            session.release(granted.epoch)
            closed = time.monotonic()
            eventually(lambda before=before, cell=cell: told_and_shown(before, cell))
            waits.append(time.monotonic() - closed)
    assert statistics.median(waits) < VISIBLE_SECONDS_MAX, waits
    assert figure(cloud, "forebay_dashboards_records_late_total") == 0


def test_an_opened_lease_is_told_to_its_user_tenant_and_operator_and_to_nobody_else(cloud: Installation) -> None:
    with (
        listening(cloud, "acme-member", "usage") as mine,
        listening(cloud, "acme-owner", "tenant") as tenant,
        listening(cloud, "operator", "operator") as operator,
        listening(cloud, "acme-owner", "usage") as colleague,
        listening(cloud, "globex-owner", "tenant") as stranger,
        cloud.session("acme-member") as session,
    ):
        granted = session.acquire()
        for browser in (mine, tenant, operator):
            eventually(lambda browser=browser: browser.heard("leases"))
        eventually(lambda: operator.heard("devices"))
        session.release(granted.epoch)
        eventually(lambda: mine.heard("usage"))
    for browser in (colleague, stranger):
        assert {name for _, name in browser.topics} <= {"begin", "feed"}
    assert "devices" not in {name for _, name in mine.topics + tenant.topics}


def test_a_change_of_price_is_told_to_other_operators_at_once(cloud: Installation) -> None:
    price = next(row for row in cloud.ask("billing", "operator", "GET", "api/prices") if row["flavor"] == "6xlarge.3072gb")
    flavor = next(row for row in cloud.ask("pool", "operator", "GET", "api/flavors") if row["name"] == "6xlarge.3072gb")
    equivalents = ", ".join(f"{one['count']} {one['model']}" for one in flavor["equivalents"])
    with listening(cloud, "operator", "operator") as browser:
        form = {
            "memory": "3144960 MiB", "equivalents": equivalents, "price": "90", "currency": "USD", "stamp": price["etag"].strip('"'),
        }  # fmt: skip
        assert "is saved" in cloud.post("operator", "operator/flavors/6xlarge.3072gb/edit", form).text
        eventually(lambda: browser.heard("prices"))


def test_a_stream_of_a_page_that_is_not_yours_is_refused(cloud: Installation) -> None:
    assert cloud.get("acme-member", "events?view=operator").status_code == 403
    assert cloud.get("acme-member", "events?view=tenant").status_code == 403
    assert cloud.get("acme-member", "events?view=everything").status_code == 400


def test_a_browser_that_left_is_forgotten(cloud: Installation) -> None:
    name = 'forebay_dashboards_browsers{view="tenant"}'
    eventually(lambda: figure(cloud, name) == 0)
    with listening(cloud, "acme-owner", "tenant"):
        assert figure(cloud, name) == 1
    eventually(lambda: figure(cloud, name) == 0)


@pytest.fixture(scope="module")
def own_cloud(hub: Hub, worker_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """An installation that tests may break, and put right again."""
    installation = install(hub, worker_python, tmp_path_factory.mktemp("own-cloud"))
    installation.billing.forked = False  # it is stopped for a while
    with running(installation, "billing", "pool", "dashboards"):
        eventually(lambda: httpx.get(installation.dashboards.health_url).json()["live"])
        yield installation


def test_pages_say_that_the_pool_or_billing_is_down_and_recover_by_themselves(own_cloud: Installation) -> None:
    with listening(own_cloud, "operator", "operator") as browser:
        with own_cloud.pool.stopped():
            eventually(lambda: browser.heard("feed"))
            live = own_cloud.get("operator", "operator")
            assert live.status_code == 200
            assert "Live values are paused." in live.text
            assert "The pool" in live.text
            flavors = own_cloud.get("operator", "operator/flavors")
            assert flavors.status_code == 200
            assert (
                "Memory and equivalents cannot be shown right now. The pool service cannot answer right now: it cannot be reached."
                in flavors.text
            )
            assert "0.03 USD/h" in flavors.text
            refused = own_cloud.get("operator", "operator/flavors/dev.1gb/edit")
            assert refused.status_code == 503
            assert "127.0.0.1" not in live.text + flavors.text + refused.text
        eventually(lambda: "Live values are paused" not in own_cloud.get("operator", "operator").text)
    with own_cloud.billing.stopped():
        page = own_cloud.get("acme-member", "usage")
        assert page.status_code == 200
        assert "Your totals cannot be shown right now." in page.text
        assert "Your records cannot be shown right now." in page.text
        statement = own_cloud.get("operator", "statement", params={"tenant": "acme", "month": "2026-11"})
        assert statement.status_code == 503
        assert "No statement right now" in statement.text
    eventually(lambda: "Your totals cannot be shown" not in own_cloud.get("acme-member", "usage").text)


def test_a_record_that_billing_takes_late_is_told_when_it_is_there(own_cloud: Installation) -> None:
    with own_cloud.session("acme-member") as session, listening(own_cloud, "acme-member", "usage") as browser:
        granted = session.acquire("late.ipynb", 1)
        eventually(lambda: browser.heard("leases"))
        with own_cloud.billing.stopped():
            before = len(browser.heard("leases"))
            session.release(granted.epoch)
            eventually(lambda: len(browser.heard("leases")) > before)
            assert browser.heard("usage") == []
        eventually(lambda: browser.heard("usage"), seconds=20)
        assert "late.ipynb" in own_cloud.get("acme-member", "usage").text


def test_while_the_hub_cannot_be_asked_nobody_is_let_in_and_the_page_says_why(own_cloud: Installation, hub: Hub) -> None:
    hub.broken = True
    try:
        answer = own_cloud.get("newcomer", "usage")
    finally:
        hub.broken = False
    assert answer.status_code == 503
    assert "JupyterHub cannot be asked who you are right now" in answer.text
    assert own_cloud.get("newcomer", "usage").status_code == 200


def test_a_billing_service_that_hangs_does_not_hang_the_page(own_cloud: Installation) -> None:
    assert own_cloud.billing.process is not None
    suspend(own_cloud.billing.process.pid)
    try:
        answer = own_cloud.get("acme-member", "usage")
    finally:
        own_cloud.billing.process.send_signal(signal.SIGCONT)
    assert answer.status_code == 200
    assert "The billing service cannot answer right now: it took too long." in answer.text


def test_the_service_stops_cleanly_while_browsers_listen(own_cloud: Installation) -> None:
    with listening(own_cloud, "acme-member", "usage"), listening(own_cloud, "operator", "operator"):
        assert own_cloud.dashboards.stop() == 0
    log = own_cloud.dashboards.log.read_text()
    own_cloud.dashboards.start()
    assert "action=service_stopped" in log
    assert "Traceback" not in log

"""Two services of pages behind one address: a person's browser is answered by the one and the other in turn, and notices nothing."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from dashboards_installation import Installation, Process, eventually, free_port
from forebay_dashboards.http.sign_in import NEXT_CHARS_MAX, SignIn
from tornado.web import create_signed_value

NAVIGATE = {"Sec-Fetch-Mode": "navigate"}
FETCH = {"Sec-Fetch-Mode": "cors", "Sec-Fetch-Site": "same-origin", "HX-Request": "true"}


class InTurn(httpx.BaseTransport):
    """Sends every request for the pages to the next service, whatever became of the one before; others go where they say."""

    def __init__(self, public: int, ports: list[int]) -> None:
        self._public, self._ports = public, itertools.cycle(ports)
        self._wire = httpx.HTTPTransport()
        self.taken: list[int] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.port == self._public:
            self.taken.append(next(self._ports))
            request.url = request.url.copy_with(port=self.taken[-1])
        return self._wire.handle_request(request)

    def close(self) -> None:
        self._wire.close()


@pytest.fixture(scope="module")
def second(cloud: Installation) -> Iterator[Process]:
    """Another service of pages, which is told what the first one is."""
    first, port = cloud.dashboards, free_port()
    environment = {**first.environment, "JUPYTERHUB_SERVICE_URL": f"http://127.0.0.1:{port}"}
    health = str(httpx.URL(first.health_url).copy_with(port=port))
    process = replace(first, environment=environment, health_url=health, log=first.log.with_name("dashboards-2.log"), process=None)
    process.start()
    eventually(lambda: httpx.get(health).json()["live"])
    yield process
    assert process.stop() == 0


def port_of(process: Process) -> int:
    port = httpx.URL(process.health_url).port
    assert port is not None
    return port


@pytest.fixture
def in_turn(cloud: Installation, second: Process) -> Iterator[InTurn]:
    first = port_of(cloud.dashboards)
    transport = InTurn(first, [first, port_of(second)])
    yield transport
    transport.close()


@pytest.fixture
def browser(cloud: Installation, in_turn: InTurn) -> Iterator[httpx.Client]:
    cloud.hub.sign_in_as = "acme-owner"
    with httpx.Client(
        base_url=cloud.urls["dashboards"], follow_redirects=True, headers=NAVIGATE, timeout=20, transport=in_turn
    ) as client:
        yield client


def test_who_begins_to_sign_in_at_one_service_may_end_it_at_another_and_comes_where_they_wanted(
    browser: httpx.Client, in_turn: InTurn
) -> None:
    page = browser.get("usage?cursor=1.1")
    assert page.status_code == 200 and page.url.path.endswith("/usage") and page.url.query == b"cursor=1.1"
    assert len(set(in_turn.taken[:2])) == 2, "one sent the browser to the hub, and the other took it back"
    assert [browser.get("usage").history for _ in range(4)] == [[]] * 4, "both know who is signed in"


def test_a_form_of_one_service_is_taken_by_the_other_and_both_show_what_changed(
    browser: httpx.Client, cloud: Installation, in_turn: InTurn
) -> None:
    cloud.hub.sign_in_as = "operator"
    page = browser.get("operator/flavors/small.64gb/edit")
    fields = dict(re.findall(r'<input[^>]* name="(\w+)" value="([^"]*)"', page.text))
    form = {**fields, "price": "37", "currency": "USD", "stamp": "1"}
    shown, before = in_turn.taken[-1], len(in_turn.taken)
    answer = browser.post("operator/flavors/small.64gb/edit", data=form)
    assert answer.status_code == 200 and in_turn.taken[before] != shown
    (price, *_) = cloud.ask("billing", "operator", "GET", "api/prices", params={"flavor": "small.64gb"})
    assert price["price_nano_per_hour"] == 37 * 10**9
    for _ in range(2):
        assert "37" in browser.get("operator/flavors/small.64gb/row", headers=FETCH | {"X-XSRFToken": xsrf_of(page.text)}).text


def xsrf_of(page: str) -> str:
    found = re.search(r'"X-XSRFToken": "([^"]+)"', page)
    assert found is not None
    return found[1]


def test_events_that_are_opened_at_another_service_than_the_page_tell_of_what_runs(
    browser: httpx.Client, cloud: Installation, in_turn: InTurn
) -> None:
    page = browser.get("usage").text
    shown = in_turn.taken[-1]
    address = re.search(r'data-events="/services/dashboards/([^"]+)"', page)
    assert address is not None
    headers = {"Sec-Fetch-Mode": "cors", "Sec-Fetch-Site": "same-origin"}
    with browser.stream("GET", address[1].replace("&amp;", "&"), headers=headers) as answer:
        assert answer.status_code == 200 and in_turn.taken[-1] != shown
        lines = answer.iter_lines()
        with cloud.session("acme-owner") as session:
            session.release(session.acquire("in-turn.ipynb", 1).epoch)
            assert any(line.startswith("event:") for line in lines)


def test_a_restart_signs_nobody_out(browser: httpx.Client, cloud: Installation) -> None:
    assert browser.get("usage").status_code == 200
    with cloud.dashboards.stopped():
        pass
    eventually(lambda: httpx.get(cloud.dashboards.health_url).json()["live"])
    assert [browser.get("usage").history for _ in range(2)] == [[]] * 2


def test_a_state_that_is_made_up_changed_old_or_too_long_leads_nowhere() -> None:
    ours = SignIn(api_token="a" * 32, base_url="/services/dashboards/", api_url="http://127.0.0.1:1/hub/api", oauth_client_id="x")
    theirs = SignIn(api_token="b" * 32, base_url="/services/dashboards/", api_url="http://127.0.0.1:1/hub/api", oauth_client_id="x")
    verifier, _, method = ours.generate_pkce_code_challenge()
    state = ours.generate_state("/services/dashboards/tenant", code_verifier=verifier, cookie_name="c")
    assert method == "S256" and len(verifier) >= 43 and verifier not in state
    told = (ours.get_next_url(state), ours.get_code_verifier(state), ours.get_state_cookie_name(state))
    assert told == ("/services/dashboards/tenant", verifier, "c")
    nowhere = ("/services/dashboards/", None, ours.state_cookie_name)
    changed = state[:40] + ("A" if state[40] != "A" else "B") + state[41:]
    for wrong in ("", "made-up", "é", "=" * 9, changed, state[:-2], theirs.generate_state("https://example.org/", code_verifier=verifier)):
        assert (ours.get_next_url(wrong), ours.get_code_verifier(wrong), ours.get_state_cookie_name(wrong)) == nowhere, wrong
    ours.oauth_state_max_age = -1
    assert ours.get_next_url(state) == "/services/dashboards/", "it is too old"
    ours.oauth_state_max_age = 600
    long = ours.generate_state("/services/dashboards/usage?" + "q" * NEXT_CHARS_MAX, code_verifier=verifier)
    assert ours.get_next_url(long) == "/services/dashboards/" and ours.get_code_verifier(long) == verifier
    cookie = create_signed_value("s" * 32, ours.state_cookie_name, ours.generate_state("/" * NEXT_CHARS_MAX, code_verifier=verifier))
    assert len(cookie) < 2048, "eight of them fit into the headers that proxies take"


def test_the_hub_is_told_a_challenge_and_never_what_it_is_made_of(cloud: Installation) -> None:
    """Whoever reads the addresses on the way, with the code in them, cannot take the code's place."""
    with httpx.Client(base_url=cloud.urls["dashboards"], headers=NAVIGATE, timeout=20) as client:
        sent = parse_qs(urlsplit(client.get("usage").headers["Location"]).query)
    assert sent["code_challenge_method"] == ["S256"] and len(sent["code_challenge"][0]) == 43
    assert "code_verifier" not in sent

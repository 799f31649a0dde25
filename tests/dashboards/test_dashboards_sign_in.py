"""Browsers sign in through the hub, carry a cookie, and prove with a token that a request comes from our own page."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest
from dashboards_installation import Installation, eventually
from forebay_dashboards.http.handler import SIGN_INS_BEGUN_MAX

FETCH = {"Sec-Fetch-Mode": "cors", "Sec-Fetch-Site": "same-origin", "HX-Request": "true"}
NAVIGATE = {"Sec-Fetch-Mode": "navigate"}


@pytest.fixture
def browser(cloud: Installation) -> Iterator[httpx.Client]:
    """A browser whose person is signed in at the hub as acme-member."""
    cloud.hub.sign_in_as = "acme-member"
    with httpx.Client(base_url=cloud.urls["dashboards"], follow_redirects=True, headers=NAVIGATE, timeout=20) as client:
        yield client


def xsrf_of(page: str) -> str:
    found = re.search(r'"X-XSRFToken": "([^"]+)"', page)
    assert found is not None
    return found[1]


def test_a_visitor_is_sent_to_the_hub_and_comes_back_signed_in_where_they_wanted_to_be(browser: httpx.Client) -> None:
    page = browser.get("usage?cursor=1.1")
    assert page.url.path.endswith("/usage")
    assert page.url.query == b"cursor=1.1"
    assert [answer.status_code for answer in page.history] == [302, 302, 302]
    assert '<span class="name" title="Tenant acme">acme-member</span>' in page.text


def test_who_chose_no_language_is_written_to_in_that_of_the_browser_that_signs_in(cloud: Installation) -> None:
    def told() -> object:
        return cloud.ask("billing", "newcomer", "GET", "api/notices/preferences")["language"]

    cloud.hub.sign_in_as = "newcomer"
    for accepted, chosen in (("ko-KR,en;q=0.5", "ko"), ("en", "ko")):
        headers = {**NAVIGATE, "Accept-Language": accepted}
        with httpx.Client(base_url=cloud.urls["dashboards"], follow_redirects=True, headers=headers, timeout=20) as client:
            client.get("usage").raise_for_status()
        eventually(lambda: told() is not None)
        assert told() == chosen, "what is known stays"


def test_the_cookies_are_out_of_reach_of_scripts_and_of_other_services(browser: httpx.Client) -> None:
    answers = browser.get("usage").history
    cookies = [header for answer in answers for header in answer.headers.get_list("set-cookie")]
    token = [cookie for cookie in cookies if cookie.startswith("service-dashboards=") and "Max-Age=0" not in cookie]
    assert token
    assert all("HttpOnly" in cookie and "Path=/services/dashboards/" in cookie for cookie in token)


def test_fragments_need_the_token_of_the_page(browser: httpx.Client) -> None:
    xsrf = xsrf_of(browser.get("usage").text)
    assert browser.get("usage/records", headers=FETCH).status_code == 403
    assert browser.get("usage/records", headers={**FETCH, "X-XSRFToken": "made-up"}).status_code == 403
    assert browser.get("usage/records", headers={**FETCH, "X-XSRFToken": xsrf}).status_code == 200


def test_event_streams_need_the_token_of_the_page(browser: httpx.Client) -> None:
    address = re.search(r'data-events="/services/dashboards/([^"]+)"', browser.get("usage").text)
    assert address is not None
    headers = {"Sec-Fetch-Mode": "cors", "Sec-Fetch-Site": "same-origin"}
    with browser.stream("GET", "events?view=usage", headers=headers) as answer:
        assert answer.status_code == 403
    with browser.stream("GET", address[1].replace("&amp;", "&"), headers=headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["Content-Type"].startswith("text/event-stream")


def test_another_site_cannot_make_an_operators_browser_change_a_price(browser: httpx.Client, cloud: Installation) -> None:
    cloud.hub.sign_in_as = "operator"
    page = browser.get("operator/flavors/4xlarge.2048gb/edit").text
    fields = dict(re.findall(r'<input[^>]* name="(\w+)" value="([^"]*)"', page))
    form = {**fields, "price": "36", "currency": "USD", "stamp": "1"}
    foreign = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Site": "cross-site"}
    stolen = browser.post("operator/flavors/4xlarge.2048gb/edit", data={**form, "_xsrf": ""}, headers=foreign, follow_redirects=False)
    assert stolen.status_code == 403
    before = cloud.ask("billing", "operator", "GET", "api/prices", params={"flavor": "4xlarge.2048gb"})
    assert before[0]["version"] == 1
    assert browser.post("operator/flavors/4xlarge.2048gb/edit", data=form, headers=NAVIGATE).status_code == 200
    after = cloud.ask("billing", "operator", "GET", "api/prices", params={"flavor": "4xlarge.2048gb"})
    assert after[0]["price_nano_per_hour"] == 36_000_000_000


def test_a_fragment_without_a_sign_in_is_refused_and_not_redirected(cloud: Installation) -> None:
    answer = httpx.get(cloud.urls["dashboards"] + "usage/records", headers=FETCH)
    assert answer.status_code == 403
    assert "<html" not in answer.text
    assert "Reload the page" in answer.text


def test_a_stale_return_from_the_hub_is_refused_with_a_page(cloud: Installation) -> None:
    answer = httpx.get(cloud.urls["dashboards"] + "oauth_callback?code=x&state=made-up")
    assert answer.status_code == 403
    assert "<h1>" in answer.text


def test_help_needs_no_sign_in_and_is_linked_on_every_page(cloud: Installation, browser: httpx.Client) -> None:
    page = httpx.get(cloud.urls["dashboards"] + "help", headers={"Accept-Language": "ko"})
    assert page.status_code == 200 and "장치에서 실행하는 첫 셀" in page.text
    assert 'href="/services/dashboards/help"' in browser.get("usage").text


def test_a_browser_that_never_signs_in_collects_few_cookies_and_is_answered_for_ever(cloud: Installation) -> None:
    """Each page would leave one otherwise, until no proxy takes the request."""
    with httpx.Client(base_url=cloud.urls["dashboards"], headers=NAVIGATE, timeout=20) as client:
        for _ in range(60):
            assert client.get("usage").status_code == 302
            assert len(client.cookies) <= SIGN_INS_BEGUN_MAX + 1
        cloud.hub.sign_in_as = "acme-member"
        client.follow_redirects = True
        assert client.get("usage").status_code == 200, "and signs in then"


def test_tabs_that_sign_in_at_the_same_time_do_not_forget_each_other(cloud: Installation) -> None:
    cloud.hub.sign_in_as = "acme-member"
    with httpx.Client(base_url=cloud.urls["dashboards"], headers=NAVIGATE, timeout=20) as client:
        tabs = [client.get("usage") for _ in range(SIGN_INS_BEGUN_MAX)]
        assert len([name for name in client.cookies if "oauth-state" in name]) == SIGN_INS_BEGUN_MAX
        client.follow_redirects = True
        for tab in (tabs[0], tabs[-1]):
            assert client.get(tab.headers["Location"]).url.path.endswith("/usage")

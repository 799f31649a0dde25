"""Every page in the reader's language: none of our texts is left in English, in pages, fragments, dialogs and refusals."""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from dashboards_installation import PEOPLE, Hub, Installation, eventually, groups, install, running
from forebay_service.languages import came_from
from leftover_text import leftovers, named
from test_dashboards_access import ACTIONS, CHANGES, PAGES

NS = 10**9
READERS = {"usage": "acme-member", "tenant": "acme-owner", "operator": "operator"}
DATA_FILES = ("usage.csv",)
KEYS = frozenset(
    "name tenant user session lease label process flavor device node model vendor switch number changed_by changed_by who subject "
    "notebook target month close_reason device_model kind".split()
)
"""Under which services send names."""
KINDS = {"session", "device", "node", "cell", "process", "flavor"}
"""Names of fields, and words of ours: only where fields are shown they are data."""
ANSWERS = (
    ("pool", "flavors"), ("pool", "devices"), ("pool", "nodes"), ("pool", "sessions"), ("pool", "leases"), ("pool", "quotas"),
    ("pool", "models"), ("billing", "prices"), ("billing", "usage?limit=200"), ("billing", "invoices"), ("billing", "credits"),
    ("billing", "budgets"), ("billing", "plans?history=1"), ("billing", "surcharges?history=1"),
)  # fmt: skip


def last_month() -> tuple[int, int]:
    now = time.gmtime()
    return (now.tm_year, now.tm_mon - 1) if now.tm_mon > 1 else (now.tm_year - 1, 12)


def fill(cloud: Installation) -> None:
    """Something of everything that pages show."""
    year, month = last_month()
    cloud.record_usage()
    cloud.record_usage(span={"id": "p", "kind": "process", "label": "train.py", "cell": None}, close_reason="revoked")
    cloud.record_usage(user="acme-owner", flavor="@parked", parked_bytes=3 * 2**30, duration_ns=1800 * NS)
    cloud.record_usage(started_at_ns=calendar.timegm((year, month, 2, 0, 0, 0)) * NS)
    billing = (
        ("PUT", "budgets", {"tenant": "acme", "limit_nano": 10**12, "on_limit": "drain"}),
        ("PUT", "budgets", {"tenant": "acme", "user": "acme-member", "limit_nano": 1, "on_limit": "refuse"}),
        ("PUT", "budgets", {"tenant": "acme", "user": "acme-member", "notebook": "digits.ipynb", "limit_nano": 10**12}),
        ("POST", "credits", {"tenant": "acme", "kind": "promotional", "name": "Welcome gift", "amount_minor": 1234}),
        ("POST", "invoices", {"tenant": "acme", "month": f"{year}-{month:02}"}),
        ("PUT", "surcharges/null", {"currency": "USD", "surcharge_nano_per_hour": 360_000_000}),
        ("PUT", "plans/acme", {"currency": "USD", "valid_from": "2031-05", "discount_bps": 1250, "free_seconds": {"dev.1gb": 360_000},
                               "tiers": [{"from_nano": 10**12, "discount_bps": 500}]}),
    )  # fmt: skip
    for method, path, body in billing:
        cloud.ask("billing", "operator", method, f"api/{path}", json=body)
    cloud.ask("pool", "operator", "PUT", "api/quotas/acme", json={"devices_milli": 4000, "device_seconds": 9000, "window_seconds": 60})
    cloud.ask("pool", "operator", "PUT", "api/quotas/globex/globex-owner", json={"weight": 2})
    cloud.post("acme-owner", "tenant/reports", {"target": "money@acme.example"})
    assert cloud.post("operator", "operator/devices/main%2Fnull:1/close", {"cause": "검사"}).status_code == 200


@pytest.fixture(scope="module")
def full_cloud(hub: Hub, worker_python: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """An installation in which each page has something to show, with an open lease and sessions that wait."""
    installation = install(hub, worker_python, tmp_path_factory.mktemp("full"))
    with running(installation, "billing", "pool", "dashboards"):
        eventually(lambda: httpx.get(installation.dashboards.health_url).json()["live"])
        fill(installation)
        with installation.session("acme-owner") as one, installation.session("globex-owner") as other, installation.session("acme-owner"):
            epoch = one.acquire("one.ipynb", 1).epoch
            other.ask("two.ipynb", 2)
            eventually(lambda: "two.ipynb" in installation.get("operator", "operator/queue").text)
            yield installation
            one.release(epoch)


@pytest.fixture(scope="module")
def data(full_cloud: Installation) -> set[str]:
    """What is called as its owners call it."""
    found = {*PEOPLE, *(group.removeprefix("tenant-") for group in groups())}
    found |= {"acme", "globex", "initech", "money@acme.example", "ipykernel", "acme-owner's"}
    for service, path in ANSWERS:
        found |= set(named(full_cloud.ask(service, "operator", "GET", f"api/{path}"), KEYS))
    for service in ("pool", "billing"):
        entries = set(named(full_cloud.ask(service, "operator", "GET", "api/audit?limit=200"), None))
        found |= entries | {name.removesuffix("_ns") for name in entries}
    headers = {"Authorization": f"token {full_cloud.hub.tokens['operator']}"}
    refused = httpx.get(full_cloud.urls["billing"] + "api/payments/reconciliation?since_ns=0&until_ns=1", headers=headers)
    found |= {refused.json()["error"]["message"], "False", "True", "None"}
    return found - KINDS


def read(cloud: Installation, who: str, path: str, language: str = "ko", **options: Any) -> httpx.Response:
    return cloud.get(who, path, headers={"Accept-Language": language, **options.pop("headers", {})}, **options)


def pages() -> list[tuple[str, str]]:
    """Every page and fragment that somebody reads, and who; some that show more with an argument."""
    more = ("operator/payments?compare=1", "operator/leases?q=nobody", "operator/quotas?tenant=acme", "operator/search?q=acme",
            "usage?period=week", "operator/nodes?q=nobody", "operator/usage?period=last-month", "operator/search",
            "operator/audit?who=nobody", "operator?over=month", "operator/timeline?ms=86400000")  # fmt: skip
    paths = dict.fromkeys([*PAGES, *CHANGES, *more, f"tenant?month={last_month()[0]}-{last_month()[1]:02}"])
    return [(READERS[PAGES.get(path) or path.partition("?")[0].partition("/")[0]], path) for path in paths if path not in DATA_FILES]


@pytest.mark.parametrize(("who", "path"), pages())
def test_none_of_our_texts_is_left_in_english(full_cloud: Installation, data: set[str], who: str, path: str) -> None:
    korean, data = read(full_cloud, who, path), data | {"nobody", "a.ipynb", "English"} | (KINDS if "audit" in path else set())
    assert korean.status_code == 200
    assert korean.headers["Content-Language"] == "ko" and korean.headers["Vary"] == "Cookie, Accept-Language"
    assert leftovers(korean.text, data) == []
    english = read(full_cloud, who, path, "en")
    assert leftovers(english.text, data, "en"), "the same page in English is full of what is looked for"
    assert not re.search("[가-힣]", re.sub(r"검사|한국어", "", english.text)), "and has nothing of the other language"


def test_what_is_left_is_found_wherever_it_stands() -> None:
    data = {"acme-member", "null"}
    assert leftovers("<p>비어 있음</p><p>acme-member: 3 GiB null</p><button lang='en'>English</button>", data) == []
    assert leftovers("<p>Nothing <b>here</b></p>", data) == ["Nothing", "here"]
    assert leftovers("<input placeholder='why' aria-label='이유'><td data-label='Cost'>3</td>", data) == ["why", "Cost"]
    assert leftovers("<p>acme-members are free</p>", data) == ["acme-members are free"]


REFUSALS = (
    ("operator", "nowhere", 404), ("acme-member", "operator", 403), ("acme-member", "tenant", 403), ("service", "usage", 403),
    ("stranger", "usage", 403), ("operator", "operator/leases?sort=height", 400), ("operator", "operator/leases?page=0", 400),
    ("operator", "operator/usage?period=decade", 400), ("operator", "operator/usage?period=days&first=x&last=y", 400),
    ("operator", "operator/usage?period=days&first=2026-02-02&last=2026-02-01", 400), ("operator", "operator/audit?cursor=x", 400),
    ("acme-owner", "tenant?month=2026-13", 400), ("acme-owner", "statement?tenant=globex&month=2026-01", 403),
    ("acme-owner", "statement?tenant=acme&month=2026-01&format=doc", 400),
    ("operator", "operator/flavors/none/edit", 404), ("operator", "invoice?tenant=acme&format=doc", 400),
    ("acme-member", "usage/notebook", 400), ("operator", "static/none", 404), *(("operator", path, 404) for path in ACTIONS),
)  # fmt: skip


@pytest.mark.parametrize(("who", "path", "status"), REFUSALS)
@pytest.mark.parametrize("fragment", [False, True])
def test_a_refusal_is_in_the_readers_language_too(
    full_cloud: Installation, data: set[str], who: str, path: str, status: int, fragment: bool
) -> None:
    answer = read(full_cloud, who, path, headers={"HX-Request": "true"} if fragment else {})
    assert answer.status_code == status
    typed = {"nowhere", "height", "decade", "none", "html", "csv", "pdf", "focus", "doc", "since", "what", "opened", "price", "time"}
    assert leftovers(answer.text, data | typed | {"user", "flavor", "device"}) == []
    assert re.search("[가-힣]", answer.text)


LIST = "prices: {dev.4gb: {USD: [{from: 2033-01-01T00:00:00Z, per_hour: 3.6}]}}"
FORMS: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("operator", "operator/flavors/dev.4gb/edit", {"memory": "64 GB", "equivalents": "many", "price": "much", "currency": "USD",
                                                   "stamp": "1"}),
    ("operator", "operator/flavors/dev.4gb/edit", {"memory": "0.3 B", "equivalents": "1 null, 2 null", "stamp": "1",
                                                   "price": "2.9900000006", "currency": "USD"}),
    ("operator", "operator/flavors/dev.4gb/edit", {"memory": "1 GiB", "equivalents": "0 null", "price": "-1", "currency": "dollars",
                                                   "stamp": ""}),
    ("operator", "operator/plans", {"tenant": "acme", "currency": "USD", "discount": "much"}),
    ("operator", "operator/plans", {"tenant": "acme", "currency": "USD", "tiers": "x"}),
    ("operator", "operator/plans", {"tenant": "acme", "currency": "USD", "free_hours": "a=0.0000001", "action": "preview"}),
    ("operator", "operator/plans", {"tenant": "acme", "currency": "USD", "action": "preview"}),
    ("operator", "operator/surcharges", {"model": "null", "currency": "USD", "price": "2.9900000006"}),
    ("operator", "operator/surcharges", {"model": "null", "currency": "USD", "price": "3.6", "start": "soon"}),
    ("operator", "operator/surcharges", {"model": "null", "currency": "USD", "price": "3.6"}),
    ("operator", "operator/price-list", {"list": LIST, "action": "compare"}),
    ("operator", "operator/price-list", {"list": LIST, "action": "preview"}),
    ("operator", "operator/surcharges", {"model": "null", "currency": "XYZ", "price": "3.6"}),
    ("operator", "operator/plans", {"tenant": "acme", "currency": "USD", "valid_from": "soon"}),
    ("operator", "operator/quotas", {"tenant": "acme", "weight": "0"}),
    ("operator", "operator/tenant/acme/terms/plan/edit", {"valid_from": "2031-01", "discount": "101"}),
    ("operator", "operator/tenant/acme/terms/budget/edit", {"limit": "5", "warn": "80, 50", "window": "month", "on_limit": "refuse"}),
    ("operator", "operator/quotas", {"tenant": "", "user": ""}),
    ("operator", "operator/quotas", {"tenant": "acme", "weight": "heavy"}),
    ("operator", "operator/quotas", {"tenant": "acme", "devices": "2.00001"}),
    ("operator", "operator/quotas", {"tenant": "acme", "device_hours": "5"}),
    ("operator", "operator/quotas", {"tenant": "acme", "weight": "3"}),
    ("operator", "operator/tenant/acme/terms/budget/edit", {"limit": "", "warn": "soon", "grace": "long", "notebook": "a.ipynb"}),
    ("operator", "operator/tenant/acme/terms/quota/edit", {"device_hours": "5", "weight": "heavy", "devices": "many"}),
    ("operator", "operator/tenant/acme/terms/plan/edit", {"discount": "much", "tiers": "x"}),
    ("operator", "operator/tenant/acme/terms/currency/edit", {"currency": "dollars"}),
    ("operator", "operator/tenant/acme/terms/tax/edit", {"rate": "19", "label": ""}),
    ("operator", "operator/tenant/acme/terms/credit/edit", {"amount": "", "expires": "2020-01-01", "priority": "first"}),
    ("operator", "operator/tenant/acme/terms/credit/edit", {"amount": "much", "expires": "soon"}),
    ("operator", "operator/payments", {"id": "x", "choice": "burn"}),
    ("operator", "operator/payments", {"id": "1", "choice": "skip"}),
    ("operator", "operator/devices/main%2Fnull:0/close", {"cause": " "}),
    ("operator", "operator/devices/main%2Fnull:1/open", {}),
    ("operator", "operator/nodes/main/drain", {"grace": "soon"}),
    ("acme-owner", "tenant/reports", {"target": ""}),
    ("acme-owner", "tenant/reports", {"remove": "x"}),
)  # fmt: skip


@pytest.mark.parametrize(("who", "path", "form"), FORMS)
def test_what_a_form_answers_is_in_the_readers_language(
    full_cloud: Installation, data: set[str], who: str, path: str, form: dict[str, str]
) -> None:
    headers = {"Authorization": f"token {full_cloud.hub.tokens[who]}", "Accept-Language": "ko", "HX-Request": "true"}
    if "/terms/" in path:
        opened = read(full_cloud, who, path, headers={"HX-Request": "true"}).text
        form = form | {"stamp": re.findall('name="stamp" value="([^"]*)"', opened)[0]}
    answer = httpx.post(full_cloud.urls["dashboards"] + path, data=form, headers=headers, timeout=20)
    typed = {value for value in (*form.values(), form.get("currency", "").upper()) if len(value) > 1} | {"nano"}
    assert re.search("[가-힣]", answer.text)
    assert leftovers(answer.text, data | typed | {"GB", "many", "B"}) == []


def test_questions_are_in_the_readers_language(full_cloud: Installation, data: set[str]) -> None:
    session = next(row["session"] for row in full_cloud.ask("pool", "operator", "GET", "api/sessions") if row["state"] == "active")
    for path in (f"operator/sessions/{session}/end", "operator/devices/main%2Fnull:0/close", "operator/nodes/main/drain"):
        page = read(full_cloud, "operator", path).text
        assert leftovers(page, data) == [] and "할까요?" in page


def test_while_the_pool_is_away_pages_say_so_in_the_readers_language(full_cloud: Installation, data: set[str]) -> None:
    with full_cloud.billing.stopped():
        for path in ("usage", "operator", "operator/audit", "operator/flavors", "operator/plans", "tenant"):
            page = read(full_cloud, READERS[path.partition("/")[0]], path)
            assert page.status_code == 200 and leftovers(page.text, data | {"billing"}) == [], path
            assert "표시할 수 없습니다" in page.text


@pytest.mark.parametrize(
    ("referrer", "address"),
    [
        ("", "/p/usage"),
        ("https://evil.example/", "/p/usage"),
        ("https://evil.example/p/operator?q=1", "/p/operator?q=1"),
        ("https://us.example/p/operator/leases?q=a&page=2#rows", "/p/operator/leases?q=a&page=2"),
        ("https://us.example//evil.example/p/", "/p/usage"),
        ("https://us.example/hub/home", "/p/usage"),
    ],
)
def test_the_switch_leads_back_to_a_page_of_ours_and_nowhere_else(referrer: str, address: str) -> None:
    assert came_from(referrer, "/p/", "/p/usage") == address


@pytest.mark.parametrize(("sent", "secure"), [({}, False), ({"X-Forwarded-Proto": "https", "X-Scheme": "https"}, True)])
def test_the_choice_is_kept_in_a_cookie_like_the_others(full_cloud: Installation, sent: dict[str, str], secure: bool) -> None:
    headers = {"Authorization": f"token {full_cloud.hub.tokens['acme-member']}", **sent}
    answer = httpx.post(full_cloud.urls["dashboards"] + "language", data={"language": "ko"}, headers=headers)
    assert answer.status_code == 303 and answer.headers["Location"].endswith("/usage")
    (cookie,) = [found for found in answer.headers.get_list("Set-Cookie") if found.startswith("forebay_language=")]
    attributes = {part.strip().lower() for part in cookie.split(";")[1:]}
    assert {"path=/", "httponly", "samesite=lax", "max-age=31536000"} <= attributes and ("secure" in attributes) == secure


def test_a_language_that_there_is_not_is_refused(full_cloud: Installation) -> None:
    answer = full_cloud.post("acme-member", "language", {"language": "tlh"})
    assert answer.status_code == 400 and "forebay_language" not in str(answer.headers.get_list("Set-Cookie"))

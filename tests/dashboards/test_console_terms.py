"""In a browser, by keyboard alone: each part of a tenant's terms becomes a form where it stands, is saved or left, and is in the audit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from browsing import mishaps, sign_in
from dashboards_installation import PEOPLE, Hub, Installation, eventually, person
from playwright.sync_api import Browser, Page, Route


@pytest.fixture(params=[1440, 390])
def width(request: pytest.FixtureRequest) -> int:
    """Of the screen: a wide one, and a telephone's."""
    found: int = request.param
    return found


@pytest.fixture
def tenant(width: int) -> str:
    """One for each screen, of which JupyterHub has the group."""
    name = f"keyboards-{width}"
    PEOPLE[f"{name}-owner"] = person(f"{name}-owner", name)
    return name


@pytest.fixture
def page(chrome: Browser, cloud: Installation, hub: Hub, width: int, tenant: str) -> Iterator[Page]:
    """The page of the tenant, as an operator has it open."""
    context = chrome.new_context(viewport={"width": width, "height": 900})
    page = sign_in(context, hub, cloud, "operator", f"operator/tenant/{tenant}")
    page.evaluate("window.notReloaded = true")
    yield page
    assert "audit" in page.url or page.evaluate("window.notReloaded") is True, "nothing here reloads the page"
    assert [mishap for mishap in mishaps(page) if "400 (Bad Request)" not in mishap] == []
    context.close()


def focused(page: Page) -> str:
    found: str = page.evaluate("document.activeElement.id")
    return found


def open_by_key(page: Page, key: str, field: str) -> None:
    """Enter on the button makes the form, and its first field has the focus."""
    page.focus(f"#edit-{key}")
    page.keyboard.press("Enter")
    page.wait_for_selector(f"#term-{key}[data-editing]")
    eventually(lambda: focused(page) == f"{key}-{field}")


def type_over(page: Page, text: str) -> None:
    page.keyboard.press("Control+A")
    page.keyboard.type(text)


def saved(page: Page, key: str) -> str:
    """What stands there after Enter has saved it; the focus is back on the button."""
    page.keyboard.press("Enter")
    page.wait_for_selector(f"#term-{key}:not([data-editing])")
    eventually(lambda: focused(page) == f"edit-{key}")
    eventually(lambda: "saved" in page.inner_text("#saved") or "granted" in page.inner_text("#saved"))
    return page.inner_text(f"#term-{key}")


@pytest.mark.parametrize(
    ("key", "field", "typed", "shown", "service", "audited"),
    [
        ("tax", "label", ("VAT", "7.5"), "VAT 7.5 %", "billing", "tax_bps"),
        ("currency", "currency", ("EUR",), "EUR", "billing", "currency"),
        ("quota", "devices", ("2.5",), "2.5 devices at a time", "pool", "devices_milli"),
        ("plan", "valid_from", (None, "12"), "12 % off the list prices", "billing", "discount_bps"),
    ],
)
def test_a_part_is_edited_by_keyboard_and_the_change_is_in_the_audit(
    page: Page, cloud: Installation, tenant: str, key: str, field: str, typed: tuple[str | None, ...], shown: str, service: str,
    audited: str,
) -> None:
    open_by_key(page, key, field)
    for number, text in enumerate(typed):
        if number:
            page.keyboard.press("Tab")
        if text is not None:
            type_over(page, text)
    assert shown in saved(page, key)
    entry = cloud.ask(service, "operator", "GET", "api/audit", params={"limit": 1, "subject": tenant})["entries"][0]
    assert entry["who"] == "operator" and audited in entry["after"]
    page.click("a[href*='operator/audit?subject=']")
    page.wait_for_selector("tbody tr")
    assert audited in page.inner_text("tbody tr:first-child") and "operator" in page.inner_text("tbody tr:first-child")


def test_a_budget_is_set_changed_and_removed_by_keyboard(page: Page, cloud: Installation, tenant: str) -> None:
    open_by_key(page, "budget", "user")
    page.focus("#budget-limit")
    type_over(page, "250")
    saved(page, "budget")
    (budget,) = cloud.ask("billing", "operator", "GET", "api/budgets", params={"tenant": tenant})
    key = f"budget-{budget['id']}"
    assert "250" in page.inner_text(f"#term-{key}")
    open_by_key(page, key, "limit")
    type_over(page, "300")
    assert "300" in saved(page, key)
    assert "300" in page.inner_text("#terms"), "and when all terms were read again"
    open_by_key(page, key, "limit")
    page.focus(f"#term-{key} button.grave")
    page.keyboard.press("Enter")
    page.wait_for_selector(f"#term-{key}", state="detached")
    eventually(lambda: "removed" in page.inner_text("#saved"))
    eventually(lambda: focused(page) in ("saved", "edit-budget"))
    actions = [entry["action"] for entry in cloud.ask("billing", "operator", "GET", "api/audit", params={"limit": 3})["entries"]]
    assert actions == ["budget.remove", "budget.set", "budget.set"]


@pytest.mark.parametrize("form_first", [True, False], ids=["form, then list", "list, then form"])
def test_terms_that_are_read_anew_while_a_form_opens_leave_the_form_alone(page: Page, form_first: bool) -> None:
    """The list was asked for before, and comes at last when the form is there, or is on its way."""
    held: dict[str, Route] = {}
    of = lambda route: urlsplit(route.request.url).path.rsplit("/", 1)[1]  # noqa: E731 - reads better
    page.route(re.compile(r"/terms(/quota/edit)?(\?|$)"), lambda route: held.__setitem__(of(route), route))
    page.evaluate("document.body.dispatchEvent(new Event('live-tenants'))")
    page.focus("#edit-quota")
    page.keyboard.press("Enter")
    eventually(lambda: page.evaluate("true") and held.keys() == {"terms", "edit"})
    read_anew = "document.body.addEventListener('htmx:afterRequest', event => { window.readAnew ||= event.detail.target.id === 'terms'; })"
    page.evaluate(read_anew)
    if form_first:
        held["edit"].continue_()
        page.wait_for_selector("#term-quota[data-editing]")
    held["terms"].continue_()
    eventually(lambda: page.evaluate("window.readAnew"))
    if not form_first:
        held["edit"].continue_()
    page.wait_for_selector("#term-quota[data-editing]")
    eventually(lambda: focused(page) == "quota-devices")
    type_over(page, "2.5")
    page.unroute_all()
    assert "2.5 devices at a time" in saved(page, "quota")


def test_a_credit_is_granted_by_keyboard_and_stands_below_without_a_reload(page: Page, cloud: Installation, tenant: str) -> None:
    open_by_key(page, "credit", "name")
    page.keyboard.type("Welcome")
    page.keyboard.press("Tab")
    page.keyboard.type("12.50")
    saved(page, "credit")
    eventually(lambda: "Welcome" in page.inner_text("main"))
    entry = cloud.ask("billing", "operator", "GET", "api/audit", params={"limit": 1})["entries"][0]
    assert (entry["action"], entry["after"]["name"]) == ("credit.grant", "Welcome")


def test_cancel_restores_what_was_there_and_a_bad_value_stays_beside_its_sentence(page: Page, cloud: Installation, tenant: str) -> None:
    before = page.inner_text("#term-quota")
    open_by_key(page, "quota", "devices")
    type_over(page, "many")
    page.keyboard.press("Enter")
    page.wait_for_selector("#problem-quota-devices")
    eventually(lambda: focused(page) == "quota-devices")
    assert page.input_value("#quota-devices") == "many"
    assert page.get_attribute("#quota-devices", "aria-describedby") == "problem-quota-devices"
    page.focus("#term-quota [data-cancel]")
    page.keyboard.press("Enter")
    page.wait_for_selector("#term-quota:not([data-editing])")
    eventually(lambda: focused(page) == "edit-quota")
    assert page.inner_text("#term-quota") == before


def test_a_second_form_opens_beside_the_first_and_what_others_save_disturbs_neither(page: Page, cloud: Installation, tenant: str) -> None:
    open_by_key(page, "quota", "devices")
    type_over(page, "9")
    open_by_key(page, "tax", "label")
    type_over(page, "still typing")
    others = f"operator/tenant/{tenant}/terms/plan/edit"
    stamp = re.findall(r'name="stamp" value="([^"]*)"', cloud.get("operator", others).text)[0]
    page.evaluate("document.body.addEventListener('live-tenants', () => { window.told = true })")
    assert cloud.post("operator", others, {"stamp": stamp, "valid_from": "2199-01", "discount": "3"}).status_code == 200
    page.wait_for_function("window.told")
    page.wait_for_timeout(300)
    assert (page.input_value("#quota-devices"), page.input_value("#tax-label"), focused(page)) == ("9", "still typing", "tax-label")


def test_an_operator_says_by_keyboard_where_alerts_of_all_tenants_go(chrome: Browser, cloud: Installation, hub: Hub) -> None:
    context = chrome.new_context()
    page = sign_in(context, hub, cloud, "operator", "operator/alerts")
    for target, taken in (("https://10.0.0.1/hook", False), ("https://alerts.example/hook", True)):
        page.select_option("#kind", "webhook")
        page.focus("#target")
        type_over(page, target)
        page.keyboard.press("Enter")
        page.wait_for_selector(".saved" if taken else "#target[aria-invalid]")
    assert page.input_value("input.told").startswith("whsec_")
    (row,) = cloud.ask("billing", "operator", "GET", "api/alerts/channels")
    assert (row["tenant"], row["target"]) == (None, "https://alerts.example/hook"), "of all tenants, not of one"
    page.focus("button[name=remove]")
    page.keyboard.press("Enter")
    page.wait_for_selector("section[aria-labelledby=channels] .empty")
    assert cloud.ask("billing", "operator", "GET", "api/alerts/channels") == []
    assert [mishap for mishap in mishaps(page) if "400 (Bad Request)" not in mishap] == []
    context.close()

"""In a browser: an owner does all that an owner may, without a command line; who is invited joins by a mail, and says where to be told."""

from __future__ import annotations

import email
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from email import policy
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from browsing import grave_faults
from dashboards_installation import Installation, free_port, install, running
from playwright.sync_api import Browser, BrowserContext, Page
from real_hub import RealHub

PASSWORD = "correct horse battery"


@dataclass
class Post:
    """A mail server that keeps what it is sent."""

    texts: list[str] = field(default_factory=list)

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        mail = email.message_from_bytes(envelope.content, policy=policy.default)
        self.texts.append(mail.get_content())
        return "250 OK"


@pytest.fixture(scope="module")
def post() -> Iterator[tuple[Post, int]]:
    post, port = Post(), free_port()
    server = Controller(post, hostname="127.0.0.1", port=port)
    server.start()
    yield post, port
    server.stop()


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> RealHub:
    return RealHub(tmp_path_factory.mktemp("real-hub"))


@pytest.fixture(scope="module")
def cloud(hub: RealHub, post: tuple[Post, int], worker_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    installation = install(hub, worker_python, tmp_path_factory.mktemp("owners"))
    mail = {"SMTP_HOST": "127.0.0.1", "SMTP_PORT": str(post[1]), "SMTP_SECURITY": "none"}
    installation.billing.environment.update({f"FOREBAY_BILLING_{name}": value for name, value in mail.items()})
    hub.tell(installation)
    with running(installation, "billing", "pool", "dashboards"), hub.running(installation):
        yield installation


SCREENS = [
    pytest.param((1440, "en", "light"), id="wide"),
    pytest.param((390, "ko", "dark"), id="telephone", marks=pytest.mark.full_sweep),
]


@pytest.fixture(params=SCREENS)
def context(request: pytest.FixtureRequest, chrome: Browser, hub: RealHub) -> Iterator[BrowserContext]:
    """An owner's, in a language and a scheme of colours."""
    width, language, scheme = request.param
    context = chrome.new_context(
        viewport={"width": width, "height": 900}, locale=language, color_scheme=scheme, base_url=hub.address
    )
    yield context
    context.close()


def sign_in(page: Page, hub: RealHub, name: str, path: str) -> None:
    page.goto(f"/services/dashboards/{path}")
    page.fill("#username_input", name)
    page.fill("#password_input", hub.password(name))
    page.click("#login_submit")
    page.wait_for_selector("#connection[data-state=live]")


def looks_well(page: Page) -> None:
    """It fits the screen, and nobody is kept from using it."""
    width = page.viewport_size["width"] if page.viewport_size else 0
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert grave_faults(page) == []


def join(chrome: Browser, hub: RealHub, link: str, name: str) -> BrowserContext:
    """Somebody new opens the link, and makes a login."""
    context = chrome.new_context(base_url=hub.address)
    page = context.new_page()
    page.on("dialog", lambda dialog: dialog.accept())
    page.goto(link)
    assert page.url == f"{hub.address}/hub/join"
    looks_well(page)
    page.fill("#name", name)
    page.fill("#password", "short")
    page.click("main form button")
    page.wait_for_selector("#password-hint[role=alert]")
    for part in ("password", "again"):
        page.fill(f"#{part}", PASSWORD)
    page.click("main form button")
    page.wait_for_url("**/hub/home")
    return context


def test_an_owner_invites_bounds_pays_and_removes(
    context: BrowserContext, chrome: Browser, hub: RealHub, cloud: Installation, post: tuple[Post, int]
) -> None:
    page = context.new_page()
    page.on("dialog", lambda dialog: dialog.accept())
    name = f"carol-{page.viewport_size['width']}" if page.viewport_size else ""
    sign_in(page, hub, "acme-owner", "tenant/people")
    looks_well(page)

    # Invites: a wrong address is told at the field, a right one gets the link.
    page.fill("#invitation-address", "nobody")
    page.click("form:has(#invitation-address) button")
    page.wait_for_selector("#problem-invitation-address")
    page.fill("#invitation-address", f"{name}@acme.example")
    page.click("form:has(#invitation-address) button")
    link = page.input_value("#link")
    assert link.startswith(f"{hub.address}/hub/join?code=") and link in post[0].texts[-1]
    looks_well(page)
    page.click("form:has(#invitation-address) button")
    page.wait_for_selector(f"#link:not([value='{link}'])")
    page.click("button[name=revoke] >> nth=0")
    newcomer = join(chrome, hub, link, name)
    be_told(newcomer.new_page(), post[0])

    # What the member is held to.
    page.goto(f"/services/dashboards/tenant/people/{name}")
    looks_well(page)
    page.fill("#quota-devices", "many")
    page.click("form:has(#quota-devices) button")
    page.wait_for_selector("#problem-quota-devices")
    page.fill("#quota-devices", "1.5")
    page.fill("#quota-device_hours", "10")
    page.fill("#quota-window_days", "30")
    page.fill("#quota-parked_gib", "64")
    page.click("form:has(#quota-devices) button")
    page.wait_for_selector(".saved")
    fields = ("devices", "device_hours", "window_days", "parked_gib")
    assert [page.input_value(f"#quota-{one}") for one in fields] == ["1.5", "10", "30", "64"]
    page.select_option("select[name=role]", "billing")
    page.click("form:has(select[name=role]) button")
    page.wait_for_selector(".saved")
    assert page.input_value("select[name=role]") == "billing"
    set_a_budget(page, name)
    alerts(page)
    bills(page)

    # Removes: the only owner stays, the member goes.
    page.goto("/services/dashboards/tenant/people/acme-owner")
    page.click("button[name=remove]")
    page.wait_for_selector("#removal-problem")
    page.goto(f"/services/dashboards/tenant/people/{name}")
    page.click("button[name=remove]")
    page.wait_for_url(re.compile("/tenant/people(#.*)?$"))
    assert name not in page.inner_text("section[aria-labelledby=people]")
    other = newcomer.new_page()
    refused = other.goto("/services/dashboards/tenant")
    assert refused is not None and refused.status == 403
    newcomer.close()


def be_told(page: Page, post: Post) -> None:
    """A member says where, and an address counts once its code was typed; mails follow the switch of JupyterHub's pages."""
    page.goto("/services/dashboards/usage/notices")
    page.goto("/hub/home")
    page.click("form.languages button[lang=ko]")
    page.wait_for_selector("form.languages button[lang=en]")
    page.goto("/services/dashboards/usage/notices")
    page.fill("#target", "carol@acme.example")
    page.click("button[name=add]")
    page.wait_for_selector("input[name=code]")
    looks_well(page)
    code = re.search(r"코드는 ([0-9a-f]+)", post.texts[-1])
    assert code is not None
    page.fill("input[name=code]", "wrong")
    page.click("form:has(input[name=code]) button")
    page.wait_for_selector("#code-problem")
    page.fill("input[name=code]", code[1])
    page.click("form:has(input[name=code]) button")
    page.wait_for_selector("table .tag.good")
    page.close()


def set_a_budget(page: Page, name: str) -> None:
    page.click("a[href*='terms/budget/edit']")
    page.wait_for_selector("#term-budget[data-editing]")
    assert page.input_value("#budget-user") == name
    looks_well(page)
    page.fill("#budget-limit", "a lot")
    page.click("#term-budget button.main")
    page.wait_for_selector("#problem-budget-limit")
    page.fill("#budget-limit", "12.5")
    page.select_option("#budget-on_limit", "drain")
    page.click("#term-budget button.main")
    row = page.locator(f"tr:has-text('{name}'):has(meter)")
    row.wait_for()
    row.locator("a[data-edits]").click()
    page.wait_for_selector("tr[data-editing] button[name=action]")
    page.click("tr[data-editing] button[name=action]")
    page.wait_for_selector(f"tr:has-text('{name}'):has(meter)", state="detached")


def alerts(page: Page) -> None:
    page.goto("/services/dashboards/tenant/alerts")
    looks_well(page)
    for target, taken in (("nobody", False), ("money@acme.example", True)):
        page.fill("#target", target)
        page.click("button[name=add]")
        page.wait_for_selector(".saved" if taken else "#target[aria-invalid]")
    assert "money@acme.example" in page.inner_text("section[aria-labelledby=channels] table")
    page.click("button[name=remove]")
    page.wait_for_selector("section[aria-labelledby=channels] .empty")


def bills(page: Page) -> None:
    page.goto("/services/dashboards/tenant/bills")
    looks_well(page)
    for typed, taken in (("", False), ("Acme Corp", True)):
        page.fill("#profile-legal_name", typed)
        page.click("form:has(#profile-legal_name) button.main")
        page.wait_for_selector(".saved" if taken else "#problem-profile-legal_name")
    assert page.input_value("#profile-legal_name") == "Acme Corp"

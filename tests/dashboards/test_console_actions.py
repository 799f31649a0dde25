"""Operators act on sessions, devices and nodes: they are asked first, it happens at the pool, and it is in the audit."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from browsing import mishaps, sign_in
from dashboards_installation import Hub, Installation, eventually, install, running
from forebay_wire import messages as wire
from playwright.sync_api import Browser, Page

DEVICE = "main/null:0"
CLOSE = "operator/devices/main%2Fnull:0/close"


@pytest.fixture(scope="module")
def acting_cloud(hub: Hub, worker_python: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """An installation whose devices a test may close."""
    installation = install(hub, worker_python, tmp_path_factory.mktemp("acting"))  # type: ignore[arg-type]
    installation.pool.environment["FOREBAY_POOL_REVOKE_GRACE_SECONDS"] = "0.1"
    with running(installation, "billing", "pool", "dashboards"):
        eventually(lambda: httpx.get(installation.dashboards.health_url).json()["live"])
        yield installation


@pytest.fixture
def console(chrome: Browser, acting_cloud: Installation, hub: Hub) -> Iterator[Page]:
    """The device map, as an operator has it open."""
    context = chrome.new_context()
    page = sign_in(context, hub, acting_cloud, "operator", "operator/nodes")
    yield page
    assert mishaps(page) == []
    context.close()


def device(cloud: Installation) -> dict[str, object]:
    found: dict[str, object] = next(row for row in cloud.ask("pool", "operator", "GET", "api/devices") if row["device"] == DEVICE)
    return found


def newest(cloud: Installation) -> dict[str, object]:
    entry: dict[str, object] = cloud.ask("pool", "operator", "GET", "api/audit?limit=1")["entries"][0]
    return entry


def test_a_device_is_closed_and_opened_in_a_dialog_by_keyboard_alone(console: Page, acting_cloud: Installation) -> None:
    console.focus(f"[id='close-{DEVICE}']")
    console.keyboard.press("Enter")
    console.wait_for_selector("dialog[open] #cause")
    console.keyboard.press("Escape")
    console.wait_for_selector("dialog:not([open])", state="attached")
    assert console.evaluate("document.activeElement.id") == f"close-{DEVICE}"
    assert device(acting_cloud)["cordoned"] is False, "who cancels changes nothing"
    console.keyboard.press("Enter")
    console.wait_for_selector("dialog[open] #cause")
    assert console.evaluate("document.activeElement.id") == "cause"
    console.keyboard.type("the fan is <b>loud</b>")
    console.keyboard.press("Enter")
    console.wait_for_selector("dialog .saved")
    assert (device(acting_cloud)["cordoned"], device(acting_cloud)["cause"]) == (True, "the fan is <b>loud</b>")
    assert (newest(acting_cloud)["action"], newest(acting_cloud)["who"]) == ("device.set", "operator")
    console.keyboard.press("Enter")
    console.wait_for_selector(f"[id='open-{DEVICE}']")
    assert "the fan is <b>loud</b>" in console.inner_text(f"[id='seat-{DEVICE}']")
    console.click(f"[id='open-{DEVICE}']")
    console.click("dialog[open] button.main")
    console.wait_for_selector("dialog .saved")
    assert device(acting_cloud)["cordoned"] is False


def test_a_cause_must_be_given_and_what_was_typed_is_kept(acting_cloud: Installation) -> None:
    answer = acting_cloud.post("operator", CLOSE, {"cause": "  "})
    assert (answer.status_code, "Say why the device is closed" in answer.text) == (400, True)
    long = acting_cloud.post("operator", CLOSE, {"cause": "x" * 501})
    assert (long.status_code, "x" * 501 in long.text) == (400, True)
    assert device(acting_cloud)["cordoned"] is False


def test_without_scripts_the_question_is_a_page_and_its_answer_leads_back(acting_cloud: Installation) -> None:
    page = acting_cloud.get("operator", CLOSE)
    assert ("<h1>" in page.text, f"Close device {DEVICE}?" in page.text) == (True, True)
    done = acting_cloud.post("operator", CLOSE, {"cause": "a test"}, fragment=False)
    assert (done.status_code, done.headers["Location"]) == (303, "/services/dashboards/operator/nodes")
    eventually(lambda: "a test" in acting_cloud.get("operator", "operator/nodes/map").text)
    assert acting_cloud.post("operator", CLOSE.replace("close", "open"), {}).status_code == 200


def test_a_node_is_drained_with_a_grace_and_returned(acting_cloud: Installation) -> None:
    assert acting_cloud.post("operator", "operator/nodes/main/drain", {"grace": "soon"}).status_code == 400
    assert acting_cloud.post("operator", "operator/nodes/main/drain", {"grace": "3600"}).status_code == 200
    eventually(lambda: "operator/nodes/main/return" in acting_cloud.get("operator", "operator/nodes").text)
    assert newest(acting_cloud)["after"] == {"drain": True, "grace_seconds": 3600.0}
    assert "It is being drained" in acting_cloud.get("operator", "operator/live").text
    assert acting_cloud.post("operator", "operator/nodes/main/return", {}).status_code == 200


def test_sessions_are_parked_revoked_and_ended_and_the_audit_of_both_services_says_so(acting_cloud: Installation) -> None:
    with acting_cloud.session("acme-member") as session:
        granted = session.acquire("act.ipynb", 1)
        (row,) = [row for row in acting_cloud.ask("pool", "operator", "GET", "api/sessions") if row["state"] == "active"]
        name = row["session"]
        path = f"operator/sessions/{name}"
        eventually(lambda: f"{path}/revoke" in acting_cloud.get("operator", "operator/sessions").text)
        refused = acting_cloud.post("operator", f"{path}/park", {})
        assert (refused.status_code, "does not rest on a device" in refused.text) == (409, True)
        session.release(granted.epoch)
        eventually(lambda: f"{path}/park" in acting_cloud.get("operator", "operator/sessions/rows").text)
        assert "acme-member of acme" in acting_cloud.get("operator", f"{path}/park").text
        assert "is being parked" in acting_cloud.post("operator", f"{path}/park", {}).text
        eventually(lambda: "parked" in acting_cloud.get("operator", f"operator/sessions/rows?q={name}").text)
        assert "has ended" in acting_cloud.post("operator", f"{path}/end", {}).text
    acting_cloud.ask("billing", "operator", "PUT", "api/prices/dev.1gb", json={"price_nano_per_hour": 9000, "currency": "USD"})
    page = acting_cloud.get("operator", "operator/audit").text
    assert page.index("billing</span>") < page.index("session.end") < page.index("session.park"), "newest first"
    one = acting_cloud.get("operator", "operator/audit", params={"action": "session.park", "subject": name}).text
    assert (one.count("<tr>"), "session.end" in one) == (2, False)


def test_a_lease_is_taken_back_by_the_button_of_its_row_and_waits_again(console: Page, acting_cloud: Installation) -> None:
    with acting_cloud.session("acme-member") as session:
        granted = session.acquire("revoked.ipynb", 1)
        (row,) = [row for row in acting_cloud.ask("pool", "operator", "GET", "api/sessions") if row["state"] == "active"]
        console.goto(acting_cloud.urls["dashboards"] + "operator/sessions")
        console.click(f"#revoke-{row['session']}")
        console.wait_for_selector("dialog[open] button.main")
        assert "Its lease is taken back after a grace" in console.inner_text("dialog")
        console.keyboard.press("Tab")
        console.focus("dialog button.main")
        console.keyboard.press("Enter")
        console.wait_for_selector("dialog .saved")
        heard = [wire.to_client(session.link.recv(timeout=60)) for _ in range(2)]
        while not isinstance(heard[-1], wire.Granted):
            heard.append(wire.to_client(session.link.recv(timeout=60)))
    assert isinstance(heard[0], wire.Revoking) and heard[0].epoch == granted.epoch
    assert isinstance(heard[1], wire.LeaseClosed) and heard[1].reason == "revoked"
    assert isinstance(heard[-1], wire.Granted) and heard[-1].epoch > granted.epoch, "it waited at its old place, and nobody else was there"
    entry = newest(acting_cloud)
    assert (entry["who"], entry["action"], entry["subject"]) == ("operator", "session.revoke", row["session"])


def test_an_action_from_a_foreign_page_is_refused(acting_cloud: Installation, hub: Hub) -> None:
    hub.sign_in_as = "operator"
    with httpx.Client(base_url=acting_cloud.urls["dashboards"], follow_redirects=True, headers={"Sec-Fetch-Mode": "navigate"}) as client:
        assert client.get("operator/nodes").status_code == 200
        for fields in ({"cause": "evil"}, {"cause": "evil", "_xsrf": "made-up"}):
            assert client.post(CLOSE, data=fields, headers={"Sec-Fetch-Mode": "cors"}).status_code == 403
    assert device(acting_cloud)["cordoned"] is False

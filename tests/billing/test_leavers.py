"""What people have sent for a tenant ends when they leave it or administer it no more, and what waits for it is given up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from forebay_billing.tasks import budget_watch, leavers, notices
from forebay_service.people.memberships import Membership, Memberships, PeopleUnknown
from running_billing import Running
from test_alerts import Receiver, receiver  # noqa: F401 - fixtures


class Hub:
    """Who belongs where, as the hub says it when it is asked."""

    def __init__(self) -> None:
        self.people = [
            Membership("acme-owner", "acme", "owner"),
            Membership("acme-member", "acme", "member"),
            Membership("globex-owner", "globex", "owner"),
        ]
        self.operators = ["operator"]
        self.away = False

    async def everybody(self) -> Memberships:
        if self.away:
            raise PeopleUnknown("away")
        return Memberships(self.people, self.operators)


@pytest.fixture
def hub() -> Hub:
    return Hub()


@pytest.fixture
def running(settings: Any, clock: Any, running_service: Any, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Its loops go round when the test says so."""
    for task in (budget_watch.BudgetWatch, notices.Notices, leavers.Leavers):
        monkeypatch.setattr(task, "start", lambda loop, leads: None)
    changes = {"alert_private_addresses": True, "smtp_host": "127.0.0.1", "smtp_port": 9, "smtp_security": "none"}
    service = running_service(settings.model_copy(update=changes), clock, hub)
    yield service
    service.stop()


def made(running: Running, url: str) -> Callable[[], dict[str, list[str]]]:
    """Everybody has something sent; returns what tells whose is left."""
    for caller in ("acme-owner", "globex-owner", "operator"):
        body = {"kind": "webhook", "target": f"{url}/{caller}"}
        assert running.request(caller, "POST", "/api/alerts/channels", json=body).status_code == 200
    for caller in ("acme-owner", "globex-owner"):
        assert running.request(caller, "POST", "/api/reports/recipients", json={"target": f"{caller}@x.example"}).status_code == 200
    for caller in ("acme-owner", "acme-member", "globex-owner"):
        body = {"kind": "webhook", "target": f"{url}/{caller}"}
        assert running.request(caller, "POST", "/api/notices/channels", json=body).status_code == 200

    def left() -> dict[str, list[str]]:
        alerts = [row["set_by"] for row in running.get("operator", "/api/alerts/channels").json()]
        for caller in ("acme-owner", "globex-owner"):
            alerts += [row["set_by"] for row in running.get(caller, "/api/alerts/channels").json()]
        reports = [row["set_by"] for row in running.get("operator", "/api/reports/recipients").json()]
        own = [name for name in ("acme-owner", "acme-member", "globex-owner") if running.get(name, "/api/notices/channels").json()]
        return {"alerts": sorted(set(alerts)), "reports": sorted(set(reports)), "notices": sorted(own)}

    return left


ALL = {
    "alerts": ["acme-owner", "globex-owner", "operator"],
    "reports": ["acme-owner", "globex-owner"],
    "notices": ["acme-member", "acme-owner", "globex-owner"],
}


def look(running: Running) -> None:
    running._run(running.service.leavers.step())


def test_who_stays_keeps_all_and_so_does_everybody_while_the_hub_is_away(running: Running, hub: Hub, receiver: Receiver) -> None:  # noqa: F811
    left = made(running, receiver.url)
    look(running)
    hub.people, hub.operators, hub.away = [], [], True
    look(running)
    assert left() == ALL


@pytest.mark.parametrize(
    ("become", "gone"),
    [
        (None, {"alerts": "acme-owner", "reports": "acme-owner", "notices": "acme-owner"}),
        (Membership("acme-owner", "globex", "owner"), {"alerts": "acme-owner", "reports": "acme-owner", "notices": "acme-owner"}),
        (Membership("acme-owner", "acme", "member"), {"alerts": "acme-owner", "reports": "acme-owner"}),
        (Membership("acme-owner", "acme", "billing"), {}),
    ],
    ids=["left", "moved", "member now", "pays now"],
)
def test_what_an_owner_has_sent_ends_with_the_right_to_it(
    running: Running, hub: Hub, receiver: Receiver, become: Membership | None, gone: dict[str, str]  # noqa: F811
) -> None:  # fmt: skip
    left = made(running, receiver.url)
    hub.people = [one for one in hub.people if one.name != "acme-owner"] + ([] if become is None else [become])
    look(running)
    assert left() == {kind: [name for name in names if name != gone.get(kind)] for kind, names in ALL.items()}
    audits = [entry for entry in running.get("operator", "/api/audit").json()["entries"] if entry["action"].endswith("remove")]
    assert {entry["who"] for entry in audits} <= {"billing"} and len(audits) == len(gone)


def test_what_waits_for_a_member_who_left_is_given_up_and_who_comes_back_begins_anew(
    running: Running, hub: Hub, receiver: Receiver  # noqa: F811
) -> None:  # fmt: skip
    left = made(running, receiver.url)
    notice = {"kind": "ended", "notebook": "a.ipynb", "cell": 1, "first_line": "x", "seconds": 1.0, "why": None}
    assert running.request("acme-member", "POST", "/api/notices", json=notice).json() == {"channels": 1}
    hub.people = [one for one in hub.people if one.name != "acme-member"]
    look(running)
    while running._run(running.service.notices.step()):
        continue
    assert receiver.received == [] and left()["notices"] == ["acme-owner", "globex-owner"]
    hub.people.append(Membership("acme-member", "acme", "member"))
    look(running)
    assert running.request("acme-member", "POST", "/api/notices", json=notice).json() == {"channels": 0}


def test_the_channel_of_a_former_operator_hears_of_no_tenant(running: Running, hub: Hub, receiver: Receiver) -> None:  # noqa: F811
    left = made(running, receiver.url)
    hub.operators = []
    look(running)
    assert left() == {**ALL, "alerts": ["acme-owner", "globex-owner"]}


def test_a_budget_that_a_former_owner_set_holds_for_the_tenant(running: Running, hub: Hub, receiver: Receiver) -> None:  # noqa: F811
    made(running, receiver.url)
    body = {"limit_nano": 10**9, "thresholds": [80], "on_limit": "refuse", "new": True}
    assert running.request("acme-owner", "PUT", "/api/budgets", json=body).status_code == 200
    hub.people = [one for one in hub.people if one.name != "acme-owner"]
    look(running)
    (budget,) = running.get("operator", "/api/budgets", tenant="acme").json()
    assert (budget["set_by"], budget["on_limit"], budget["limit_nano"]) == ("acme-owner", "refuse", 10**9)

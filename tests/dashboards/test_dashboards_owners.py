"""What owners are told to do next, what their forms refuse, and the letter of an invitation."""

from __future__ import annotations

from typing import Any

import pytest
from dashboards_installation import Installation
from forebay_dashboards.forms import invitation, profile
from forebay_dashboards.rows.billing import BudgetRow, CreditRow, InvoiceRow, Profile
from forebay_dashboards.rows.hub import MadeInvitation
from forebay_dashboards.tables.next_steps import next_steps

DAY_NS = 86_400 * 10**9
NOW_NS = 20_000 * DAY_NS


def invoice(number: str, due_days: int, state: str = "open") -> InvoiceRow:
    return InvoiceRow(
        number=number, tenant="acme", month="2024-09", currency="USD", state=state, total="12.00", open="12.00",
        due_at_ns=NOW_NS + due_days * DAY_NS,
    )  # fmt: skip


def credit(name: str, left_minor: int, days: int | None) -> CreditRow:
    expires = None if days is None else NOW_NS + days * DAY_NS
    amounts: dict[str, Any] = {"amount": "5.00", "left": "1.00", "left_minor": left_minor}
    return CreditRow(id=1, tenant="acme", kind="prepaid", name=name, currency="USD", expires_at_ns=expires, **amounts)


def test_what_presses_comes_first_and_what_is_well_is_not_told() -> None:
    amounts = dict.fromkeys(("limit_nano", "spent_nano", "running_nano", "left_nano", "forecast_nano"), 1)
    common: dict[str, Any] = {"id": 1, "tenant": "acme", "notebook": None, "currency": "USD", "period": "2024-10", "on_limit": "drain"}
    budgets = [BudgetRow(user=None, state="open", **common, **amounts), BudgetRow(user="bob", state="drain", **common, **amounts)]
    invoices = [invoice("A-1", 9), invoice("A-2", -1), invoice("A-3", -9, "paid"), invoice("A-4", 3)]
    credits = [credit("soon", 1, 9), credit("used up", 0, 9), credit("later", 1, 90), credit("for ever", 1, None)]
    steps = next_steps(invoices, credits, budgets, Profile(), {"A-4": "https://pay.example/4"}, NOW_NS)
    assert [(str(step.sentence)[:24], step.pressing) for step in steps] == [
        ("Invoice A-2 is overdue: ", True),
        ("A budget stops work: bob", True),
        ("Invoice A-1 is open: 12.", False),
        ("Invoice A-4 is open: 12.", False),
        ("Invoices are made out to", False),
        ("Of the credit “soon” 1.0", False),
    ]
    assert [step.address for step in steps if step.address] == ["https://pay.example/4"]
    assert "name its number" in steps[0].sentence and steps[0].path == "invoice?number=A-2&format=html"
    assert next_steps(None, None, None, None, {}, NOW_NS) == next_steps([], [], [], Profile(legal_name="Acme"), {}, NOW_NS) == []


@pytest.mark.parametrize(
    ("typed", "wrong"),
    [
        ({"role": "king", "address": "", "days": "7"}, {"role"}),
        ({"role": "member", "address": "a@b@c", "days": "8"}, {"address", "days"}),
        ({"role": "owner", "address": " ann@acme.example ", "days": "30"}, set()),
    ],
)
def test_an_invitation_is_refused_at_the_field(typed: dict[str, str], wrong: set[str]) -> None:
    form, body = invitation.judge(typed)
    assert set(form.problems) == wrong
    if not wrong:
        assert body == {"role": "owner", "address": "ann@acme.example", "days": 30}


def test_the_letter_says_who_invites_whereto_until_when_in_the_language_of_who_invites() -> None:
    made = MadeInvitation(id=1, role="member", address="c@x.example", made_by="ann", expires_at_ns=NOW_NS, path="/hub/join?code=t")
    subject, text = invitation.mail(made, "ann", "acme", "https://cloud.example/hub/join?code=t")
    assert subject == "ann invites you to the tenant acme" and "2024-10-04 00:00 UTC" in text
    assert "https://cloud.example/hub/join?code=t\n" in text.said("ko") and "초대" in subject.said("ko")


def test_whom_invoices_are_made_out_to_has_a_name_and_at_most_one_address() -> None:
    form, _ = profile.judge({"legal_name": " ", "address": "1 Way\r\nTown", "tax_id": "", "email": "two@x, three@x"}, "s")
    assert set(form.problems) == {"legal_name", "email"} and form.values["address"] == "1 Way\nTown"


def test_limits_that_an_operator_set_are_shown_and_stay(cloud: Installation) -> None:
    cloud.ask("pool", "operator", "PUT", "api/quotas/globex/globex-owner", json={"devices_milli": 2000})
    page = cloud.get("globex-owner", "tenant/people/globex-owner").text
    assert "2 devices at a time" in page and "An operator set these" in page and "quota-devices" not in page
    refused = cloud.post("globex-owner", "tenant/people/globex-owner", {"devices": "9", "stamp": "x"})
    assert refused.status_code in (403, 412)
    assert cloud.ask("pool", "operator", "GET", "api/quotas/globex/globex-owner")["devices_milli"] == 2000
    cloud.ask("pool", "operator", "PUT", "api/quotas/globex/globex-owner", json={})


def test_who_saves_limits_that_somebody_else_changed_is_told_and_must_mean_it(cloud: Installation) -> None:
    form = {"devices": "1", "stamp": cloud.ask("pool", "globex-owner", "GET", "api/quotas/globex/globex-owner")["etag"].strip('"')}
    at = "tenant/people/globex-owner"
    assert cloud.post("globex-owner", at, form).status_code == 200
    stale = cloud.post("globex-owner", at, {**form, "devices": "3"})
    assert (stale.status_code, "Somebody changed this" in stale.text, 'value="3"' in stale.text) == (412, True, True)
    assert cloud.ask("pool", "operator", "GET", "api/quotas/globex/globex-owner")["devices_milli"] == 1000
    cloud.ask("pool", "operator", "PUT", "api/quotas/globex/globex-owner", json={})


def test_an_owner_sees_an_operators_budget_and_cannot_change_it(cloud: Installation) -> None:
    budget = {"tenant": "globex", "limit_nano": 5 * 10**9, "new": True}
    number = cloud.ask("billing", "operator", "PUT", "api/budgets", json=budget)["id"]
    page = cloud.get("globex-owner", "tenant/budgets").text
    assert "An operator set it." in page and f"terms/budget-{number}/edit" not in page
    assert cloud.post("globex-owner", f"tenant/budgets/terms/budget-{number}/edit", {"action": "remove", "stamp": ""}).status_code == 404
    too_much = {"limit": "6", "on_limit": "drain", "window": "month", "user": "", "notebook": "", "warn": "", "grace": "", "stamp": ""}
    refused = cloud.post("globex-owner", "tenant/budgets/terms/budget/edit", too_much)
    assert refused.status_code == 403 and "a budget of yours may be that at most" in refused.text
    cloud.ask("billing", "operator", "DELETE", f"api/budgets/{number}")


def test_a_channel_is_refused_where_it_leads_to_what_is_not_public(cloud: Installation) -> None:
    for target in ("https://10.0.0.1/hook", "http://alerts.example/hook", ""):
        answer = cloud.post("globex-owner", "tenant/alerts", {"add": "1", "kind": "webhook", "target": target})
        assert (answer.status_code, 'id="target-hint" role="alert"' in answer.text) == (400, True)
    made = cloud.post("globex-owner", "tenant/alerts", {"add": "1", "kind": "webhook", "target": "https://alerts.example/hook"}).text
    assert "whsec_" in made and "whsec_" not in cloud.get("globex-owner", "tenant/alerts").text, "a secret is told once"
    (row,) = cloud.ask("billing", "globex-owner", "GET", "api/alerts/channels")
    assert "Alerts go there no more." in cloud.post("globex-owner", "tenant/alerts", {"remove": str(row["id"])}).text


def test_stripes_portal_says_where_it_is_not(cloud: Installation) -> None:
    answer = cloud.post("globex-owner", "tenant/bills", {"portal": "1"})
    assert answer.status_code >= 400 and "Payments are off" in answer.text


def test_a_person_says_where_to_be_told_and_wrong_addresses_are_refused_at_the_field(cloud: Installation) -> None:
    assert "Pages tell you while they are open" in cloud.get("globex-owner", "usage/notices").text
    for kind, target in (("webhook", "http://10.0.0.1/"), ("email", "me@acme.example"), ("slack", ""), ("pigeon", "home")):
        answer = cloud.post("globex-owner", "usage/notices", {"add": "1", "kind": kind, "target": target})
        assert (answer.status_code, 'id="target-hint" role="alert"' in answer.text) == (400, True), (kind, answer.text)
    hidden = {"add": "1", "kind": "slack", "target": "https://hooks.example/services/T0AB/B0CD/kept-to-itself"}
    for path in ("usage/notices", "tenant/alerts"):
        for page in (cloud.post("globex-owner", path, hidden).text, cloud.get("globex-owner", path).text):
            assert "https://hooks.example/…self" in page and "kept-to-itself" not in page, "a chat's address is a secret"
        (chat,) = cloud.ask("billing", "globex-owner", "GET", f"api/{'notices' if 'usage' in path else 'alerts'}/channels")
        assert "https://hooks.example/…self" not in cloud.post("globex-owner", path, {"remove": str(chat["id"])}).text
    made = cloud.post("globex-owner", "usage/notices", {"add": "1", "kind": "webhook", "target": "https://alerts.example/hook"}).text
    assert "whsec_" in made and "whsec_" not in cloud.get("globex-owner", "usage/notices").text
    (row,) = cloud.ask("billing", "globex-owner", "GET", "api/notices/channels")
    chosen = cloud.post("globex-owner", "usage/notices", {"prefer": "1", "language": "ko", "jobs": "failures"}).text
    assert '"failures" selected' in chosen and 'lang="ko" selected' in chosen and "It is so from now on." in chosen
    cloud.post("globex-owner", "language", {"language": "en"})
    told = cloud.ask("billing", "globex-owner", "GET", "api/notices/preferences")
    assert told == {"language": "en", "jobs": "failures", "common_language": "en"}, "mails follow the switch of the pages"
    for wrong in ({"remove": "x"}, {"remove": "99"}, {"confirm": "99", "code": "x"}):
        assert cloud.post("globex-owner", "usage/notices", wrong).status_code == 400
    assert "Nothing goes there any more." in cloud.post("globex-owner", "usage/notices", {"remove": str(row["id"])}).text

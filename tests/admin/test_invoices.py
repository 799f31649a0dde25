"""``forebay admin invoices``, ``credits`` and ``tenants`` against a real billing service."""

from __future__ import annotations

import json
import shutil
import threading
from asyncio import new_event_loop, run_coroutine_threadsafe
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from forebay.toolkit.billing import billing as where_billing_is
from forebay.toolkit.command import main
from forebay_billing.model.months import Month
from forebay_billing.model.types import Span, UsageRecord
from forebay_billing.service import Service
from forebay_billing.settings import Settings
from forebay_billing.writes import usage
from forebay_service.identity import COMPUTE, OPERATE, Identity, TokenAuthenticator

NOVEMBER = Month(2026, 11)
PEOPLE = {
    "operator": Identity("olga", "user", None, frozenset({OPERATE})),
    "ada": Identity("ada", "user", "acme", frozenset({COMPUTE})),
}


@pytest.fixture
def billing(tmp_path: Path, migrated_books: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Billing on the fourth of December, with an hour of acme's in November; the environment is the operator's."""
    loop = new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def start() -> Service:
        url = f"sqlite:///{shutil.copy(migrated_books, tmp_path)}"
        settings = Settings(database_url=url, port=0, hub_api_url="http://127.0.0.1:1", invoice_grace_days=28)
        return Service(settings, TokenAuthenticator(PEOPLE), lambda: Month(2026, 12).start_ns + 3 * 86_400 * 10**9)

    service = run_coroutine_threadsafe(start(), loop).result(20)
    record = UsageRecord(
        "pool", "lease/1", "acme", "ada", "session", "lease", Span("span", "cell", "digits.ipynb", 3), "small.64gb", "cpu-dev", 1,
        NOVEMBER.start_ns, 3600 * 10**9, "drained",
    )  # fmt: skip
    service.store.submit(lambda books: usage.post_usage(books, [record], lambda tenant: "USD", lambda: NOVEMBER.end_ns)).result(20)
    monkeypatch.setenv("FOREBAY_BOOKS_URL", f"http://127.0.0.1:{service.port}/")
    monkeypatch.setenv("FOREBAY_TOKEN", "operator")
    yield service
    run_coroutine_threadsafe(service.close(), loop).result(20)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def run(capsys: Any, line: str) -> str:
    status = main(["admin", *line.split()])
    printed = capsys.readouterr()
    assert (status, printed.err) == (0, ""), printed.err
    return str(printed.out)


def test_a_month_goes_from_draft_to_paid(billing: Any, capsys: Any) -> None:
    assert "small.64gb for ada" in run(capsys, "invoices draft acme 2026-11")
    assert "INV-000001" in run(capsys, "invoices finalise acme 2026-11")
    assert "2.000000000000000000" in run(capsys, "invoices show INV-000001")
    assert "CN-000001" in run(capsys, "invoices credit-note INV-000001 50 --reason ours")
    assert "is paid; 0.00 USD of it is open" in run(capsys, "invoices pay INV-000001 150 --reference 17")
    run(capsys, "invoices credit-note INV-000001 20 --reason ours")
    assert "0.00 USD of it is open" in run(capsys, "invoices refund INV-000001 20 --reference 18")
    (row,) = json.loads(run(capsys, "invoices list --tenant acme --month 2026-11 --state paid --json"))
    assert (row["number"], row["paid_minor"], row["credited_minor"]) == ("INV-000001", 130, 70)
    assert "No invoice." in run(capsys, "invoices list --state open")
    assert "Nothing was used" in run(capsys, "invoices finalise nobody 2026-11")
    assert "Nothing would be invoiced" in run(capsys, "invoices draft nobody 2026-11")


def test_an_invoice_is_made_void(billing: Any, capsys: Any) -> None:
    run(capsys, "invoices finalise acme 2026-11")
    assert "is void; 0.00 USD" in run(capsys, "invoices void INV-000001 --reason test")


def test_credits_are_granted_listed_and_refunded(billing: Any, capsys: Any) -> None:
    granted = run(capsys, "credits grant acme prepaid 500 --name Paid --priority 3 --from 2026-11-01 --expires 2027-11-01")
    assert "5.00 USD is left" in granted
    run(capsys, "invoices finalise acme 2026-11")
    (row,) = json.loads(run(capsys, "credits list --tenant acme --json"))
    assert (row["left_minor"], row["priority"], row["effective_at_ns"], row["expires_at_ns"]) == (
        300, 3, NOVEMBER.start_ns, Month(2027, 11).start_ns,
    )  # fmt: skip
    assert "2.99 USD is left" in run(capsys, "credits refund 1 --amount 1 --reason asked")
    assert "2027-11-01" in run(capsys, "credits list")


def test_who_is_no_operator_is_told_so(billing: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_TOKEN", "ada")
    assert main(["admin", "invoices", "finalise", "acme", "2026-11"]) == 1
    assert "needs the scope" in capsys.readouterr().err


def test_billing_is_found_beside_the_hubs_pool(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.delenv("FOREBAY_BOOKS_URL", raising=False)
    monkeypatch.setenv("FOREBAY_TOKEN", "x")
    monkeypatch.setenv("FOREBAY_URL", "https://hub.example/services/pool/")
    assert where_billing_is().url == "https://hub.example/services/billing/"
    monkeypatch.setenv("FOREBAY_URL", "http://127.0.0.1:8711/")
    assert main(["admin", "credits", "list"]) == 1
    assert "Set FOREBAY_BOOKS_URL" in capsys.readouterr().err


def test_a_day_that_is_none_is_refused(capsys: Any) -> None:
    with pytest.raises(SystemExit):
        main(["admin", "credits", "grant", "acme", "prepaid", "1", "--name", "x", "--expires", "soon"])
    assert "write it as YYYY-MM-DD" in capsys.readouterr().err


def test_a_tenants_tax_and_name_are_set_and_listed(billing: Any, capsys: Any) -> None:
    assert "Version 1 of the profile of acme" in run(capsys, "tenants set acme --legal-name Acme --tax-name VAT --tax 7.5")
    listed = run(capsys, "tenants list")
    assert "VAT 7.5 %" in listed and "2.00" in listed and "Acme" in listed
    (row,) = json.loads(run(capsys, "tenants list --tenant acme --json"))
    assert (row["tax_bps"], row["currency"], row["known"]) == (750, "USD", True)
    assert "Version 2" in run(capsys, "tenants set acme --tax 0")
    (row,) = json.loads(run(capsys, "tenants list --json"))
    assert (row["tax_bps"], row["tax_label"]) == (0, "VAT"), "what is left out stays"


def test_a_currency_is_set_before_the_first_usage_and_refused_after_it(billing: Any, capsys: Any) -> None:
    run(capsys, "tenants set newcomer --currency eur")
    assert json.loads(run(capsys, "tenants list --tenant newcomer --json"))[0]["currency"] == "EUR"
    run(capsys, "tenants set newcomer --currency default")
    assert json.loads(run(capsys, "tenants list --tenant newcomer --json"))[0]["currency"] == "USD"
    assert main("admin tenants set acme --currency EUR".split()) == 1
    assert "has usage or credits already" in capsys.readouterr().err


def test_setting_nothing_is_told_what_can_be_set(billing: Any, capsys: Any) -> None:
    assert main(["admin", "tenants", "set", "acme"]) == 1
    assert "Say what to change" in capsys.readouterr().err

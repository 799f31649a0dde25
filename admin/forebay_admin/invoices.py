"""``forebay admin invoices`` and ``forebay admin credits``: what operators do at billing."""

from __future__ import annotations

import argparse
import urllib.parse
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from forebay.toolkit import pool
from forebay.toolkit.billing import billing

from forebay_admin.actions import Parsers, action, cells, part, show, things

INVOICE_HEADERS = ["Number", "Tenant", "Month", "State", "Total", "Open", "Currency", "Due"]
CREDIT_HEADERS = ["Credit", "Tenant", "Kind", "Name", "Left", "Of", "Currency", "Priority", "Expires"]
LINE_HEADERS = ["Line", "Amount", "Before rounding", "Key"]
NS_PER_SECOND = 10**9


def add_to(parsers: Parsers) -> None:
    """Adds both things."""
    _add_invoices(things(parsers, "invoices", "drafts, finalised invoices, and what became of them"))
    _add_credits(things(parsers, "credits", "prepaid and promotional credits"))


def _add_invoices(actions: Parsers) -> None:
    listing = action(actions, "list", perform_list, "finalised invoices, the latest first")
    listing.add_argument("--tenant", help="of this tenant alone")
    listing.add_argument("--month", metavar="YYYY-MM", help="of this month alone")
    listing.add_argument("--state", choices=("open", "paid", "void"), help="in this state alone")
    action(actions, "show", perform_show, "the lines of an invoice").add_argument("number")
    draft = action(actions, "draft", perform_draft, "an open month's invoices as they would be now")
    finalise = action(actions, "finalise", perform_finalise, "close a tenant's month and number its invoices")
    for each in (draft, finalise):
        each.add_argument("tenant")
        each.add_argument("month", metavar="YYYY-MM")
    note = action(actions, "credit-note", perform_note, "take back what was asked for too much")
    for name, text in (("pay", "write down money that came in"), ("refund", "write down money that went back")):
        settle = action(actions, name, perform_settle, text)
        settle.add_argument("number")
        settle.add_argument("amount", type=int, metavar="CENTS", help="in the currency's smallest coin")
        settle.add_argument("--method", default="bank", help="how it was paid (bank)")
        settle.add_argument("--reference", required=True, help="what names the payment; the same one counts once")
        settle.set_defaults(kind="payment" if name == "pay" else "refund")
    void = action(actions, "void", perform_void, "no longer ask for what is open")
    for each in (note, void):
        each.add_argument("number")
        each.add_argument("--reason", required=True, help="why, for the audit")
    note.add_argument("amount", type=int, metavar="CENTS", help="in the currency's smallest coin")


def _add_credits(actions: Parsers) -> None:
    action(actions, "list", perform_credits, "credits, and what is left of them").add_argument("--tenant", help="of this tenant alone")
    grant = action(actions, "grant", perform_grant, "give a tenant credit")
    grant.add_argument("tenant")
    grant.add_argument("kind", choices=("prepaid", "promotional"))
    grant.add_argument("amount", type=int, metavar="CENTS", help="in the currency's smallest coin")
    grant.add_argument("--name", required=True, help="what the tenant reads")
    grant.add_argument("--priority", type=int, default=50, metavar="N", help="0 is used first, 100 last (50)")
    grant.add_argument("--currency", help="other than what the tenant is billed in")
    grant.add_argument("--from", dest="effective", type=_day, metavar="YYYY-MM-DD", help="first day, UTC (this month's first)")
    grant.add_argument("--expires", type=_day, metavar="YYYY-MM-DD", help="the day from which it no longer counts, UTC (never)")
    grant.add_argument("--new", action="store_true", help="nothing was ever recorded for the tenant")
    refund = action(actions, "refund", perform_refund_credit, "give what is left of a prepaid credit back")
    refund.add_argument("credit", type=int)
    refund.add_argument("--amount", type=int, metavar="CENTS", help="a part of what is left")
    refund.add_argument("--reason", required=True, help="why, for the audit")


def perform_list(arguments: argparse.Namespace) -> int:
    given = {"tenant": arguments.tenant, "month": arguments.month, "state": arguments.state}
    rows = pool.rows(billing(), f"api/invoices{_query(given)}")
    return show(arguments, rows, lambda: cells(INVOICE_HEADERS, [_invoice(row) for row in rows], "No invoice."))


def _invoice(row: Mapping[str, Any]) -> list[object]:
    due = _date(row["due_at_ns"])
    return [row["number"], row["tenant"], row["month"], row["state"], row["total"], row["open"], row["currency"], due]


def perform_show(arguments: argparse.Namespace) -> int:
    found = billing().get(f"api/invoices/{part(arguments.number)}")
    return show(arguments, found, lambda: f"{cells(INVOICE_HEADERS, [_invoice(found)], '')}\n{_lines(found)}")


def perform_draft(arguments: argparse.Namespace) -> int:
    drafts = pool.rows(billing(), f"api/drafts{_query({'tenant': arguments.tenant, 'month': arguments.month})}")
    nothing = f"Nothing would be invoiced to {arguments.tenant} for {arguments.month}."
    return show(arguments, drafts, lambda: "\n".join(_lines(draft) for draft in drafts) or nothing)


def _lines(found: Mapping[str, Any]) -> str:
    rows = [[line["label"], line["amount"], line["cost_exact"], line["key"]] for line in found["lines"]]
    return cells(LINE_HEADERS, [*rows, [f"Total in {found['currency']}", found["total"], "", ""]], "")


def perform_finalise(arguments: argparse.Namespace) -> int:
    made = billing().post("api/invoices", {"tenant": arguments.tenant, "month": arguments.month})
    return show(arguments, made, lambda: cells(INVOICE_HEADERS, [_invoice(row) for row in made], "Nothing was used: the month stays open."))


def perform_note(arguments: argparse.Namespace) -> int:
    path = f"api/invoices/{part(arguments.number)}/credit-notes"
    made = billing().post(path, {"amount_minor": arguments.amount, "reason": arguments.reason})
    return show(arguments, made, lambda: f"The credit note {made['name']} takes that much of {arguments.number} back.")


def perform_settle(arguments: argparse.Namespace) -> int:
    body = {"kind": arguments.kind, "amount_minor": arguments.amount, "method": arguments.method, "reference": arguments.reference}
    return _stands(arguments, billing().post(f"api/invoices/{part(arguments.number)}/payments", body))


def perform_void(arguments: argparse.Namespace) -> int:
    return _stands(arguments, billing().post(f"api/invoices/{part(arguments.number)}/void", {"reason": arguments.reason}))


def _stands(arguments: argparse.Namespace, row: Mapping[str, Any]) -> int:
    return show(arguments, row, lambda: f"The invoice {row['number']} is {row['state']}; {row['open']} {row['currency']} of it is open.")


def perform_credits(arguments: argparse.Namespace) -> int:
    rows = pool.rows(billing(), f"api/credits{_query({'tenant': arguments.tenant})}")
    return show(arguments, rows, lambda: cells(CREDIT_HEADERS, [_credit(row) for row in rows], "No credit."))


def _credit(row: Mapping[str, Any]) -> list[object]:
    expires = None if row["expires_at_ns"] is None else _date(row["expires_at_ns"])
    names = ("id", "tenant", "kind", "name", "left", "amount", "currency", "priority")
    return [*(row[name] for name in names), expires]


def perform_grant(arguments: argparse.Namespace) -> int:
    body = {
        "tenant": arguments.tenant, "kind": arguments.kind, "name": arguments.name, "amount_minor": arguments.amount,
        "currency": arguments.currency, "priority": arguments.priority, "effective_at_ns": arguments.effective,
        "expires_at_ns": arguments.expires, "new": arguments.new,
    }  # fmt: skip
    return _credits_left(arguments, billing().post("api/credits", body))


def perform_refund_credit(arguments: argparse.Namespace) -> int:
    body = {"amount_minor": arguments.amount, "reason": arguments.reason}
    return _credits_left(arguments, billing().post(f"api/credits/{arguments.credit}/refund", body))


def _credits_left(arguments: argparse.Namespace, row: Mapping[str, Any]) -> int:
    return show(arguments, row, lambda: f"Of the credit {row['id']} of {row['tenant']}, {row['left']} {row['currency']} is left.")


def _query(given: Mapping[str, str | None]) -> str:
    text = urllib.parse.urlencode({name: value for name, value in given.items() if value is not None})
    return f"?{text}" if text else ""


def _day(text: str) -> int:
    """The start of a day in UTC, in nanoseconds of Unix time."""
    try:
        return int(datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).timestamp()) * NS_PER_SECOND
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no day; write it as YYYY-MM-DD") from None


def _date(time_ns: int) -> str:
    return f"{datetime.fromtimestamp(time_ns // NS_PER_SECOND, UTC):%Y-%m-%d}"

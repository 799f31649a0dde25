"""``forebay admin tenants``: how tenants stand at billing, and whom and how they are invoiced."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from forebay.errors import ForebayError
from forebay.toolkit import pool
from forebay.toolkit.billing import billing

from forebay_admin import amounts
from forebay_admin.actions import Parsers, action, asked, cells, part, show, things

HEADERS = ["Tenant", "Billed in", "This month", "At its end", "Owed", "Held", "Credit", "Tax", "Invoiced to"]
PROFILE = {"legal_name": "--legal-name", "address": "--address", "tax_id": "--tax-id", "email": "--email", "tax_label": "--tax-name"}


def add_to(parent: Parsers) -> None:
    """Adds the subcommand."""
    actions = things(parent, "tenants", "how tenants stand, and whom and how they are invoiced")
    listing = action(actions, "list", perform_list, "what tenants used this month, owe and have ahead")
    listing.add_argument("--tenant", help="this tenant alone")
    setting = action(actions, "set", perform_set, "change whom invoices are made out to, the tax, or the currency; what is left out stays")
    setting.add_argument("tenant")
    texts = ("name on invoices", "address on invoices", "tax number", "whom Stripe writes to", "name of the tax, such as VAT")
    for option, text in zip(PROFILE.values(), texts, strict=True):
        setting.add_argument(option, metavar="TEXT", help=text)
    setting.add_argument("--tax", type=amounts.bps, metavar="PERCENT", help="rate of the tax, for example 19 or 7.5")
    setting.add_argument("--currency", help="what the tenant is billed in, until its first usage or credit; `default`: as the settings say")


def perform_list(arguments: argparse.Namespace) -> int:
    rows = pool.rows(billing(), asked("api/tenants", [f"tenant={part(arguments.tenant)}"] if arguments.tenant else []))
    return show(arguments, rows, lambda: cells(HEADERS, [_row(row) for row in rows], "No tenant."))


def perform_set(arguments: argparse.Namespace) -> int:
    body: dict[str, Any] = {name: value for name in PROFILE if (value := getattr(arguments, _dest(name))) is not None}
    body |= {} if arguments.tax is None else {"tax_bps": arguments.tax}
    if arguments.currency is not None:
        body["currency"] = None if arguments.currency == "default" else arguments.currency.upper()
    if not body:
        raise ForebayError("Say what to change, for example --tax-name VAT --tax 19; `forebay admin tenants set --help` lists it.")
    made = billing().put(f"api/profiles/{part(arguments.tenant)}", body)
    return show(arguments, made, lambda: f"Version {made['version']} of the profile of {made['tenant']} holds for invoices from now on.")


def _dest(name: str) -> str:
    return PROFILE[name].removeprefix("--").replace("-", "_")


def _row(row: Mapping[str, Any]) -> list[object]:
    tax = f"{row['tax_label']} {amounts.percent(row['tax_bps'])}" if row["tax_bps"] else None
    month, balances = row["month"], row["balances"]
    return [
        *(row["tenant"], row["currency"], _sums(month, "spent_nano"), _sums(month, "forecast_nano")),
        *(_sums(balances, name) for name in ("owed_nano", "held_nano", "credit_nano")),
        *(tax, row["legal_name"]),
    ]


def _sums(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    return ", ".join(f"{amounts.money(row[name])} {row['currency']}" for row in rows if row[name])

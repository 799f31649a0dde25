"""``forebay admin budgets``: limits of what tenants, users and notebooks may spend, and what they told of."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from forebay.errors import ForebayError
from forebay.toolkit import pool
from forebay.toolkit.billing import billing

from forebay_admin import amounts
from forebay_admin.actions import Parsers, action, asked, cells, part, show, things, time_text

Row = Mapping[str, Any]
BUDGET_HEADERS = ["Id", "Of", "Currency", "Period", "Limit", "Spent", "Running", "Left", "Forecast", "At the limit", "State"]
ALERT_HEADERS = ["When", "Of", "Period", "Reached", "Used", "Limit", "Currency"]


def add_to(parent: Parsers) -> None:
    """Adds the subcommand."""
    actions = things(parent, "budgets", "limits of what tenants, users and notebooks may spend")
    listing = action(actions, "list", perform_list, "all budgets, and how they stand")
    listing.add_argument("--tenant", help="of this tenant alone")
    listing.add_argument("--user", help="of this user alone")
    setting = action(actions, "set", perform_set, "make a budget, or change the one that there is for the same")
    setting.add_argument("tenant")
    setting.add_argument("limit", type=amounts.nano, metavar="AMOUNT", help="for example 250.00, in the tenant's currency")
    _add_subject(setting)
    setting.add_argument("--total", action="store_true", help="for all time (default: for each month, in UTC)")
    setting.add_argument("--at-limit", choices=["notify", "refuse", "drain"], default="notify", help="default: notify")
    setting.add_argument("--grace", type=amounts.count, metavar="SECONDS", help="what a drained lease gets to come to an end")
    setting.add_argument("--warn", type=amounts.count, nargs="+", metavar="PERCENT", help="default: 50 80 100")
    setting.add_argument("--new", action="store_true", help="nothing was ever recorded for the tenant")
    removal = action(actions, "remove", perform_remove, "remove a budget")
    removal.add_argument("id", type=amounts.count)
    alerts = action(actions, "alerts", perform_alerts, "what was told of, the latest first")
    alerts.add_argument("--tenant", help="of this tenant alone")


def _add_subject(command: argparse.ArgumentParser) -> None:
    command.add_argument("--user", help="of this user of the tenant (default: of all together)")
    command.add_argument("--notebook", metavar="PATH", help="of this notebook, or script, of that user")


def perform_list(arguments: argparse.Namespace) -> int:
    query = [f"{name}={part(value)}" for name in ("tenant", "user") if (value := getattr(arguments, name))]
    budgets = pool.rows(billing(), asked("api/budgets", query))
    return show(arguments, budgets, lambda: cells(BUDGET_HEADERS, [_budget(budget) for budget in budgets], "No budget."))


def perform_set(arguments: argparse.Namespace) -> int:
    if arguments.notebook and not arguments.user:
        raise ForebayError("A notebook is one user's: say whose with --user.")
    body: dict[str, Any] = {"tenant": arguments.tenant, "limit_nano": arguments.limit, "on_limit": arguments.at_limit, "new": arguments.new}
    body |= {name: value for name in ("user", "notebook") if (value := getattr(arguments, name))}
    body |= {"window": "total"} if arguments.total else {}
    body |= {} if arguments.grace is None else {"grace_seconds": arguments.grace}
    body |= {} if arguments.warn is None else {"thresholds": arguments.warn}
    budget = billing().put("api/budgets", body)
    return show(arguments, budget, lambda: f"Budget {budget['id']} is set.")


def perform_remove(arguments: argparse.Namespace) -> int:
    removed = billing().delete(f"api/budgets/{arguments.id}")
    return show(arguments, removed, lambda: f"Budget {arguments.id} is removed.")


def perform_alerts(arguments: argparse.Namespace) -> int:
    alerts = pool.rows(billing(), asked("api/alerts", [f"tenant={part(arguments.tenant)}"] if arguments.tenant else []))
    return show(arguments, alerts, lambda: cells(ALERT_HEADERS, [_alert(alert) for alert in alerts], "Nothing was told of."))


def _of(row: Row) -> str:
    return " ".join(str(row[name]) for name in ("tenant", "user", "notebook") if row.get(name))


def _budget(budget: Row) -> list[object]:
    spent, running, left, forecast = (_amount(budget[f"{name}_nano"]) for name in ("spent", "running", "left", "forecast"))
    period = budget["period"] or budget["window"]
    at_limit = budget["on_limit"] + (f" ({budget['grace_seconds']} s)" if budget["on_limit"] == "drain" else "")
    return [
        *(budget["id"], _of(budget), budget["currency"], period, _amount(budget["limit_nano"])),
        *(spent, running, left, forecast, at_limit, budget["state"]),
    ]


def _alert(alert: Row) -> list[object]:
    used, limit = (_amount(alert[f"{name}_nano"]) for name in ("used", "limit"))
    return [time_text(alert["at_ns"]), _of(alert), alert["period"], f"{alert['threshold']} %", used, limit, alert["currency"]]


def _amount(nano: int | None) -> str | None:
    return None if nano is None else amounts.money(nano)

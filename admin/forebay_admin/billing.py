"""``forebay admin prices``, ``plans`` and ``audit``: what operators do at billing."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from forebay.errors import ForebayError
from forebay.service import Service
from forebay.toolkit import pool, table
from forebay.toolkit.billing import billing as billing_service

from forebay_admin import amounts
from forebay_admin.actions import EPOCH, Parsers, action, asked, cells, part, show, things, time_text

Row = Mapping[str, Any]
HOUR_SECONDS = 3600
PRICE_HEADERS = ["Flavor", "Rate", "Nano-units/h", "Valid from", "Version", "Changed by"]
SURCHARGE_HEADERS = ["Model", "Rate", "Nano-units/h", "Valid from", "Version", "Changed by"]
PARKED_HEADERS = ["Currency", "Per GiB and hour", "Valid from", "Version", "Changed by"]
CHANGE_HEADERS = ["What", "Currency", "Unit", "Before", "After", "Valid from"]
PLAN_HEADERS = ["Tenant", "From", "Version", "Currency", "Discount", "Free", "Free hours", "Tiers", "Commitment", "Changed by"]
PREVIEW_HEADERS = ["Tenant", "Currency", "List price", "Came to", "List price then", "Would come to", "Difference"]
AUDIT_HEADERS = ["When", "Who", "Action", "Subject", "Before", "After"]
CELL_CHARS_MAX = 60


def add_to(parent: Parsers) -> None:
    """Adds the subcommands."""
    _add_prices(things(parent, "prices", "what flavors, models of devices and parked bytes cost"))
    _add_plans(things(parent, "plans", "what tenants agreed on beside the list price"))
    audit = action(parent, "audit", perform_audit, "who changed what at billing, newest first, and what was refused")
    for name in ("who", "action", "subject"):
        audit.add_argument(f"--{name}", help="only these")
    audit.add_argument("--limit", type=int, default=50, metavar="N", help="so many at most (default: 50)")


def _add_prices(actions: Parsers) -> None:
    listing = action(actions, "list", perform_prices, "prices in force, or all there ever were")
    listing.add_argument("--flavor", help="of this flavor alone")
    listing.add_argument("--history", action="store_true", help="all versions, oldest first")
    setting = action(actions, "set", perform_set_price, "set the price of a flavor; open leases pay it from its moment on")
    setting.add_argument("flavor")
    amount = setting.add_mutually_exclusive_group(required=True)
    amount.add_argument("--per-hour", type=amounts.per_hour, dest="nano", metavar="AMOUNT", help="for example 2.16; it must be exact")
    amount.add_argument("--nano", type=amounts.count, metavar="N", help="in nano-units (1e-9) per hour")
    setting.add_argument("--currency", required=True, metavar="CODE", help="for example USD")
    setting.add_argument("--from", type=_time_ns, dest="start", metavar="TIME", help="2026-12-01T00:00:00Z (default: at once)")
    setting.add_argument("--new", action="store_true", help="this is the first price of the flavor")
    surcharges = things(actions, "surcharges", "what models of devices cost beside the flavor, per whole device")
    listing = action(surcharges, "list", perform_surcharges, "surcharges in force, or all there ever were")
    listing.add_argument("--history", action="store_true", help="all versions, oldest first")
    setting = action(surcharges, "set", perform_set_surcharge, "set what a model costs; open leases pay it from its moment on")
    setting.add_argument("model")
    amount = setting.add_mutually_exclusive_group(required=True)
    amount.add_argument("--per-hour", type=amounts.per_hour, dest="nano", metavar="AMOUNT", help="for example 0.36; it must be exact")
    amount.add_argument("--nano", type=amounts.count, metavar="N", help="in nano-units (1e-9) per hour")
    setting.add_argument("--currency", required=True, metavar="CODE", help="for example USD")
    setting.add_argument("--from", type=_time_ns, dest="start", metavar="TIME", help="2026-12-01T00:00:00Z (default: at once)")
    parked = things(actions, "parked", "what a GiB costs in an hour in which it is parked")
    action(parked, "list", perform_parked, "all versions, oldest first")
    setting = action(parked, "set", perform_set_parked, "set the price of parked bytes")
    setting.add_argument("currency")
    setting.add_argument("--per-gib-hour", required=True, type=amounts.nano, metavar="AMOUNT", help="for example 0.00005")
    setting.add_argument("--from", type=_time_ns, dest="start", metavar="TIME", help="2026-12-01T00:00:00Z (default: at once)")
    export = action(actions, "export", perform_export, "write the price list, in YAML")
    export.add_argument("file", nargs="?", type=Path, help="where to (default: standard output)")
    for name, perform, text in (
        ("diff", perform_diff, "tell what a price list would change"),
        ("apply", perform_apply, "make the prices what a price list says, all of it or nothing"),
    ):
        command = action(actions, name, perform, text)
        command.add_argument("file", type=Path)
    preview = action(actions, "preview", perform_preview, "tell what a month would have cost at other prices")
    preview.add_argument("--list", type=Path, metavar="FILE", help="at the prices of this price list")
    preview.add_argument("--set", type=_proposed, action="append", default=[], metavar="FLAVOR=PER_HOUR", help="may be repeated")
    preview.add_argument("--currency", default="USD", metavar="CODE", help="of --set (default: USD)")
    preview.add_argument("--tenant", help="of this tenant alone")
    preview.add_argument("--month", metavar="YYYY-MM", help="default: the last one")


def _add_plans(actions: Parsers) -> None:
    listing = action(actions, "list", perform_plans, "plans in force, or all there ever were")
    listing.add_argument("--tenant", help="of this tenant alone")
    listing.add_argument("--month", metavar="YYYY-MM", help="in force in this month (default: the present one)")
    listing.add_argument("--history", action="store_true", help="all versions, oldest first")
    setting = action(actions, "set", perform_set_plan, "replace a tenant's plan from a month on; what is left out is nothing")
    _add_terms(setting)
    setting.add_argument("--from", required=True, dest="start", metavar="YYYY-MM", help="the first month, in UTC")
    setting.add_argument("--new", action="store_true", help="nothing was ever recorded for the tenant")
    preview = action(actions, "preview", perform_preview_plan, "tell what a tenant's month would have cost with another plan")
    _add_terms(preview)
    preview.add_argument("--month", metavar="YYYY-MM", help="default: the last one")


def _add_terms(command: argparse.ArgumentParser) -> None:
    command.add_argument("tenant")
    command.add_argument("--currency", required=True, metavar="CODE", help="in which the tenant is billed")
    command.add_argument("--discount", type=amounts.bps, default=0, metavar="PERCENT", help="off all that is left")
    command.add_argument("--free", type=amounts.nano, default=0, metavar="AMOUNT", help="so much of the list price, a month")
    command.add_argument("--free-hours", type=_free, action="append", default=[], metavar="FLAVOR=HOURS", help="may be repeated")
    command.add_argument("--tier", type=_tier, action="append", default=[], metavar="AMOUNT=PERCENT", help="may be repeated, in order")
    command.add_argument("--commitment", type=amounts.nano, default=0, metavar="AMOUNT", help="the month costs this at least")


# Prices


def perform_prices(arguments: argparse.Namespace) -> int:
    query = [f"flavor={part(arguments.flavor)}"] if arguments.flavor else []
    query += ["history=1"] if arguments.history else []
    prices = pool.rows(billing_service(), asked("api/prices", query))
    return show(arguments, prices, lambda: cells(PRICE_HEADERS, [_price(price) for price in prices], "No price."))


def _price(price: Row) -> list[object]:
    nano = price["price_nano_per_hour"]
    start = time_text(price["valid_from_ns"])
    return [price["flavor"], table.rate(nano, price["currency"]), nano, start, price["version"], price.get("changed_by")]


def perform_set_price(arguments: argparse.Namespace) -> int:
    body: dict[str, Any] = {"price_nano_per_hour": arguments.nano, "currency": arguments.currency, "new": arguments.new}
    if arguments.start is not None:
        body["valid_from_ns"] = arguments.start
    price = billing_service().put(f"api/prices/{part(arguments.flavor)}", body)
    return show(arguments, price, lambda: cells(PRICE_HEADERS, [_price(price)], ""))


def perform_surcharges(arguments: argparse.Namespace) -> int:
    found = pool.rows(billing_service(), asked("api/surcharges", ["history=1"] if arguments.history else []))
    return show(arguments, found, lambda: cells(SURCHARGE_HEADERS, [_surcharge(one) for one in found], "No model costs more."))


def _surcharge(version: Row) -> list[object]:
    nano, start = version["surcharge_nano_per_hour"], time_text(version["valid_from_ns"])
    return [version["model"], table.rate(nano, version["currency"]), nano, start, version["version"], version["changed_by"]]


def perform_set_surcharge(arguments: argparse.Namespace) -> int:
    body: dict[str, Any] = {"surcharge_nano_per_hour": arguments.nano, "currency": arguments.currency}
    if arguments.start is not None:
        body["valid_from_ns"] = arguments.start
    version = billing_service().put(f"api/surcharges/{part(arguments.model)}", body)
    return show(arguments, version, lambda: cells(SURCHARGE_HEADERS, [_surcharge(version)], ""))


def perform_parked(arguments: argparse.Namespace) -> int:
    prices = pool.rows(billing_service(), "api/parked-prices")
    return show(arguments, prices, lambda: cells(PARKED_HEADERS, [_parked(price) for price in prices], "Parked bytes cost nothing."))


def _parked(price: Row) -> list[object]:
    per_gib_hour = amounts.money(price["price_nano_per_gib_hour"])
    return [price["currency"], per_gib_hour, time_text(price["valid_from_ns"]), price["version"], price["changed_by"]]


def perform_set_parked(arguments: argparse.Namespace) -> int:
    body: dict[str, Any] = {"price_nano_per_gib_hour": arguments.per_gib_hour}
    if arguments.start is not None:
        body["valid_from_ns"] = arguments.start
    price = billing_service().put(f"api/parked-prices/{part(arguments.currency)}", body)
    return show(arguments, price, lambda: cells(PARKED_HEADERS, [_parked(price)], ""))


# The price list


def perform_export(arguments: argparse.Namespace) -> int:
    text = billing_service().get_text("api/price-list")
    if arguments.file is None:
        return show(arguments, {"price_list": text}, lambda: text.rstrip("\n"))
    try:
        arguments.file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ForebayError(f"The price list cannot be written to {arguments.file} ({error.strerror}).") from None
    return show(arguments, {"file": str(arguments.file)}, lambda: f"The price list is in {arguments.file}.")


def perform_diff(arguments: argparse.Namespace) -> int:
    answer = billing_service().send_text("POST", "api/price-list/diff", _list(arguments.file))
    return show(arguments, answer, lambda: _changes(answer, "The price list changes nothing."))


def perform_apply(arguments: argparse.Namespace) -> int:
    answer = billing_service().send_text("PUT", "api/price-list", _list(arguments.file))
    return show(arguments, answer, lambda: _changes(answer, "The price list changed nothing."))


def _changes(answer: Row, nothing: str) -> str:
    rows = [_change(change) for change in answer["changes"]]
    return cells(CHANGE_HEADERS, rows, nothing)


def _change(change: Row) -> list[object]:
    what, start = change["flavor"] or change["model"] or change["kind"], time_text(change["valid_from_ns"])
    what = f"surcharge of {what}" if change["model"] else what
    return [what, change["currency"], change["unit"], change["before"], change["after"], start]


def _list(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ForebayError(f"The price list {file} cannot be read ({getattr(error, 'strerror', None) or 'it is not UTF-8'}).") from None


# Previews


def perform_preview(arguments: argparse.Namespace) -> int:
    prices = [{"flavor": flavor, "currency": arguments.currency, "price_nano_per_hour": nano} for flavor, nano in arguments.set]
    body: dict[str, Any] = {"prices": prices, "tenant": arguments.tenant}
    if arguments.list is not None:
        body["price_list"] = _list(arguments.list)
    return _preview(arguments, billing_service(), body)


def perform_preview_plan(arguments: argparse.Namespace) -> int:
    return _preview(arguments, billing_service(), {"plans": {arguments.tenant: _terms(arguments)}, "tenant": arguments.tenant})


def _preview(arguments: argparse.Namespace, service: Service, body: Row) -> int:
    answer = service.post("api/preview", {**body, "month": arguments.month})
    rows = [
        [
            *(row["tenant"], row["currency"]),
            *(amounts.money(row[then][what]) for then in ("present", "proposed") for what in ("list_nano", "total_nano")),
            amounts.money(row["difference_nano"]),
        ]
        for row in answer["rows"]
    ]
    for total in answer["totals"]:
        present, proposed, difference = (amounts.money(total[f"{name}_nano"]) for name in ("present", "proposed", "difference"))
        rows.append(["all", total["currency"], None, present, None, proposed, difference])
    return show(arguments, answer, lambda: cells(PREVIEW_HEADERS, rows, f"Nothing was used in {answer['month']}."))


# Plans


def perform_plans(arguments: argparse.Namespace) -> int:
    query = [f"{name}={part(value)}" for name in ("tenant", "month") if (value := getattr(arguments, name))]
    query += ["history=1"] if arguments.history else []
    plans = pool.rows(billing_service(), asked("api/plans", query))
    return show(arguments, plans, lambda: cells(PLAN_HEADERS, [_plan(plan) for plan in plans], "All pay the list price."))


def _plan(plan: Row) -> list[object]:
    free = ", ".join(f"{flavor}={amounts.decimal(Decimal(seconds) / HOUR_SECONDS)}" for flavor, seconds in plan["free_seconds"].items())
    tiers = ", ".join(f"{amounts.money(tier['from_nano'])}={amounts.percent(tier['discount_bps'])}" for tier in plan["tiers"])
    return [
        *(plan["tenant"], plan["valid_from"], plan["version"], plan["currency"], amounts.percent(plan["discount_bps"])),
        *(amounts.money(plan["free_nano"]), free, tiers, amounts.money(plan["commitment_nano"]), plan["changed_by"]),
    ]


def perform_set_plan(arguments: argparse.Namespace) -> int:
    body = {**_terms(arguments), "valid_from": arguments.start, "new": arguments.new}
    plan = billing_service().put(f"api/plans/{part(arguments.tenant)}", body)
    return show(arguments, plan, lambda: cells(PLAN_HEADERS, [_plan(plan)], ""))


def _terms(arguments: argparse.Namespace) -> dict[str, Any]:
    return {
        "currency": arguments.currency,
        "discount_bps": arguments.discount,
        "free_nano": arguments.free,
        "free_seconds": dict(arguments.free_hours),
        "tiers": [{"from_nano": nano, "discount_bps": bps} for nano, bps in arguments.tier],
        "commitment_nano": arguments.commitment,
    }


# The audit


def perform_audit(arguments: argparse.Namespace) -> int:
    query = [f"{name}={part(value)}" for name in ("who", "action", "subject") if (value := getattr(arguments, name))]
    answer = billing_service().get(asked("api/audit", [*query, f"limit={arguments.limit}"]))
    return show(arguments, answer, lambda: cells(AUDIT_HEADERS, [_entry(entry) for entry in answer["entries"]], "Nothing was changed."))


def _entry(entry: Row) -> list[object]:
    """What is the same before and after is left out; ``--json`` has all of it."""
    before, after = entry["before"] or {}, entry["after"]
    if "message" in after:
        return [time_text(entry["at_ns"]), entry["who"], entry["action"], entry["subject"], None, _cut(after["message"])]
    changed = [name for name in after if before.get(name) != after[name] and name not in ("changed_at_ns", "changed_by")]
    sides = [", ".join(f"{name} {side[name]}" for name in changed if name in side) for side in (before, after)]
    return [time_text(entry["at_ns"]), entry["who"], entry["action"], entry["subject"], *map(_cut, sides)]


def _cut(text: str) -> str:
    return text if len(text) <= CELL_CHARS_MAX else text[: CELL_CHARS_MAX - 1] + "…"


# What people read and write


def _time_ns(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; write for example 2026-12-01T00:00:00Z") from None
    if moment.tzinfo is None:
        raise argparse.ArgumentTypeError(f"{text!r} has no time zone; write Z after it for UTC")
    return (moment - EPOCH) // timedelta(microseconds=1) * 1000


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.rpartition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} has no = between its two parts")
    return name, value


def _proposed(text: str) -> tuple[str, int]:
    flavor, amount = _pair(text)
    return flavor, amounts.per_hour(amount)


def _free(text: str) -> tuple[str, int]:
    flavor, hours = _pair(text)
    return flavor, amounts.whole_of(hours, HOUR_SECONDS, 1, "seconds")


def _tier(text: str) -> tuple[int, int]:
    amount, percent = _pair(text)
    return amounts.nano(amount), amounts.bps(percent)


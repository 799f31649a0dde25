"""What of an invoice can be checked without a record: each line's cost and rounding, their order, and the sums."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from fractions import Fraction

from forebay.toolkit.invoices.findings import Finding
from forebay.toolkit.invoices.invoice import Invoice, Line, UsageLine
from forebay.toolkit.invoices.money import BPS, EXACT_DECIMALS, cost, decimals_of, text_of

PLAN_KINDS = ("free_time", "free_money", "tiers", "discount", "commitment")
USAGE_KINDS = ("usage", "correction", "parked")
CREDIT_KINDS = ("promotional", "prepaid", "carried")
KIND_ORDER = ("leases", "parked", "plan", "promotional", "tax", "prepaid", "carried")
KEY_CHARACTERS = 16


def check(invoice: Invoice) -> Iterator[Finding]:
    """What is wrong with it in itself."""
    for position, line in enumerate(invoice.lines):
        yield from _check_line(invoice, line, invoice.place(position))
    yield from _check_order(invoice)
    yield from _check_tax(invoice)
    yield from _check_totals(invoice)


def rate_of(usage: UsageLine) -> int:
    """Nano-units an hour."""
    return usage.price_nano_per_hour + usage.surcharge_nano_per_hour


def _check_line(invoice: Invoice, line: Line, place: str) -> Iterator[Finding]:
    decimals = decimals_of(invoice.total)
    exact = Fraction(line.cost_exact)
    usage = line.usage
    if usage is not None:
        exact = cost(usage.duration_ns, rate_of(usage))
        if line.cost_exact != text_of(exact, EXACT_DECIMALS):
            right = f"{usage.duration_ns} ns at {rate_of(usage)} nano-units an hour cost {text_of(exact, EXACT_DECIMALS)}"
            yield Finding("cost", place, f"{right}, not {line.cost_exact}.")
        yield from _check_names(invoice, line, usage, place)
    rounded = text_of(exact, decimals)
    if line.amount != rounded or line.amount_minor != round(exact * 10**decimals):
        yield Finding("rounding", place, f"It costs {rounded}, and asks for {line.amount} ({line.amount_minor} of the smallest coin).")


def _check_names(invoice: Invoice, line: Line, usage: UsageLine, place: str) -> Iterator[Finding]:
    correction = line.kind == "correction"
    of = (usage.user, usage.flavor, invoice.currency, usage.price_version, usage.surcharge_nano_per_hour, correction, usage.late)
    key = hashlib.sha256("\n".join(map(str, of)).encode()).hexdigest()[:KEY_CHARACTERS]
    if line.key != key:
        yield Finding("key", place, f"Its key is {line.key}; that of what it is of would be {key}.")
    label = f"{usage.flavor} for {usage.user}" + (" (late)" if usage.late else "") + (" (correction)" if correction else "")
    if line.label != label or line.kind not in ("usage", "correction"):
        yield Finding("label", place, f"It is of {label}.")


def _check_order(invoice: Invoice) -> Iterator[Finding]:
    places = [_place(line) for line in invoice.lines]
    wrong = next((position for position in range(1, len(places)) if places[position] < places[position - 1]), None)
    if wrong is not None:
        yield Finding("order", invoice.place(wrong), "It stands after a line that it comes before.")


def _place(line: Line) -> tuple[int, tuple[str, str, int, int, bool, bool] | tuple[()]]:
    usage = line.usage
    if usage is not None:
        of = (usage.user, usage.flavor, usage.price_version, usage.surcharge_nano_per_hour, usage.late, line.kind == "correction")
        return KIND_ORDER.index("leases"), of
    kind = "plan" if line.kind in PLAN_KINDS else line.kind
    return (KIND_ORDER.index(kind) if kind in KIND_ORDER else len(KIND_ORDER)), ()


def _check_tax(invoice: Invoice) -> Iterator[Finding]:
    profile = invoice.profile
    if profile is None:
        return
    lines = [line for line in invoice.lines if line.kind == "tax"]
    taxed = sum(line.amount_minor for line in invoice.lines if line.kind in (*USAGE_KINDS, *PLAN_KINDS, "promotional"))
    due = text_of(Fraction(taxed * profile.tax_bps, BPS * 10 ** decimals_of(invoice.total)), EXACT_DECIMALS)
    found = [line.cost_exact for line in lines]
    if found != ([due] if profile.tax_label else []):
        right = due if profile.tax_label else "none"
        yield Finding("tax", invoice.name, f"The tax is {right}; the invoice has {', '.join(found) or 'none'}.")


def _check_totals(invoice: Invoice) -> Iterator[Finding]:
    decimals = decimals_of(invoice.total)
    sums = {
        "net": _sum(invoice, *USAGE_KINDS, *PLAN_KINDS),
        "credit": _sum(invoice, *CREDIT_KINDS),
        "tax": _sum(invoice, "tax"),
        "total": sum(line.amount_minor for line in invoice.lines),
    }
    for name, minor in sums.items():
        text = text_of(Fraction(minor, 10**decimals), decimals)
        if getattr(invoice, name) != text:
            yield Finding("total", invoice.name, f"The lines sum to a {name} of {text}, not {getattr(invoice, name)}.")
    if invoice.total_minor != sums["total"]:
        yield Finding("total", invoice.name, f"The lines sum to {sums['total']} of the smallest coin, not {invoice.total_minor}.")


def _sum(invoice: Invoice, *kinds: str) -> int:
    return sum(line.amount_minor for line in invoice.lines if line.kind in kinds)


def sum_text(invoice: Invoice, lines: list[Line]) -> str:
    """What lines ask for together."""
    decimals = decimals_of(invoice.total)
    return text_of(Fraction(sum(line.amount_minor for line in lines), 10**decimals), decimals)

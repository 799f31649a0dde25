"""What who administers a tenant had better do about its money, the most pressing first. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from forebay_service.languages import Text

from forebay_dashboards.rows.billing import BudgetRow, CreditRow, InvoiceRow, Profile
from forebay_dashboards.text.times import moment

SOON_NS = 30 * 86_400 * 10**9
"""A credit that expires within it is told of."""


@dataclass(frozen=True)
class Step:
    """A sentence, and where it is done: a path under the prefix, an address elsewhere, or nothing to press."""

    sentence: Text
    label: Text | None = None
    path: str = ""
    address: str = ""
    pressing: bool = False


def next_steps(
    invoices: Sequence[InvoiceRow] | None, credits: Sequence[CreditRow] | None, budgets: Sequence[BudgetRow] | None,
    profile: Profile | None, pay_at: Mapping[str, str], now_ns: int,
) -> list[Step]:  # fmt: skip
    """Of what could be read; None is what could not. ``pay_at`` is where an invoice can be paid, by its number."""
    found = [_of_invoice(one, pay_at.get(one.number, ""), now_ns) for one in invoices or () if one.state == "open"]
    found += [
        Step(Text("A budget stops work: %(name)s.", name=one.of), Text("Raise it"), "tenant/budgets", pressing=True)
        for one in budgets or ()
        if one.state != "open"
    ]
    if profile is not None and not profile.legal_name:
        found.append(Step(Text("Invoices are made out to nobody yet: say to whom."), Text("Fill in"), "tenant/bills#profile"))
    found += [_of_credit(one) for one in credits or () if one.left_minor > 0 and now_ns < (one.expires_at_ns or 0) < now_ns + SOON_NS]
    return sorted(found, key=lambda step: not step.pressing)


def _of_invoice(invoice: InvoiceRow, address: str, now_ns: int) -> Step:
    day, late = f"{moment(invoice.due_at_ns):%Y-%m-%d}", invoice.due_at_ns < now_ns
    values = {"number": invoice.number, "amount": invoice.open, "currency": invoice.currency, "day": day}
    due = (
        Text("Invoice %(number)s is overdue: %(amount)s %(currency)s were due on %(day)s.", **values)
        if late
        else Text("Invoice %(number)s is open: %(amount)s %(currency)s are due on %(day)s.", **values)
    )
    if address:
        return Step(due, Text("Pay"), address=address, pressing=late)
    said = Text("%(due)s Pay as the invoice says, and name its number.", due=due)
    return Step(said, Text("Open"), f"invoice?number={invoice.number}&format=html", pressing=late)


def _of_credit(credit: CreditRow) -> Step:
    day = f"{moment(credit.expires_at_ns or 0):%Y-%m-%d}"
    values = {"name": credit.name, "left": credit.left, "currency": credit.currency, "day": day}
    return Step(
        Text("Of the credit “%(name)s” %(left)s %(currency)s are left, which expire on %(day)s. Usage takes them by itself.", **values)
    )

"""What tenants are asked for, by the accountant's own arithmetic: lines rounded once, credits used up, notes taken back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, text
from stripe_emulator import Emulator

from simulation.auditor import Caught
from simulation.money.rounding import nearest

Key = tuple[str, str, str]
"""Tenant, month and currency of an invoice."""
Lines = Mapping[Key, Mapping[Any, int]]
"""Atto-units of each line of it."""


@dataclass(frozen=True)
class Bill:
    """An invoice as it ought to be. Amounts are in the currency's smallest coin."""

    name: str
    key: Key
    total: int
    notes: Mapping[str, int]
    used: int
    """Of credits."""
    late: bool
    """Whether there is usage of an earlier month in it."""

    @property
    def open(self) -> int:
        return self.total - sum(self.notes.values())


def bills_of(connection: Connection, lines: Lines, coins: Mapping[str, int], granted: Iterable[int], noted: Iterable[int]) -> list[Bill]:
    """All that were finalised; raises Caught. ``granted`` and ``noted`` are the amounts of the operator's credits and notes.

    Every credit of the simulator is good for ever, so that each invoice takes what it can of what is left when it is made.
    """
    grants = connection.execute(text("SELECT * FROM credit_grants WHERE granted_by = 'operator' ORDER BY id")).all()
    _same("credits", sorted(row.amount_minor for row in grants), sorted(granted))
    notes = connection.execute(text("SELECT * FROM credit_notes ORDER BY id")).all()
    _same("credit notes", sorted(row.amount_minor for row in notes), sorted(noted))
    rows = connection.execute(text("SELECT * FROM invoices ORDER BY id")).all()
    for series in (rows, notes):
        _same("numbers", [row.number for row in series], list(range(1, len(series) + 1)))
    left: dict[tuple[str, str], int] = defaultdict(int)
    waiting, made = list(grants), []
    for row in rows:
        while waiting and waiting[0].granted_at_ns < row.issued_at_ns:
            grant = waiting.pop(0)
            left[grant.tenant, grant.currency] += grant.amount_minor
        key = (row.tenant, row.period, row.currency)
        net = sum(nearest(atto, coins[row.tenant]) for atto in lines.get(key, {}).values())
        used = min(max(0, net), left[row.tenant, row.currency])
        left[row.tenant, row.currency] += max(0, -net) - used
        wanted = (net, max(0, -net) - used, 0, max(0, net - used))
        _same(row.name, (row.net_minor, row.credit_minor, row.tax_minor, row.total_minor), wanted)
        mine = {note.name: note.amount_minor for note in notes if note.invoice_id == row.id}
        made.append(Bill(row.name, key, wanted[3], mine, used, any("late" in line for line in lines.get(key, {}))))
    if len({bill.key for bill in made}) != len(made):
        raise Caught("a month was invoiced twice")
    return made


def check_all_closed(bills: Iterable[Bill], lines: Lines, month: str) -> None:
    """Every month before ``month`` in which something was used or taken back has its invoice. Raises Caught."""
    for key in sorted(lines.keys() - {bill.key for bill in bills}):
        if key[1] < month:
            raise Caught(f"{key} was never invoiced")


def check_grants(emulator: Emulator, connection: Connection) -> None:
    """Each grant of the books is mirrored once. Raises Caught."""
    rows = connection.execute(text("SELECT * FROM credit_grants")).all()
    there = [(grant["metadata"]["forebay_grant"], grant["amount"]["monetary"]["value"]) for grant in _of(emulator, "billing.credit_grant")]
    _same("Stripe's grants", sorted(there), sorted((f"CR-{row.id:06d}", row.amount_minor) for row in rows))


def check_items(emulator: Emulator, bills: Iterable[Bill]) -> None:
    """Where meters tell Stripe of usage, notes are items of its own next invoice. Raises Caught."""
    items = [(item["metadata"].get("forebay_credit_note"), item["amount"]) for item in _of(emulator, "invoiceitem")]
    wanted = [(name, -amount) for bill in bills for name, amount in bill.notes.items()]
    _same("Stripe's items of credit notes", sorted(item for item in items if item[0] is not None), sorted(wanted))
    _same("Stripe's invoices by us", _of(emulator, "invoice"), [])


def check_invoices(emulator: Emulator, bills: Iterable[Bill]) -> None:
    """Each invoice is there once, finalised, with the same total and the same notes. Raises Caught."""
    known = list(bills)
    there = [(invoice["metadata"]["forebay_invoice"], invoice["total"]) for invoice in _of(emulator, "invoice")]
    _same("Stripe's invoices", sorted(there), sorted((bill.name, bill.total) for bill in known))
    _same("Stripe's drafts", [invoice for invoice in _of(emulator, "invoice") if invoice["status"] == "draft"], [])
    notes = [(note["metadata"]["forebay_credit_note"], note["amount"]) for note in _of(emulator, "credit_note")]
    _same("Stripe's credit notes", sorted(notes), sorted(pair for bill in known for pair in bill.notes.items()))
    _same("Stripe's meter events", emulator.meters.counted, [])


def _of(emulator: Emulator, kind: str) -> list[Any]:
    return list(emulator.account.of(kind))


def _same(what: str, found: Any, wanted: Any) -> None:
    if found != wanted:
        raise Caught(f"{what}: {found}, and it ought to be {wanted}")

"""What tenants are asked for, by the accountant's own arithmetic: lines rounded once, plans, credits, tax, notes and payments."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, text
from stripe_emulator import Emulator

from simulation.auditor import Caught
from simulation.money.months import end_ns, month_of, months_between, start_ns
from simulation.money.rounding import nearest
from simulation.money.tariffs import BPS, NANO, Terms, changes, terms_in
from simulation.money.vouchers import HOUR_NS, Voucher, pays

Key = tuple[str, str, str]
"""Tenant, month and currency of an invoice."""
FOR_EVER_NS = 2**63
GRACE_NS = 3 * 24 * HOUR_NS
"""So long after its end a month is closed by the clock, and what lapsed in it is written off."""


@dataclass
class Sheet:
    """What a tenant used that an invoice is about, exactly."""

    lines: dict[Any, int] = field(default_factory=lambda: defaultdict(int))
    """Grains of each line."""
    held: dict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))
    """For how long each flavor was held at each rate."""
    parked: int = 0
    """Grains of parked bytes."""
    hours: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """Grains used in each hour, by its start."""


Sheets = Mapping[Key, Sheet]


@dataclass(frozen=True)
class Rules:
    """What the operator set, as it was taken: amounts of credits and notes, versions of plans, taxes by tenant in their order."""

    coins: Mapping[str, int]
    """Grains of each tenant's smallest coin."""
    granted: Sequence[int]
    noted: Sequence[int]
    refunded: Sequence[tuple[int, int | None]]
    """Credit, and how much of it; None is all that was left."""
    plans: Sequence[Terms]
    taxes: Sequence[tuple[str, int]]
    settled: Sequence[tuple[str, str, int]]
    """Kind, invoice and amount of what the operator wrote down; a void has no amount, and 0 here."""


@dataclass(frozen=True)
class Bill:
    """An invoice as it ought to be. Amounts are in the currency's smallest coin."""

    name: str
    key: Key
    total: int
    tax: int
    tax_left: int
    """What was not taken back of the tax."""
    planned: int
    """What the plan changed."""
    notes: Mapping[str, int]
    used: int
    """Of credits."""
    carried: int
    late: bool
    """Whether there is usage of an earlier month in it."""
    paid: int
    """What came in, less what went back."""
    voided: int

    @property
    def open(self) -> int:
        return self.total - sum(self.notes.values()) - self.paid - self.voided


def bills_of(connection: Connection, sheets: Sheets, rules: Rules, now_ns: int) -> list[Bill]:
    """All that were finalised; raises Caught. Transactions grow by one, so they say what was before what."""
    rows = connection.execute(text("SELECT * FROM invoices ORDER BY id")).all()
    notes = connection.execute(text("SELECT * FROM credit_notes ORDER BY id")).all()
    _same("credit notes", sorted(row.amount_minor for row in notes), sorted(rules.noted))
    for series in (rows, notes):
        _same("numbers", [row.number for row in series], list(range(1, len(series) + 1)))
    settled = connection.execute(text("SELECT * FROM settlements ORDER BY id")).all()
    purse, made = _Purse(connection, rules), []
    for row in rows:
        purse.comes_to(row.transaction_id)
        mine = [note for note in notes if note.invoice_id == row.id]
        of_row = [one for one in settled if one.invoice_id == row.id]
        made.append(_bill(connection, row, mine, of_row, sheets.get((row.tenant, row.period, row.currency), Sheet()), rules, purse))
    purse.comes_to(FOR_EVER_NS)
    purse.check_lapsed(now_ns)
    if len({bill.key for bill in made}) != len(made):
        raise Caught("a month was invoiced twice")
    names = {row.id: row.name for row in rows}
    ours = [one for one in settled if one.settled_by == "operator"]
    known = [(one.kind, names[one.invoice_id], 0 if one.kind == "void" else one.amount_minor) for one in ours]
    _same("settlements", sorted(known), sorted(rules.settled))
    return made


def _bill(
    connection: Connection, row: Any, notes: Sequence[Any], settled: Sequence[Any], sheet: Sheet, rules: Rules, purse: _Purse
) -> Bill:
    coin = rules.coins[row.tenant]
    terms = terms_in(rules.plans, row.tenant, row.period)
    planned = [] if terms is None else [nearest(grains, coin) for grains in changes(terms, sheet.held, sheet.parked)]
    net = sum(nearest(grains, coin) for grains in sheet.lines.values()) + sum(planned)
    if not sheet.lines and not any(planned):
        raise Caught(f"{row.name} is an invoice of nothing")
    last_hour_ns = end_ns(row.period) - HOUR_NS
    mine = [voucher for voucher in purse.vouchers if (voucher.tenant, voucher.currency) == (row.tenant, row.currency)]
    first = pays(sheet.hours, net, last_hour_ns, mine)
    gifts = {voucher.id for voucher in mine if not voucher.prepaid}
    taxable = net - sum(amount for id, amount in first.items() if id in gifts)
    tax = nearest(taxable * purse.tax_bps(connection, row), BPS)
    second = pays(sheet.hours, tax, last_hour_ns, [voucher for voucher in mine if voucher.prepaid])
    used = {id: first.get(id, 0) + second.get(id, 0) for id in first.keys() | second.keys()}
    rest = net + tax - sum(used.values())
    carried = max(0, -rest)
    wanted = (net, carried - sum(used.values()), tax, max(0, rest))
    _same(row.name, (row.net_minor, row.credit_minor, row.tax_minor, row.total_minor), wanted)
    moves = connection.execute(text("SELECT * FROM credit_moves WHERE invoice_id = :id"), {"id": row.id}).all()
    _same(f"credits of {row.name}", {move.grant_id: move.amount_minor for move in moves}, used)
    signs = {"payment": 1, "refund": -1, "void": 0}
    voided = sum(one.amount_minor for one in settled if one.kind == "void")
    return Bill(
        row.name, (row.tenant, row.period, row.currency), max(0, rest), tax, _tax_left(tax, taxable + tax, notes, voided), sum(planned),
        {note.name: note.amount_minor for note in notes}, sum(used.values()), carried, any("late" in line for line in sheet.lines),
        sum(signs[one.kind] * one.amount_minor for one in settled), voided,
    )  # fmt: skip


def _tax_left(tax: int, gross: int, notes: Sequence[Any], voided: int) -> int:
    """A coin that is taken back takes back as much tax as is in a coin of the gross amount. Raises Caught."""
    taken = back = 0
    for note in notes:
        taken, back = taken + note.amount_minor, back + note.tax_minor
        _same(f"the tax in credit notes until {note.name}", back, nearest(taken * tax, gross))
    return tax - nearest((taken + voided) * tax, gross) if taken or voided else tax


class _Purse:
    """Credits as they come, are refunded and lapse, in the order of transactions; and the taxes of tenants."""

    def __init__(self, connection: Connection, rules: Rules) -> None:
        self.vouchers: list[Voucher] = []
        self._by_id: dict[int, Voucher] = {}
        grants = connection.execute(text("SELECT * FROM credit_grants ORDER BY id")).all()
        _same("credits", sorted(row.amount_minor for row in grants if row.granted_by == "operator"), sorted(rules.granted))
        moves = connection.execute(text("SELECT * FROM credit_moves WHERE kind <> 'use' ORDER BY id")).all()
        refunds = sorted((row.grant_id, row.amount_minor) for row in moves if row.kind == "refund")
        _same("refunded credits", [id for id, _ in refunds], sorted(id for id, _ in rules.refunded))
        self._waiting = sorted([*grants, *moves], key=lambda row: (row.transaction_id, hasattr(row, "grant_id"), row.id))
        self._expiries = {row.id: row.expires_at_ns for row in grants}
        query = "SELECT at_ns, subject, after FROM audit WHERE action = 'profile.change' ORDER BY id"
        self._profiles = connection.execute(text(query)).all()
        _same("taxes", [(row.subject, _tax(row)) for row in self._profiles], list(rules.taxes))

    def comes_to(self, transaction_id: int) -> None:
        """All that was posted before it; what it carries over comes with it, and is there for the next one."""
        while self._waiting and self._waiting[0].transaction_id < transaction_id:
            row = self._waiting.pop(0)
            if hasattr(row, "grant_id"):
                self._moves(row)
                continue
            until_ns = FOR_EVER_NS if row.expires_at_ns is None else row.expires_at_ns
            voucher = Voucher(
                row.id, row.tenant, row.currency, row.kind == "prepaid", row.amount_minor, row.priority, row.effective_at_ns, until_ns
            )
            self._by_id[row.id] = voucher
            self.vouchers.append(voucher)

    def _moves(self, row: Any) -> None:
        voucher = self._by_id[row.grant_id]
        if row.kind == "expire" and (voucher.until_ns > row.moved_at_ns or row.amount_minor != voucher.left):
            raise Caught(f"of credit {voucher.id}, {row.amount_minor} lapsed; {voucher.left} was left until {voucher.until_ns}")
        if row.kind == "refund" and (not voucher.prepaid or voucher.until_ns <= row.moved_at_ns or row.amount_minor > voucher.left):
            raise Caught(f"of credit {voucher.id}, {row.amount_minor} was refunded; {voucher.left} was left")
        voucher.left -= row.amount_minor

    def check_lapsed(self, now_ns: int) -> None:
        """Nothing is left of a credit that lapsed in a month that is over for longer than the days of grace. Raises Caught."""
        over_ns = start_ns(month_of(now_ns - GRACE_NS))
        for voucher in self.vouchers:
            if voucher.left and voucher.until_ns <= over_ns:
                raise Caught(f"{voucher.left} of credit {voucher.id} are left, which lapsed in a month that is closed")

    def tax_bps(self, connection: Connection, row: Any) -> int:
        """The tenant's, as it was when the invoice was made."""
        then = [_tax(found) for found in self._profiles if found.subject == row.tenant and found.at_ns < row.issued_at_ns]
        return then[-1] if then else 0


def _tax(row: Any) -> int:
    return int(json.loads(row.after)["tax_bps"])


def check_all_closed(bills: Iterable[Bill], sheets: Sheets, rules: Rules, month: str) -> None:
    """Every month before ``month`` in which something was used, taken back or committed has its invoice. Raises Caught."""
    owed = {key for key, sheet in sheets.items() if sheet.lines and key[1] < month}
    for tenant in rules.coins:
        versions = [version for version in rules.plans if version["tenant"] == tenant]
        for each in months_between(min((version["valid_from"] for version in versions), default=month), month):
            terms = terms_in(versions, tenant, each)
            if terms is not None and nearest(terms["commitment_nano"] * NANO, rules.coins[tenant]):
                owed.add((tenant, each, terms["currency"]))
    for key in sorted(owed - {bill.key for bill in bills}):
        raise Caught(f"{key} was never invoiced")


def check_grants(emulator: Emulator, connection: Connection) -> None:
    """Each grant of the books is mirrored once, but for what had lapsed before it could be. Raises Caught."""
    rows = connection.execute(text("SELECT * FROM credit_grants")).all()
    there = [(grant["metadata"]["forebay_grant"], grant["amount"]["monetary"]["value"]) for grant in _of(emulator, "billing.credit_grant")]
    query = "SELECT subject FROM payment_outbox WHERE kind = 'credit_grant' AND note LIKE '%expired%'"
    lapsed = set(connection.execute(text(query)).scalars())
    wanted = [(f"CR-{row.id:06d}", row.amount_minor) for row in rows]
    _same("Stripe's grants", sorted(there), sorted(pair for pair in wanted if pair[0] not in lapsed))
    for row in rows:
        if f"CR-{row.id:06d}" in lapsed and (row.expires_at_ns is None or row.expires_at_ns > emulator.now_s() * 10**9):
            raise Caught(f"credit {row.id} was not mirrored, although it holds until {row.expires_at_ns}")


def check_items(emulator: Emulator, bills: Iterable[Bill]) -> None:
    """Where meters tell Stripe of usage, notes, plans and taxes are items of its own next invoice. Raises Caught."""
    known = list(bills)
    items = [(item["metadata"].get("forebay_credit_note"), item["amount"]) for item in _of(emulator, "invoiceitem")]
    wanted = [(name, -amount) for bill in known for name, amount in bill.notes.items()]
    _same("Stripe's items of credit notes", sorted(item for item in items if item[0] is not None), sorted(wanted))
    extras: dict[str, int] = {bill.name: 0 for bill in known}
    for item in _of(emulator, "invoiceitem"):
        if "forebay_extra" in item["metadata"]:
            extras[item["metadata"]["forebay_extra"].partition("/")[0]] += item["amount"]
    _same("Stripe's items of plans and taxes", extras, {bill.name: bill.planned + bill.tax for bill in known})
    _same("Stripe's invoices by us", _of(emulator, "invoice"), [])


def check_invoices(emulator: Emulator, bills: Iterable[Bill], connection: Connection) -> None:
    """Each invoice is there once, finalised, with the same total, notes and payments. Raises Caught."""
    known = {bill.name: bill for bill in bills}
    there = {invoice["metadata"]["forebay_invoice"]: invoice for invoice in _of(emulator, "invoice")}
    _same("Stripe's invoices", sorted(invoice["metadata"]["forebay_invoice"] for invoice in _of(emulator, "invoice")), sorted(known))
    for name, invoice in there.items():
        bill = known[name]
        void = invoice["status"] == "void"
        _same(f"what Stripe asks for {name}", invoice["total"], bill.total)
        _same(f"what Stripe collected for {name}", invoice["amount_paid"], _by_stripe(connection, name))
        _same(f"what is still open of {name}, void at Stripe" if void else f"what is void of {name}", bill.open if void else bill.voided, 0)
        _same(f"the state of {name}", invoice["status"] in ("open", "paid", "void"), True)
        mine = [note for note in _of(emulator, "credit_note") if note["invoice"] == invoice["id"]]
        notes = {note["metadata"]["forebay_credit_note"]: note["amount"] for note in mine}
        missing = bill.notes.keys() - notes.keys()
        if notes != {key: amount for key, amount in bill.notes.items() if key in notes} or (missing and not void):
            raise Caught(f"Stripe's credit notes of {name}: {notes}, and they ought to be {bill.notes}")
    _same("Stripe's meter events", emulator.meters.counted, [])


def _by_stripe(connection: Connection, name: str) -> int:
    query = "SELECT sum(amount_minor) FROM settlements JOIN invoices ON invoices.id = invoice_id WHERE name = :name AND method = 'stripe'"
    return int(connection.execute(text(query), {"name": name}).scalar_one() or 0)


def _of(emulator: Emulator, kind: str) -> list[Any]:
    return list(emulator.account.of(kind))


def _same(what: str, found: Any, wanted: Any) -> None:
    if found != wanted:
        raise Caught(f"{what}: {found}, and it ought to be {wanted}")

"""Invoices, drafts, credits and profiles as JSON, HTML and CSV."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from forebay_service.spreadsheets import PARKED_SHOWN, csv_text

from forebay_billing.documents.usage import PAGES, rate_text
from forebay_billing.model.money import decimal_text, exact_text, grains_of_minor, minor_text, nano_text
from forebay_billing.reads.invoices import Credit, CreditNote, Invoice, Issuer, ListedInvoice
from forebay_billing.reads.profiles import Version
from forebay_billing.rules.invoices import Draft, InvoiceLine
from forebay_billing.rules.parked import ParkedTotal, gib_hours_text

_CSV_COLUMNS = (
    "invoice", "tenant", "month", "currency", "position", "key", "kind", "label", "user", "flavor", "price_version",
    "price_nano_per_hour", "surcharge_nano_per_hour", "late", "leases", "seconds", "exact_amount", "amount", "gib_hours",
    "price_nano_per_gib_hour",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A line as people read it."""

    label: str
    rate: str
    leases: str
    seconds: str
    exact: str
    amount: str


@dataclass(frozen=True)
class Sheet:
    """An invoice or draft as a page or PDF shows it. ``facts`` and ``sums`` are pairs of name and value."""

    title: str
    number: str | None
    seller: tuple[str, ...]
    buyer: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    rows: tuple[Row, ...]
    sums: tuple[tuple[str, str], ...]
    currency: str


def sheet_of(about: Invoice | Draft, issuer: Issuer) -> Sheet:
    """What a reader needs; a finalised invoice keeps the sender it was made by."""
    made = about.draft if isinstance(about, Invoice) else about
    sender = about.issuer if isinstance(about, Invoice) else issuer
    buyer = (made.profile.legal_name, *made.profile.address.splitlines(), made.profile.tax_id)
    facts = [("Period (UTC)", str(made.month)), ("Tenant", made.profile.tenant)]
    sums = [("Net", made.net_minor), ("Tax", made.tax_minor), ("Credits", made.credit_minor), ("Total", made.total_minor)]
    if isinstance(about, Invoice):
        facts += [("Issued", day_text(about.issued_at_ns)), ("Due", day_text(about.due_at_ns)), ("State", about.state)]
        sums += [(f"Credit note {note.name}", -note.amount_minor) for note in about.notes]
        sums += [("Paid", -about.paid_minor)] if about.paid_minor else []
        sums += [("Void", -about.voided_minor)] if about.voided_minor else []
        sums += [("Still open", about.open_minor)]
    number = about.name if isinstance(about, Invoice) else None
    return Sheet(
        "Draft of an invoice" if number is None else "Invoice", number, _lines(sender.name, *sender.address.splitlines(), sender.tax_id),
        _lines(*buyer), tuple(facts), tuple(_row(line, made.currency) for line in made.lines),
        tuple((name, minor_text(amount, made.currency)) for name, amount in sums), made.currency,
    )  # fmt: skip


def note_sheet(about: Invoice, note: CreditNote) -> Sheet:
    """A credit note as its invoice's sender sends it to whom that was made out to."""
    made = about.draft
    of_invoice = sheet_of(about, about.issuer)
    facts = (("Invoice", about.name), ("Period (UTC)", str(made.month)), ("Tenant", about.tenant), ("Issued", day_text(note.issued_at_ns)))
    net = minor_text(-note.net_minor, made.currency)
    row = Row(note.reason, "", "", "", nano_text(-grains_of_minor(note.net_minor, made.currency)), net)
    sums = (("Net", note.net_minor), ("Tax", note.tax_minor), ("Total", note.amount_minor))
    return Sheet(
        "Credit note", note.name, of_invoice.seller, of_invoice.buyer, facts, (row,),
        tuple((name, minor_text(-amount, made.currency)) for name, amount in sums), made.currency,
    )  # fmt: skip


def _lines(*texts: str) -> tuple[str, ...]:
    return tuple(text for text in texts if text.strip())


def _row(line: InvoiceLine, currency: str) -> Row:
    total, parked = line.usage, line.parked
    amounts = nano_text(line.cost_grains), minor_text(line.amount_minor, currency)
    if parked is not None:
        return Row(line.label, "", str(parked.stretches), decimal_text(parked.duration_ns, 9), *amounts)
    if total is None:
        return Row(line.label, "", "", "", *amounts)
    return Row(line.label, rate_text(total.rate_nano_per_hour), str(total.leases), decimal_text(total.duration_ns, 9), *amounts)


def day_text(time_ns: int) -> str:
    """The day in UTC."""
    return f"{datetime.fromtimestamp(time_ns // 10**9, UTC):%Y-%m-%d}"


def html(sheet: Sheet) -> str:
    """A page to read and to print."""
    return PAGES.get_template("invoice.html").render(sheet=sheet)


def csv_of(about: Invoice | Draft) -> str:
    """One row a line; amounts are plain decimals."""
    made, name = (about.draft, about.name) if isinstance(about, Invoice) else (about, "")
    return csv_text(_CSV_COLUMNS, _csv_rows(made, name))


def _csv_rows(made: Draft, name: str) -> Iterator[tuple[object, ...]]:
    for position, line in enumerate(made.lines):
        total, parked = line.usage, line.parked
        usage: tuple[object, ...] = ("",) * 8
        quantity: tuple[object, ...] = ("", "")
        if parked is not None:
            version, price = _parked_price(parked)
            seconds = decimal_text(parked.duration_ns, 9)
            usage = parked.user, PARKED_SHOWN, version, "", "", "", parked.stretches, seconds
            quantity = gib_hours_text(parked.byte_ns), price
        if total is not None:
            usage = (
                total.user, total.price.flavor, total.price.version, total.price.price_nano_per_hour,
                total.surcharge_nano_per_hour, int(total.late), total.leases, decimal_text(total.duration_ns, 9),
            )  # fmt: skip
        yield (
            name, made.profile.tenant, str(made.month), made.currency, position, line.key, line.kind, line.label, *usage,
            exact_text(line.cost_grains), minor_text(line.amount_minor, made.currency), *quantity,
        )  # fmt: skip


def note_csv(about: Invoice, note: CreditNote) -> str:
    """One row; what the note takes back is below zero."""
    made = about.draft
    header = ("credit_note", "invoice", "tenant", "month", "currency", "issued", "reason", "net", "tax", "amount")
    amounts = (minor_text(-amount, made.currency) for amount in (note.net_minor, note.tax_minor, note.amount_minor))
    issued = day_text(note.issued_at_ns)
    return csv_text(header, [(note.name, about.name, about.tenant, str(made.month), made.currency, issued, note.reason, *amounts)])


def note_json(about: Invoice, note: CreditNote) -> dict[str, Any]:
    """A credit note with what it is of; its amounts are what it takes back."""
    made = about.draft
    texts = {"net": note.net_minor, "tax": note.tax_minor, "amount": note.amount_minor}
    named = {name: minor_text(amount, made.currency) for name, amount in texts.items()}
    of_invoice = {"invoice": about.name, "tenant": about.tenant, "month": str(made.month), "currency": made.currency}
    return asdict(note) | of_invoice | named | {"issuer": asdict(about.issuer), "profile": asdict(made.profile)}


def _parked_price(total: ParkedTotal) -> tuple[int, int]:
    """Version and nano-units per GiB and hour."""
    return (0, 0) if total.price is None else (total.price.version, total.price.price_nano_per_gib_hour)


def parked_json(total: ParkedTotal) -> dict[str, Any]:
    """What a line of parked memory is of."""
    version, price = _parked_price(total)
    return {
        "user": total.user,
        "price_version": version,
        "price_nano_per_gib_hour": price,
        "correction": total.correction,
        "stretches": total.stretches,
        "duration_ns": total.duration_ns,
        "byte_ns": total.byte_ns,
        "gib_hours": gib_hours_text(total.byte_ns),
    }


def line_json(line: InvoiceLine, currency: str) -> dict[str, Any]:
    """``amount`` is rounded, ``cost_exact`` is what it was before. ``usage`` is null but for leases, ``parked`` but for parked memory."""
    total = line.usage
    return {
        "key": line.key,
        "kind": line.kind,
        "label": line.label,
        "amount": minor_text(line.amount_minor, currency),
        "amount_minor": line.amount_minor,
        "cost_exact": exact_text(line.cost_grains),
        "started_at_ns": line.started_at_ns,
        "ended_at_ns": line.ended_at_ns,
        "credit": line.grant_id,
        "parked": None if line.parked is None else parked_json(line.parked),
        "usage": None if total is None else {
            "user": total.user, "flavor": total.price.flavor, "price_version": total.price.version,
            "price_nano_per_hour": total.price.price_nano_per_hour, "surcharge_nano_per_hour": total.surcharge_nano_per_hour,
            "late": total.late, "leases": total.leases, "duration_ns": total.duration_ns,
        },
    }  # fmt: skip


def draft_json(made: Draft) -> dict[str, Any]:
    """Amounts as text are in units of the currency."""
    sums = {"net": made.net_minor, "credit": made.credit_minor, "tax": made.tax_minor, "total": made.total_minor}
    return {
        "tenant": made.profile.tenant,
        "month": str(made.month),
        "currency": made.currency,
        **{name: minor_text(amount, made.currency) for name, amount in sums.items()},
        "total_minor": made.total_minor,
        "lines": [line_json(line, made.currency) for line in made.lines],
    }


def summary_json(about: ListedInvoice) -> dict[str, Any]:
    """An invoice without its lines."""
    amounts = {"total": about.total_minor, "paid": about.paid_minor, "credited": about.credited_minor, "open": about.open_minor}
    return {
        "number": about.name,
        "tenant": about.tenant,
        "month": about.month,
        "currency": about.currency,
        "state": about.state,
        "issued_at_ns": about.issued_at_ns,
        "due_at_ns": about.due_at_ns,
        **{name: minor_text(amount, about.currency) for name, amount in amounts.items()},
        **{f"{name}_minor": amount for name, amount in amounts.items()},
    }


def invoice_json(about: Invoice) -> dict[str, Any]:
    """All of it."""
    return draft_json(about.draft) | summary_json(about.listed) | {
        "issuer": asdict(about.issuer),
        "profile": asdict(about.draft.profile),
        "credit_notes": [asdict(note) for note in about.notes],
        "settlements": [asdict(one) for one in about.settlements],
    }  # fmt: skip


def credit_json(credit: Credit) -> dict[str, Any]:
    """``left`` is what no invoice has used, nor was refunded or written off."""
    return asdict(credit.grant) | {
        "tenant": credit.tenant,
        "name": credit.name,
        "left_minor": credit.left_minor,
        "amount": minor_text(credit.grant.amount_minor, credit.grant.currency),
        "left": minor_text(credit.left_minor, credit.grant.currency),
        "granted_at_ns": credit.granted_at_ns,
        "granted_by": credit.granted_by,
    }


def profile_json(found: Version) -> dict[str, Any]:
    """A profile with its version."""
    version = {"version": found.version, "etag": found.tag}
    return asdict(found.profile) | version | {"changed_at_ns": found.changed_at_ns, "changed_by": found.changed_by}

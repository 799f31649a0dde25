"""Checks invoices by records: all that is wrong with either, and what the records cannot say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from forebay.errors import ForebayError
from forebay.service.record import Record
from forebay.toolkit.invoices import arithmetic
from forebay.toolkit.invoices.comparison import compare
from forebay.toolkit.invoices.evidence import Evidence
from forebay.toolkit.invoices.findings import Finding
from forebay.toolkit.invoices.invoice import Invoice


class NothingToCheckBy(ForebayError):
    """No record says anything of the invoices."""


@dataclass(frozen=True)
class Outcome:
    """What came of it."""

    findings: tuple[Finding, ...]
    lines: int
    """How many lines are of the users whose records these are, and were held against receipts."""
    leases: int
    """How many leases have receipts."""
    records: tuple[Evidence, ...]
    unproved: tuple[str, ...]
    """What of the invoices no record says anything of."""


def verify(invoices: Sequence[Invoice], records: Iterable[Record]) -> Outcome:
    """Holds the invoices against the records that are of their users. Raises NothingToCheckBy, NotConfigured, OSError."""
    evidence = [one for one in map(Evidence, records) if _is_of(one, invoices)]
    if not evidence:
        named = sorted({line.usage.user for invoice in invoices for line in invoice.lines if line.usage is not None})
        of = f" ({', '.join(named[:5])}{', …' if len(named) > 5 else ''})" if named else ""
        raise NothingToCheckBy(f"There is no record of any user of this invoice{of} here; name its folder with --record.")
    found = [finding for one in evidence for finding in one.findings]
    found += (finding for invoice in invoices for finding in arithmetic.check(invoice))
    found += compare(invoices, evidence)
    users = {one.user for one in evidence}
    lines = [line for invoice in invoices for line in invoice.lines if line.usage is not None and line.usage.user in users]
    return Outcome(tuple(found), len(lines), sum(len(one.closed) for one in evidence), tuple(evidence), tuple(_unproved(invoices, users)))


def _is_of(evidence: Evidence, invoices: Sequence[Invoice]) -> bool:
    """Whether a line is of its user, or a lease of the tenants."""
    users = {line.usage.user for invoice in invoices for line in invoice.lines if line.usage is not None}
    tenants = {invoice.tenant for invoice in invoices}
    return evidence.user in users or any(lease.tenant in tenants for lease in evidence.closed.values())


def _unproved(invoices: Sequence[Invoice], users: set[str]) -> Iterator[str]:
    for invoice in invoices:
        others = [line for line in invoice.lines if line.usage is not None and line.usage.user not in users]
        corrections = [line for line in invoice.lines if line.kind == "correction" and line not in others]
        parked = [line for line in invoice.lines if line.kind == "parked"]
        plan = [line for line in invoice.lines if line.kind in (*arithmetic.PLAN_KINDS, *arithmetic.CREDIT_KINDS)]
        reasons = {
            "of other users": others,
            "corrections by an operator": corrections,
            "parked memory": parked,
            "the tenant's plan and credits": plan,
        }
        for why, lines in reasons.items():
            if lines:
                amount = f"{arithmetic.sum_text(invoice, lines)} {invoice.currency}"
                found = f"{counted(len(lines), 'line')} ({amount})"
                yield f"{invoice.name}: {found} of which no receipts are here: {why}; only sums were checked"


def counted(count: int, noun: str) -> str:
    """So many of them, for people."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"

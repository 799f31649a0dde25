"""Double entry: accounts, and transactions that sum to zero."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from forebay_billing.errors import InvalidRequest, LedgerError
from forebay_billing.model.money import GRAINS_PER_UNIT
from forebay_billing.model.months import Month
from forebay_billing.model.types import Kind, Posting, Transaction
from forebay_billing.rules.credits import GrantKind

REVENUE = "revenue"
DISCOUNT = "discount"
"""What price plans take off."""
ROUNDING = "rounding"
"""What rounding the lines of invoices made of exact usage."""
TAX = "tax"
PAYMENTS = "payments"
TRANSACTION_UNITS_MAX = 4 * 10**15
"""The most that the debits of one transaction may sum to, in units of a currency: sums over it then fit the ledger's columns."""


def receivable(tenant: str) -> str:
    """The account of what a tenant owes."""
    return f"receivable:{tenant}"


def credit_of(tenant: str) -> str:
    """The account of what a tenant has paid, or was given, ahead."""
    return f"credit:{tenant}"


def credit_source(kind: GrantKind) -> str:
    """The account against which credit is granted, refunded and written off."""
    return "credits:paid" if kind == "prepaid" else "credits:promotional"


def balances(postings: Iterable[Posting]) -> dict[str, int]:
    """Sum by currency, in grains."""
    sums: dict[str, int] = defaultdict(int)
    for posting in postings:
        sums[posting.currency] += posting.amount_grains
    return dict(sums)


def balanced(kind: Kind, postings: Iterable[Posting]) -> Transaction:
    """A transaction of ``postings``, summed per account, period and currency.

    Raises LedgerError where they do not sum to zero in every currency, or are fewer than two; InvalidRequest for absurd amounts.
    """
    sums: dict[tuple[str, Month, str], int] = defaultdict(int)
    for posting in postings:
        sums[posting.account, posting.period, posting.currency] += posting.amount_grains
    transaction = Transaction(kind, tuple(Posting(*key, sums[key]) for key in sorted(sums)))
    if len(transaction.postings) < 2:
        raise LedgerError(f"A transaction needs two postings at least; this {kind} has {len(transaction.postings)}.")
    for currency, sum_grains in balances(transaction.postings).items():
        if sum_grains != 0:
            raise LedgerError(f"A {kind} transaction sums to {sum_grains} grains of {currency}, not to zero; it was not written.")
    debits = sum(posting.amount_grains for posting in transaction.postings if posting.amount_grains > 0)
    if debits > TRANSACTION_UNITS_MAX * GRAINS_PER_UNIT:
        raise InvalidRequest(f"The {kind} would post more than {TRANSACTION_UNITS_MAX} units of a currency at once; nothing was written.")
    return transaction


def transfer(debit: str, credit: str, period: Month, currency: str, amount_grains: int) -> tuple[Posting, Posting]:
    """``amount_grains`` on ``debit``, and off ``credit``."""
    return Posting(debit, period, currency, amount_grains), Posting(credit, period, currency, -amount_grains)

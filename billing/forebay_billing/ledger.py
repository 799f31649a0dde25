"""Double entry: what a usage record and its correction post. Nothing else makes transactions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Literal

from forebay_billing.errors import LedgerError
from forebay_billing.money import cost_atto, surcharge_rate
from forebay_billing.months import Month, parts
from forebay_billing.types import Posting, PriceVersion, Transaction, UsageRecord

REVENUE = "revenue"


def receivable(tenant: str) -> str:
    """The account of what a tenant owes."""
    return f"receivable:{tenant}"


def balances(postings: Iterable[Posting]) -> dict[str, int]:
    """Sum by currency, in atto-units."""
    sums: dict[str, int] = defaultdict(int)
    for posting in postings:
        sums[posting.currency] += posting.amount_atto
    return dict(sums)


def balanced(kind: Literal["usage", "reversal"], postings: Iterable[Posting]) -> Transaction:
    """A transaction of ``postings``. Raises LedgerError where they do not sum to zero in every currency, or are fewer than two."""
    transaction = Transaction(kind, tuple(postings))
    if len(transaction.postings) < 2:
        raise LedgerError(f"A transaction needs two postings at least; this {kind} has {len(transaction.postings)}.")
    for currency, sum_atto in balances(transaction.postings).items():
        if sum_atto != 0:
            raise LedgerError(f"A {kind} transaction sums to {sum_atto} atto-units of {currency}, not to zero; it was not written.")
    return transaction


def rate_of(record: UsageRecord, price: PriceVersion) -> int:
    """What a second of the record costs, in nano-units: the flavor's price, and the surcharge for the devices that served it."""
    return price.price_nano_per_second + surcharge_rate(record)


def usage_transaction(record: UsageRecord, price: PriceVersion) -> Transaction:
    """The tenant owes the record's cost, revenue earns it; a record that crosses a month's end is posted to each month for its part."""
    postings: list[Posting] = []
    rate = rate_of(record, price)
    for month, duration_ns in parts(record.started_at_ns, record.duration_ns):
        amount_atto = cost_atto(duration_ns, rate)
        postings.append(Posting(receivable(record.tenant), month, price.currency, amount_atto))
        postings.append(Posting(REVENUE, month, price.currency, -amount_atto))
    return balanced("usage", postings)


def reversal_transaction(record: UsageRecord, price: PriceVersion, month: Month) -> Transaction:
    """Takes the whole cost of a record back, in the ``month`` of the correction: what was shown in earlier months stays true."""
    amount_atto = cost_atto(record.duration_ns, rate_of(record, price))
    return balanced(
        "reversal",
        [
            Posting(receivable(record.tenant), month, price.currency, -amount_atto),
            Posting(REVENUE, month, price.currency, amount_atto),
        ],
    )

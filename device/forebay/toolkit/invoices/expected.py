"""What receipts come to: each lease is divided where a month ends and where another version of its prices comes into force."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise

from forebay_wire.message_parts import ClosedReceipt

from forebay.toolkit.invoices.evidence import Evidence, PriceVersion
from forebay.toolkit.invoices.findings import Finding
from forebay.toolkit.invoices.money import surcharge_rate
from forebay.toolkit.invoices.months import month_after_ns, month_of


@dataclass(frozen=True, order=True)
class Key:
    """What one line is of."""

    month: str
    user: str
    flavor: str
    price_version: int
    surcharge_nano_per_hour: int


@dataclass
class Part:
    """What the receipts say of one line."""

    duration_ns: int = 0
    leases: set[str] = field(default_factory=set)
    ended: dict[str, int] = field(default_factory=dict)
    """When leases ended that are on another line: at the very moment from which on this one's price is in force. Their last usage record
    may be on this line, with no time."""
    started_at_ns: int = 2**63
    ended_at_ns: int = 0

    def add(self, lease: str, started_at_ns: int, ended_at_ns: int) -> None:
        """A stretch of a lease."""
        self.duration_ns += ended_at_ns - started_at_ns
        self.leases.add(lease)
        self.started_at_ns = min(self.started_at_ns, started_at_ns)
        self.ended_at_ns = max(self.ended_at_ns, ended_at_ns)


class Prices:
    """Versions of prices and surcharges in one currency, as they were signed."""

    def __init__(self, evidence: Iterable[Evidence], currency: str) -> None:
        found: dict[tuple[str, str], dict[int, PriceVersion]] = defaultdict(dict)
        for (kind, name, of, version), receipt in chain.from_iterable(one.versions.items() for one in evidence):
            if of == currency:
                found[kind, name][version] = receipt
        order = {name: sorted(versions.values(), key=lambda one: (one.valid_from_ns, one.version)) for name, versions in found.items()}
        self._versions: Mapping[tuple[str, str], Sequence[PriceVersion]] = order

    def version(self, flavor: str, number: int) -> PriceVersion | None:
        """The version of a flavor's price that has this number."""
        return next((one for one in self._versions.get(("price", flavor), ()) if one.version == number), None)

    def changes(self, lease: ClosedReceipt) -> set[int]:
        """When other versions come into force."""
        return {one.valid_from_ns for versions in self._of(lease) for one in versions}

    def at(self, lease: ClosedReceipt, time_ns: int) -> tuple[PriceVersion, int] | None:
        """Price and surcharge of the lease's devices at a moment; None where the flavor had no price that is known."""
        prices, surcharges = self._of(lease)
        price, surcharge = _in_force(prices, time_ns), _in_force(surcharges, time_ns)
        if price is None:
            return None
        return price, 0 if surcharge is None else surcharge_rate(surcharge.nano_per_hour, lease.devices, lease.share_milli)

    def _of(self, lease: ClosedReceipt) -> tuple[Sequence[PriceVersion], Sequence[PriceVersion]]:
        return self._versions.get(("price", lease.flavor), ()), self._versions.get(("surcharge", lease.model), ())


def expected(evidence: Sequence[Evidence], tenant: str, currency: str) -> tuple[dict[Key, Part], list[Finding]]:
    """What the leases of a tenant's users come to in a currency, and what cannot be told."""
    prices, findings = Prices(evidence, currency), list[Finding]()
    parts: dict[Key, Part] = defaultdict(Part)
    seen: set[str] = set()
    for one in evidence:
        for lease in one.closed.values():
            if lease.tenant != tenant or lease.lease in seen or _is_of_another_currency(one, lease, currency):
                continue
            seen.add(lease.lease)
            for start_ns, end_ns in _stretches(lease, prices):
                found = prices.at(lease, start_ns)
                if found is None:
                    text = f"The record knows no price of {lease.flavor} in {currency} at {start_ns} ns."
                    findings.append(Finding("price", f"lease {lease.lease}", text))
                    break
                key = Key(month_of(start_ns), lease.user, lease.flavor, found[0].version, found[1])
                if start_ns == end_ns != lease.started_at_ns:
                    if lease.lease not in parts[key].leases:
                        parts[key].ended[lease.lease] = end_ns
                else:
                    parts[key].add(lease.lease, start_ns, end_ns)
    return dict(parts), findings


def _stretches(lease: ClosedReceipt, prices: Prices) -> Iterator[tuple[int, int]]:
    """From when to when; the last one is the moment of its end, where a usage record of no time may be."""
    start_ns, end_ns = lease.started_at_ns, lease.started_at_ns + lease.duration_ns
    cuts, at_ns = prices.changes(lease), start_ns
    while (at_ns := month_after_ns(at_ns)) < end_ns:
        cuts.add(at_ns)
    yield from pairwise([start_ns, *sorted(cut for cut in cuts if start_ns < cut < end_ns), end_ns])
    if lease.duration_ns:
        yield end_ns, end_ns


def _is_of_another_currency(evidence: Evidence, lease: ClosedReceipt, currency: str) -> bool:
    opened = evidence.opened.get(lease.lease)
    return opened is not None and opened.currency != currency


def _in_force(versions: Sequence[PriceVersion], time_ns: int) -> PriceVersion | None:
    return next((one for one in reversed(versions) if one.valid_from_ns <= time_ns), None)

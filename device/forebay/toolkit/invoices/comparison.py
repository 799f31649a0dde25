"""Holds the lines of invoices against what the receipts of their users come to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from forebay.toolkit.invoices.evidence import Evidence
from forebay.toolkit.invoices.expected import Key, Part, Prices, expected
from forebay.toolkit.invoices.findings import Finding
from forebay.toolkit.invoices.invoice import Invoice, Line, UsageLine
from forebay.toolkit.invoices.months import month_after_ns, month_of


def compare(invoices: Sequence[Invoice], evidence: Sequence[Evidence]) -> Iterator[Finding]:
    """What is wrong with the lines of the users whose records these are. The invoices are of different months or tenants."""
    for tenant, currency in sorted({(one.tenant, one.currency) for one in invoices}):
        of = sorted((one for one in invoices if (one.tenant, one.currency) == (tenant, currency)), key=lambda one: one.month)
        yield from _Comparison(of, evidence, tenant, currency).findings()


class _Comparison:
    """Of a tenant's invoices in one currency, by month."""

    def __init__(self, invoices: Sequence[Invoice], evidence: Sequence[Evidence], tenant: str, currency: str) -> None:
        self._invoices = invoices
        self._users = {one.user for one in evidence}
        self._prices = Prices(evidence, currency)
        self._parts, self._unpriced = expected(evidence, tenant, currency)
        self._months = {invoice.month for invoice in invoices}
        self._billed: dict[Key, str] = {}
        """Where the line of each is."""
        self._rest: dict[Key, int] = {}
        """What of the receipts' time is on no line so far."""

    def findings(self) -> Iterator[Finding]:
        """Everything that is wrong."""
        yield from self._unpriced
        for invoice in self._invoices:
            yield from self._of_invoice(invoice)
        for invoice in self._invoices:
            yield from self._late_lines(invoice)
        yield from self._what_is_left()

    def _of_invoice(self, invoice: Invoice) -> Iterator[Finding]:
        for position, line in enumerate(invoice.lines):
            usage, place = line.usage, invoice.place(position)
            if usage is None or line.kind != "usage":
                continue
            yield from self._price(usage, place)
            if usage.late or usage.user not in self._users:
                continue
            key = _key_of(usage, invoice.month)
            if key in self._billed:
                yield Finding("repeated_line", place, f"It is {self._billed[key]} once more.")
                continue
            self._billed[key] = place
            part = self._parts.get(key)
            if part is None:
                yield self._unknown_line(key, place)
                continue
            self._rest[key] = part.duration_ns - usage.duration_ns
            if not self._rest[key]:
                yield from _check_leases(part, line, usage, place)

    def _price(self, usage: UsageLine, place: str) -> Iterator[Finding]:
        known = self._prices.version(usage.flavor, usage.price_version)
        if known is not None and known.nano_per_hour != usage.price_nano_per_hour:
            told = f"was signed as {known.nano_per_hour} nano-units an hour, not {usage.price_nano_per_hour}"
            yield Finding("price", place, f"Version {usage.price_version} of the price of {usage.flavor} {told}.")
        elif known is None and usage.user in self._users:
            yield Finding("price", place, f"The record does not know version {usage.price_version} of the price of {usage.flavor}.")

    def _unknown_line(self, key: Key, place: str) -> Finding:
        """A line without receipts; where there are some that differ in the surcharge alone, that is what is wrong."""
        for other in self._parts:
            if (other.month, other.user, other.flavor, other.price_version) == (key.month, key.user, key.flavor, key.price_version):
                surcharges = f"{key.surcharge_nano_per_hour} nano-units an hour, and by the receipts {other.surcharge_nano_per_hour}"
                differs = other.surcharge_nano_per_hour != key.surcharge_nano_per_hour
                if differs and self._parts[other].leases and not self._has_line(other):
                    return Finding("price", place, f"Its surcharge is {surcharges}.")
        return Finding("no_receipts", place, "The record has no receipts of it.")

    def _has_line(self, key: Key) -> bool:
        lines = (line for invoice in self._invoices if invoice.month == key.month for line in invoice.lines if line.kind == "usage")
        return any(line.usage is not None and not line.usage.late and _key_of(line.usage, key.month) == key for line in lines)

    def _late_lines(self, invoice: Invoice) -> Iterator[Finding]:
        """Late usage is what earlier invoices left out: it takes all of a month's rest, or it cannot be told what it is of."""
        for position, line in enumerate(invoice.lines):
            usage, place = line.usage, invoice.place(position)
            if usage is None or line.kind != "usage" or not usage.late or usage.user not in self._users:
                continue
            months = _months(line.started_at_ns, line.ended_at_ns)
            if months[-1] >= invoice.month:
                yield Finding("late", place, f"It is called late, and is of {months[-1]}.")
                continue
            unknown = [month for month in months if month not in self._months]
            if unknown:
                yield Finding("late", place, f"It is of {', '.join(unknown)}: check it together with the invoice of then.")
                continue
            keys = [_key_of(usage, month) for month in months]
            left = sum(self._left(key) for key in keys)
            if left != usage.duration_ns:
                yield Finding("time", place, f"It has {usage.duration_ns} ns, and earlier invoices left {left} ns of the receipts out.")
            for key in keys:
                self._rest[key] = 0

    def _left(self, key: Key) -> int:
        part: Part | None = self._parts.get(key)
        return self._rest.get(key, 0 if part is None else part.duration_ns)

    def _what_is_left(self) -> Iterator[Finding]:
        for key, part in sorted(self._parts.items(), key=lambda item: item[0]):
            rest = self._left(key)
            if key.month not in self._months or (rest == 0 and (part.duration_ns or key in self._rest or not part.leases)):
                continue
            seconds = f"{abs(rest)} ns {'less' if rest > 0 else 'more'}"
            if key in self._billed:
                yield Finding("time", self._billed[key], f"It has {seconds} than the receipts, which have {part.duration_ns} ns.")
            elif key not in self._rest:
                of = f"{key.flavor} for {key.user} at version {key.price_version} of the price"
                yield Finding("no_line", f"{key.month}, {of}", f"{len(part.leases)} leases with {part.duration_ns} ns are on no line.")


def _check_leases(part: Part, line: Line, usage: UsageLine, place: str) -> Iterator[Finding]:
    """Of a line that has the time of all its receipts."""
    if not len(part.leases) <= usage.leases <= len(part.leases) + len(part.ended):
        yield Finding("leases", place, f"It is of {usage.leases} leases, and there are receipts of {len(part.leases)}.")
    window = (line.started_at_ns, line.ended_at_ns)
    if window not in ((start, max(start, part.ended_at_ns)) for start in (part.started_at_ns, *part.ended.values())):
        receipts = f"the receipts from {part.started_at_ns} to {part.ended_at_ns}"
        yield Finding("window", place, f"It is from {window[0]} to {window[1]} ns, {receipts}.")


def _key_of(usage: UsageLine, month: str) -> Key:
    return Key(month, usage.user, usage.flavor, usage.price_version, usage.surcharge_nano_per_hour)


def _months(started_at_ns: int, ended_at_ns: int) -> list[str]:
    found, at_ns = [month_of(started_at_ns)], month_after_ns(started_at_ns)
    while at_ns < ended_at_ns:
        found.append(month_of(at_ns))
        at_ns = month_after_ns(at_ns)
    return found


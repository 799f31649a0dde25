"""Which credit pays what of an invoice, by the accountant's own arithmetic: money laid along a line, hour by hour."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

HOUR_NS = 3600 * 10**9


@dataclass
class Voucher:
    """A credit, and what is left of it."""

    id: int
    tenant: str
    currency: str
    prepaid: bool
    left: int
    priority: int
    since_ns: int
    until_ns: int
    """It is used up, or lapses, before."""

    def holds_in(self, hour_ns: int) -> bool:
        return self.until_ns > hour_ns and self.since_ns < hour_ns + HOUR_NS


def pays(hours: Mapping[int, int], amount: int, last_hour_ns: int, vouchers: Iterable[Voucher]) -> dict[int, int]:
    """What each voucher pays of ``amount``, by id, and takes it off; ``hours`` are the grains that were used in each.

    The amount is a line along which the hours with usage lie one after the other, each as long as its share, cut at whole coins.
    """
    used = sorted((hour, grains) for hour, grains in hours.items() if grains > 0) or [(last_hour_ns, 1)]
    whole = sum(grains for _, grains in used)
    paid: dict[int, int] = {}
    in_order = sorted(vouchers, key=lambda voucher: (voucher.priority, voucher.until_ns, voucher.id))
    walked, end = 0, 0
    for hour, grains in used:
        begin, walked = end, walked + grains
        end = walked * max(0, amount) // whole
        due = end - begin
        for voucher in in_order:
            part = min(due, voucher.left) if voucher.holds_in(hour) else 0
            if part:
                due -= part
                voucher.left -= part
                paid[voucher.id] = paid.get(voucher.id, 0) + part
    return paid

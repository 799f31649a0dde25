"""How an operator wants tenants to be charged at Stripe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Mode = Literal["invoices", "meters"]
Collection = Literal["charge_automatically", "send_invoice"]


@dataclass(frozen=True)
class Terms:
    """``invoices``: our invoices line by line. ``meters``: hourly sums, of which Stripe makes invoices by ``meter_price``."""

    mode: Mode = "invoices"
    auto_advance: bool = True
    collection: Collection = "charge_automatically"
    days_until_due: int = 30
    meter_price: str | None = None

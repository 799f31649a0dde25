"""What can be wrong with a bill, or with the record that it is checked by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RecordFault = Literal[
    "unreadable", "chain", "signature", "repeated", "another_user", "contradiction", "missing", "open", "overlap", "price_conflict",
]  # fmt: skip
"""``unreadable``: no line of a record. ``chain``: it does not follow the line before it. ``signature``: the pool did not sign it.
``repeated``: a lease has the same receipt twice. ``another_user``: it is of another user than the record. ``contradiction``: two receipts
of a lease differ. ``missing``: leases of a session lack their receipts. ``open``: a lease has no closing receipt. ``overlap``: two leases
of a session were held at the same time. ``price_conflict``: a version has two prices."""
LineFault = Literal[
    "cost", "rounding", "key", "label", "price", "time", "leases", "window", "no_receipts", "no_line", "repeated_line", "late",
]  # fmt: skip
"""``cost``: it is not time by price. ``rounding``: the amount is not the rounded cost. ``key``, ``label``: they are another line's.
``price``: the price, or the surcharge, is not that of the version, or the record does not know it. ``time``: it is longer or shorter than
the receipts are together. ``leases``: it is of another number of leases. ``window``: it begins or ends at another time. ``no_receipts``:
there are none of it. ``no_line``: receipts are on no line. ``repeated_line``: it comes twice. ``late``: it cannot be checked without the
invoice of an earlier month."""
TotalFault = Literal["order", "total", "tax"]
"""``order``: a line is not where it belongs. ``total``: a sum is not that of its lines. ``tax``: it is not the rate's."""
Fault = RecordFault | LineFault | TotalFault


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, where, and with which values."""

    fault: Fault
    place: str
    text: str
    """A sentence for the user."""

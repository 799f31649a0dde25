"""The fair share as a picture: what each tenant is entitled to by its weight, and what it used of all lately. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forebay_dashboards.rows.bases import WHOLE_MILLI
from forebay_dashboards.rows.pool import ShareRow


@dataclass(frozen=True)
class Share:
    """A tenant's parts of the whole, in thousandths; ``seconds`` are of devices, and count less the longer ago they were."""

    tenant: str
    weight: int
    entitled_milli: int
    used_milli: int
    seconds: float
    held_milli: int

    @property
    def over(self) -> bool:
        """Whether it had more than its part, so that others go before it where devices are short."""
        return self.used_milli > self.entitled_milli


def shares(rows: Sequence[ShareRow]) -> list[Share]:
    """Who used most of its part first."""
    weights, seconds = sum(row.weight for row in rows), sum(row.decayed_device_seconds for row in rows)
    found = [
        Share(
            row.tenant, row.weight, row.weight * WHOLE_MILLI // weights,
            round(row.decayed_device_seconds * WHOLE_MILLI / seconds) if seconds else 0, row.decayed_device_seconds, row.held_milli,
        )
        for row in rows
    ]  # fmt: skip
    return sorted(found, key=lambda one: (one.entitled_milli - one.used_milli, one.tenant))

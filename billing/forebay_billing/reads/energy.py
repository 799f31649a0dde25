"""What devices drew, by hour, of the rollups as far as these go."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from sqlalchemy import Connection

from forebay_billing.ledger.access import Scope
from forebay_billing.reads.rollups import Sums, sums

ALL = Scope(None, None)


@dataclass(frozen=True)
class EnergyHour:
    """What leases that began in the hour from ``hour_ns`` (Unix time) on drew, in millijoules; None where no driver told it.

    ``energy_duration_ns`` is the part of ``duration_ns`` that it is of.
    """

    hour_ns: int
    energy_mj: int | None
    energy_duration_ns: int
    duration_ns: int


def by_hour(connection: Connection, since_ns: int) -> list[EnergyHour]:
    """The hours in which anything was used, oldest first."""
    found: dict[int, Sums] = defaultdict(Sums)
    for (hour_ns, _currency), one in sums(connection, ALL, since_ns, None, ("hour",)).items():
        found[int(hour_ns)].add(one)
    return [
        EnergyHour(hour_ns, one.energy_mj if one.told else None, one.energy_duration_ns, one.duration_ns)
        for hour_ns, one in sorted(found.items())
    ]

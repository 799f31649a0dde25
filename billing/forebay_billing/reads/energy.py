"""What devices drew, by hour, of the rollup as far as that goes."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection

from forebay_billing.reads.rollups import drawn_by_hour


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
    return [
        EnergyHour(hour_ns, one.energy_mj if one.told else None, one.energy_duration_ns, one.duration_ns)
        for hour_ns, one in sorted(drawn_by_hour(connection, since_ns).items())
    ]

"""What devices drew, as rows of the HTTP interface."""

from __future__ import annotations

from typing_extensions import TypedDict

from forebay_billing.documents.usage import co2_mg
from forebay_billing.reads.energy import EnergyHour


class EnergyRow(TypedDict):
    """Of the leases that began in the hour; ``energy_mj`` is None where no driver told it."""

    hour_ns: int
    energy_mj: int | None
    energy_duration_ns: int
    duration_ns: int
    co2_mg: int | None


def energy_json(hour: EnergyHour, grams_co2_per_kwh: float | None) -> EnergyRow:
    """An hour's energy."""
    return {
        "hour_ns": hour.hour_ns,
        "energy_mj": hour.energy_mj,
        "energy_duration_ns": hour.energy_duration_ns,
        "duration_ns": hour.duration_ns,
        "co2_mg": co2_mg(hour.energy_mj, grams_co2_per_kwh),
    }

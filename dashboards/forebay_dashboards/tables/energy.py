"""What devices drew, as bars of energy by hour or day that a template draws. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta, tzinfo

from forebay_dashboards.rows.bases import Over
from forebay_dashboards.rows.billing import EnergyHour
from forebay_dashboards.tables.chart import LABELS_MAX
from forebay_dashboards.tables.scale import Tick, end_of, plain, upright
from forebay_dashboards.tables.spend import Energy, energy
from forebay_dashboards.tables.trends import HOUR_NS
from forebay_dashboards.text.times import moment

UNITS = (("J", 1_000), ("Wh", 3_600_000), ("kWh", 3_600_000_000), ("MWh", 3_600_000_000_000))
"""Of the upright axis, in millijoules."""
DAYS: dict[Over, int] = {"day": 1, "week": 7, "month": 30}


@dataclass(frozen=True)
class EnergyBar:
    """An hour, or a day of the viewer's; ``x`` is its left edge, ``height`` what it drew, both in percents. ``drawn`` is None where no
    driver told anything."""

    label: str
    drawn: Energy | None
    x: float
    height: float


@dataclass(frozen=True)
class EnergyChart:
    """``drawn`` is of all of it, None where no device told; ``used``: whether any was held."""

    unit: str
    bars: tuple[EnergyBar, ...]
    ticks: tuple[Tick, ...]
    labels: tuple[Tick, ...]
    drawn: Energy | None
    used: bool

    @property
    def step(self) -> float:
        """How wide a bar is with the room around it, in percents."""
        return 100 / len(self.bars)


def energy_chart(over: Over, hours: Sequence[EnergyHour], now_ns: int, zone: tzinfo) -> EnergyChart:
    """By hour of the last day, else by the viewer's days, to which hours belong by their beginnings."""
    slots = _slots(over, now_ns, zone)
    found: dict[str, list[EnergyHour]] = {label: [] for label, _ in slots}
    for hour in hours:
        found.get(_slot(over, hour.hour_ns, zone)[0], []).append(hour)
    shown = [hour for of_slot in found.values() for hour in of_slot]
    drawn = {label: energy(of_slot) for label, of_slot in found.items()}
    highest = max((one.drawn_mj for one in drawn.values() if one is not None), default=0)
    unit, size = next((one for one in reversed(UNITS) if highest >= one[1]), UNITS[0])
    end, step, every = end_of(highest / size), 100 / len(slots), -(-len(slots) // LABELS_MAX)
    bars = tuple(
        EnergyBar(label, one, round(number * step, 3), 0 if one is None else round(100 * one.drawn_mj / (end * size), 3))
        for number, (label, one) in enumerate(drawn.items())
    )
    labels = tuple(Tick(round((number + 0.5) * step, 3), slots[number][1]) for number in range(0, len(slots), every))
    return EnergyChart(unit, bars, upright(end, plain), labels, energy(shown), any(hour.duration_ns for hour in shown))


def _slots(over: Over, now_ns: int, zone: tzinfo) -> list[tuple[str, str]]:
    """All of them, each with a shorter label, the last one of now."""
    if over == "day":
        last_ns = now_ns - now_ns % HOUR_NS
        return [_slot(over, last_ns - back * HOUR_NS, zone) for back in reversed(range(24))]
    today = moment(now_ns).astimezone(zone).date()
    days = [today - timedelta(days=back) for back in reversed(range(DAYS[over]))]
    return [(str(day), f"{day:%m-%d}") for day in days]


def _slot(over: Over, at_ns: int, zone: tzinfo) -> tuple[str, str]:
    when = moment(at_ns).astimezone(zone)
    return (f"{when:%Y-%m-%d %H:%M %z}", f"{when:%H:%M}") if over == "day" else (str(when.date()), f"{when:%m-%d}")

"""The form of a tenant's plan: what was typed, and the terms that it means. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from forebay_service.languages import Text
from pydantic import BaseModel, ConfigDict, Field

from forebay_dashboards.errors import FormError, MoneyError
from forebay_dashboards.rows.billing import Plan
from forebay_dashboards.text.money import NANO, SECONDS_PER_HOUR, format_decimal, parse_decimal

Entry = Annotated[str, Field(max_length=4096)]
TERMS = ("discount", "free", "free_hours", "tiers", "commitment")
"""The fields that say what was agreed on."""


class TypedPlan(BaseModel):
    """The fields of the form as they arrive."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tenant: Annotated[str, Field(min_length=1, max_length=128)]
    currency: Annotated[str, Field(max_length=16)]
    valid_from: Annotated[str, Field(max_length=16)] = ""
    discount: Entry = ""
    free: Entry = ""
    free_hours: Entry = ""
    tiers: Entry = ""
    commitment: Entry = ""
    new: Literal["", "1"] = ""
    stamp: Annotated[str, Field(max_length=64)] = ""
    whose: Annotated[str, Field(max_length=128)] = ""
    """The tag of the plan that the form was opened with, if any."""
    action: Literal["preview", "save"] = "save"

    def terms(self) -> dict[str, object]:
        """As billing takes them. Raises FormError, MoneyError."""
        return {"currency": self.currency.strip().upper()} | {sent: read() for sent, read in self.parts().values()}

    def parts(self) -> dict[str, tuple[str, Callable[[], object]]]:
        """By field of TERMS: what billing calls it, and what reads it, which raises FormError and MoneyError."""
        return {
            "discount": ("discount_bps", lambda: parse_decimal(self.discount, 2, Text("Discount"))),
            "free": ("free_nano", lambda: parse_decimal(self.free, 9, Text("Free of charge"))),
            "free_hours": ("free_seconds", lambda: {name: _seconds(hours) for name, hours in _free_hours(self.free_hours)}),
            "tiers": ("tiers", lambda: [_tier(amount, percent) for amount, percent in _tiers(self.tiers)]),
            "commitment": ("commitment_nano", lambda: parse_decimal(self.commitment, 9, Text("Commitment"))),
        }


def typed(plan: Plan | None) -> dict[str, str]:
    """What was agreed on, as the fields of TERMS hold it; all empty where nothing was."""
    if plan is None:
        return dict.fromkeys(TERMS, "")
    return {
        "discount": _unless_zero(plan.discount_bps, 2),
        "free": _unless_zero(plan.free_nano, 9),
        "free_hours": ", ".join(f"{flavor}={_hours(seconds)}" for flavor, seconds in plan.free_seconds.items()),
        "tiers": ", ".join(f"{format_decimal(tier.from_nano, 9)}={format_decimal(tier.discount_bps, 2)}" for tier in plan.tiers),
        "commitment": _unless_zero(plan.commitment_nano, 9),
    }


def _unless_zero(scaled: int, decimals: int) -> str:
    return format_decimal(scaled, decimals) if scaled else ""


def _free_hours(text: str) -> list[tuple[str, str]]:
    return _pairs(text, Text("Free hours"), "dev.1gb=100")


def _tiers(text: str) -> list[tuple[str, str]]:
    return _pairs(text, Text("Tiers"), "1000=5, 10000=10")


def _tier(amount: str, percent: str) -> dict[str, int]:
    return {"from_nano": parse_decimal(amount, 9, Text("Tiers")), "discount_bps": parse_decimal(percent, 2, Text("Tiers"))}


def _pairs(text: str, what: Text, example: str) -> list[tuple[str, str]]:
    """``a=1, b=2``. Raises FormError."""
    pairs = [(name.strip(), value) for name, _, value in (part.rpartition("=") for part in text.split(",") if part.strip())]
    if not all(name and value.strip() for name, value in pairs):
        raise FormError(Text("%(what)s: enter them as in %(example)s.", what=what, example=example))
    if len({name for name, _ in pairs}) != len(pairs):
        raise FormError(Text("%(what)s: each may be there once.", what=what))
    return pairs


def _hours(seconds: int) -> str:
    """As :func:`_seconds` reads it: in hours where they are a decimal, else in seconds."""
    hours, rest = divmod(seconds * NANO, SECONDS_PER_HOUR)
    return f"{seconds}s" if rest else format_decimal(hours, 9)


def _seconds(hours: str) -> int:
    """Of ``1.5`` hours, or of ``100s``."""
    if hours.strip().endswith("s"):
        return parse_decimal(hours.strip().removesuffix("s"), 0, Text("Free hours"))
    seconds, rest = divmod(parse_decimal(hours, 9, Text("Free hours")) * SECONDS_PER_HOUR, NANO)
    if rest:
        raise MoneyError(Text("Free hours: %(hours)s hours are not a whole number of seconds.", hours=hours.strip()))
    return seconds

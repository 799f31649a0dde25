"""The form of a tenant's plan: what was typed, and the terms that it means. No I/O."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from forebay_dashboards.errors import FormError, MoneyError
from forebay_dashboards.money import NANO, SECONDS_PER_HOUR, parse_decimal

Text = Annotated[str, Field(max_length=4096)]


class TypedPlan(BaseModel):
    """The fields of the form as they arrive."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tenant: Annotated[str, Field(min_length=1, max_length=128)]
    currency: Annotated[str, Field(max_length=16)]
    valid_from: Annotated[str, Field(max_length=16)] = ""
    discount: Text = ""
    free: Text = ""
    free_hours: Text = ""
    tiers: Text = ""
    commitment: Text = ""
    new: Literal["", "1"] = ""
    action: Literal["preview", "save"] = "save"

    def terms(self) -> dict[str, object]:
        """As billing takes them. Raises FormError, MoneyError."""
        return {
            "currency": self.currency.strip().upper(),
            "discount_bps": parse_decimal(self.discount, 2, "Discount"),
            "free_nano": parse_decimal(self.free, 9, "Free of charge"),
            "free_seconds": {name: _seconds(hours) for name, hours in _pairs(self.free_hours, "Free hours", "dev.1gb=100")},
            "tiers": [
                {"from_nano": parse_decimal(amount, 9, "Tiers"), "discount_bps": parse_decimal(percent, 2, "Tiers")}
                for amount, percent in _pairs(self.tiers, "Tiers", "1000=5, 10000=10")
            ],
            "commitment_nano": parse_decimal(self.commitment, 9, "Commitment"),
        }


def _pairs(text: str, what: str, example: str) -> list[tuple[str, str]]:
    """``a=1, b=2``. Raises FormError."""
    pairs = [(name.strip(), value) for name, _, value in (part.rpartition("=") for part in text.split(",") if part.strip())]
    if not all(name and value.strip() for name, value in pairs):
        raise FormError(f"{what}: enter them as in {example}.")
    if len({name for name, _ in pairs}) != len(pairs):
        raise FormError(f"{what}: each may be there once.")
    return pairs


def _seconds(hours: str) -> int:
    seconds, rest = divmod(parse_decimal(hours, 9, "Free hours") * SECONDS_PER_HOUR, NANO)
    if rest:
        raise MoneyError(f"Free hours: {hours.strip()} hours are not a whole number of seconds.")
    return seconds

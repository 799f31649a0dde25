"""The form of a model's surcharge: what was typed, and what it means. No I/O."""

from __future__ import annotations

from typing import Annotated

from forebay_hub.languages import Text
from pydantic import BaseModel, ConfigDict, Field

from forebay_dashboards.errors import FormError
from forebay_dashboards.money import format_price_per_hour, parse_price_per_hour
from forebay_dashboards.times import start_of


class TypedSurcharge(BaseModel):
    """The fields of the form as they arrive."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: Annotated[str, Field(min_length=1, max_length=128)]
    currency: Annotated[str, Field(max_length=16)]
    price: Annotated[str, Field(max_length=64)]
    start: Annotated[str, Field(max_length=32)] = ""
    """As a browser sends a date and a time; in UTC."""

    def body(self) -> dict[str, object]:
        """As billing takes it. Raises FormError, MoneyError."""
        price = parse_price_per_hour(self.price)
        if not price.exact:
            nearest = format_price_per_hour(price.nano_per_second)
            raise FormError(
                Text(
                    "%(typed)s an hour cannot be billed exactly; the nearest that can is %(nearest)s.",
                    typed=self.price.strip(),
                    nearest=nearest,
                )
            )
        return {
            "surcharge_nano_per_second": price.nano_per_second,
            "currency": self.currency.strip().upper(),
            "valid_from_ns": start_of(self.start),
        }

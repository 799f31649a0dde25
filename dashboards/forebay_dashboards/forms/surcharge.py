"""The form of a model's surcharge: what was typed, and what it means. No I/O."""

from __future__ import annotations

from typing import Annotated

from forebay_service.languages import Text
from pydantic import BaseModel, ConfigDict, Field

from forebay_dashboards.errors import FormError
from forebay_dashboards.rows.billing import SurchargeVersion
from forebay_dashboards.text.money import format_price_per_hour, parse_price_per_hour
from forebay_dashboards.text.times import start_of


class TypedSurcharge(BaseModel):
    """The fields of the form as they arrive."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: Annotated[str, Field(min_length=1, max_length=128)]
    currency: Annotated[str, Field(max_length=16)]
    price: Annotated[str, Field(max_length=64)]
    start: Annotated[str, Field(max_length=32)] = ""
    """As a browser sends a date and a time; in UTC."""
    stamp: Annotated[str, Field(max_length=64)] = ""
    whose: Annotated[str, Field(max_length=160)] = ""
    """The tag of the surcharge that the form was opened with, if any."""

    @property
    def subject(self) -> str:
        """Model and currency."""
        return f"{self.model.strip()}/{self.currency.strip().upper()}"

    def body(self) -> dict[str, object]:
        """As billing takes it. Raises FormError, MoneyError."""
        price = parse_price_per_hour(self.price)
        if not price.exact:
            nearest = format_price_per_hour(price.nano_per_hour)
            raise FormError(
                Text(
                    "%(typed)s an hour cannot be billed exactly; the nearest that can is %(nearest)s.",
                    typed=self.price.strip(),
                    nearest=nearest,
                )
            )
        return {
            "surcharge_nano_per_hour": price.nano_per_hour,
            "currency": self.currency.strip().upper(),
            "valid_from_ns": start_of(self.start),
        }


def filled_with(version: SurchargeVersion) -> dict[str, str]:
    """The fields with what a version says."""
    price = format_price_per_hour(version.surcharge_nano_per_hour)
    return {"model": version.model, "currency": version.currency, "price": price}

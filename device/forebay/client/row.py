"""The base of everything that a service answers."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Row(BaseModel):
    """Fields are as the wire has them, and exact: what ends in ``_ns`` is whole nanoseconds (of Unix time after ``_at``), in ``_nano``
    whole nano-units (1e-9) of a currency, in ``_minor`` its smallest coins; other amounts are ``Decimal`` in units of the currency.

    What a later release of a service adds is left out.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

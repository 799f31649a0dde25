"""What usage costs."""

from __future__ import annotations

from forebay.client.calls import Calls
from forebay.client.models.billing import ParkedPriceRow, PlanRow, PriceRow, SurchargeRow


class PriceCalls(Calls):
    """Calls to billing about prices. With ``history`` they answer all versions, oldest first, else what is in force."""

    def prices(self, *, flavor: str | None = None, history: bool = False) -> list[PriceRow]:
        """What flavors cost by the hour."""
        return self._read(list[PriceRow], self._books, "api/prices", flavor=flavor, history=history)

    def surcharges(self, *, history: bool = False) -> list[SurchargeRow]:
        """What models of devices cost beside the flavor's price; zero where there is none."""
        return self._read(list[SurchargeRow], self._books, "api/surcharges", history=history)

    def parked_prices(self) -> list[ParkedPriceRow]:
        """All versions of what parked bytes cost; nothing where there is none."""
        return self._read(list[ParkedPriceRow], self._books, "api/parked-prices")

    def price_list(self) -> str:
        """The price book as YAML, what is scheduled included."""
        return self._file(self._books, "api/price-list").decode()

    def plans(self, *, tenant: str | None = None, month: str | None = None, history: bool = False) -> list[PlanRow]:
        """The plans in force in a month, ``2026-11``; for a tenant's owner and who pays for it."""
        return self._read(list[PlanRow], self._books, "api/plans", tenant=tenant, month=month, history=history)

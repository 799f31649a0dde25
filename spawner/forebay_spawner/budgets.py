"""What is left of the budgets that concern a user. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from forebay_service.causes import why_budget_stops
from forebay_service.languages import Text, as_sent
from pydantic import TypeAdapter

from forebay_spawner.flavors import Answer, amount


class Budget(Answer):
    """One entry of billing's ``GET api/budgets``; amounts are None where they are not for the user."""

    tenant: str | None = None
    user: str | None = None
    notebook: str | None = None
    currency: str
    period: str
    limit_nano: int | None = None
    left_nano: int | None = None
    state: str
    """``open`` while it stops nobody."""
    code: str | None = None
    origin: str = "operator"
    sentence: str | None = None

    @property
    def left(self) -> Text | None:
        """For example ``Your budget, 2026-11: 3.20 USD of 10.00 USD left``; None where the amounts are not for the user."""
        if self.limit_nano is None or self.left_nano is None:
            return None
        return Text(
            "%(budget)s, %(period)s: %(left)s of %(limit)s left",
            budget=self._name,
            period=Text("in all") if self.period == "total" else self.period,
            left=amount(max(0, self.left_nano), self.currency),
            limit=amount(self.limit_nano, self.currency),
        )

    @property
    def stops(self) -> Text | None:
        """Why it stops somebody, if it does: in English as billing says it, in other languages by its code, else as its state says."""
        if self.state == "open" or not self.sentence:
            return None
        why = why_budget_stops(self.code, self.tenant, self.user, self.notebook, self.period, self.origin)
        return as_sent(self.sentence, why or _STOPPED.get(self.state))

    @property
    def _name(self) -> Text:
        if self.notebook:
            return Text("Budget of %(notebook)s", notebook=self.notebook)
        return Text("Your budget") if self.user else Text("The tenant's budget")


_STOPPED = {
    "wait": Text("The budget is used up: who waits goes on waiting until it is raised."),
    "refuse": Text("The budget is used up: new leases are refused until it is raised."),
    "drain": Text("The budget is used up: leases are taken back until it is raised."),
}

_BUDGETS = TypeAdapter(list[Budget])


def read_budgets(body: bytes) -> Sequence[Budget]:
    """Billing's answer. Raises ValidationError."""
    return _BUDGETS.validate_json(body)

"""What is left of the budgets that concern a user. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import TypeAdapter, ValidationError

from forebay_spawner.flavors import Answer, amount


class Budget(Answer):
    """One entry of billing's ``GET api/budgets``; amounts are None where they are not for the user."""

    user: str | None = None
    notebook: str | None = None
    currency: str
    period: str
    limit_nano: int | None = None
    left_nano: int | None = None
    state: str
    """``open`` while it stops nobody."""
    sentence: str | None = None

    @property
    def left(self) -> str | None:
        """For example ``Your budget, 2026-11: 3.20 USD of 10.00 USD left``; None where the amounts are not for the user."""
        if self.limit_nano is None or self.left_nano is None:
            return None
        of = f"Budget of {self.notebook}" if self.notebook else "Your budget" if self.user else "The tenant's budget"
        period = "in all" if self.period == "total" else self.period
        left = f"{amount(max(0, self.left_nano), self.currency)} of {amount(self.limit_nano, self.currency)} left"
        return f"{of}, {period}: {left}"


_BUDGETS = TypeAdapter(list[Budget])


def read_budgets(body: bytes) -> Sequence[Budget]:
    """Billing's answer; nothing where it is of another version, since a missing budget keeps nobody from starting."""
    try:
        return _BUDGETS.validate_json(body)
    except ValidationError:
        return ()

"""Experiments: names under which work is billed, each with a budget that the pool enforces.

An experiment is a label of device time, and its budget one of billing's for that label: the pool takes leases back where it is used up,
the tensors stay, and no lease is given before it is raised. What is asked here only tells sooner.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal

from forebay.client import Client
from forebay.client.models.billing import BudgetStanding, ChargeRow
from forebay.errors import ForebayError
from forebay.toolkit.jobs.costs import amount

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
AMOUNT = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,9})?")
PREFIX = "experiment "
"""How their labels begin: no notebook or script is called so."""
OPEN = "open"


@dataclass(frozen=True)
class Experiment:
    """How an experiment stands. Amounts are exact to 1e-9 of the currency."""

    name: str
    budget: str
    spent: str
    """With what runs now, as of the pool's last report to billing, which is some seconds old."""
    left: str
    currency: str
    may_run: bool
    why: str | None
    """Why it may not."""


def label_of(name: str) -> str:
    """Raises ForebayError for what is no name."""
    if NAME.fullmatch(name) is None:
        raise ForebayError(f"{name!r} is no name of an experiment: letters, digits, _, . and -, 64 at most.")
    return PREFIX + name


def name_of(label: str) -> str:
    """The experiment's of that label."""
    return label.removeprefix(PREFIX)


def is_label(label: str) -> bool:
    """Whether it is an experiment's."""
    return label.startswith(PREFIX)


def nano_of(text: str) -> int:
    """An amount as nano-units. Raises ForebayError."""
    if AMOUNT.fullmatch(text.strip()) is None:
        raise ForebayError(f"{text!r} is no amount; write a decimal number from 0 on with at most 9 decimals, as 0.50.")
    return int(Decimal(text.strip()).scaleb(9))


class Experiments:
    """Those of the token's bearer."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def all(self) -> list[Experiment]:
        """Those that have a budget, the latest first. Raises ForebayError."""
        return [_experiment(row) for row in sorted(self._rows(), key=lambda row: -row.set_at_ns)]

    def _rows(self) -> list[BudgetStanding]:
        return [row for row in self._client.budgets() if is_label(row.notebook or "") and row.window == "total"]

    def of(self, name: str) -> Experiment:
        """Raises ForebayError where it has no budget."""
        label_of(name)
        found = [experiment for experiment in self.all() if experiment.name == name]
        if not found:
            raise ForebayError(f"The experiment {name} has no budget; give it one with the tool set_budget.")
        return min(found, key=lambda experiment: (experiment.may_run, Decimal(experiment.left)))

    def check(self, name: str) -> None:
        """Raises ForebayError where nothing may be run for it."""
        found = self.of(name)
        if not found.may_run:
            raise ForebayError(
                f"The budget of the experiment {name} is used up: {found.spent} of {found.budget} {found.currency} are spent. "
                "Nothing runs before it is raised; tensors stay where they are."
            )

    def is_spent(self, name: str) -> bool:
        """Whether billing says so; what cannot be asked now is not spent."""
        try:
            return not self.of(name).may_run
        except ForebayError:
            return False

    def set_budget(self, name: str, limit: str) -> Experiment:
        """Raises ForebayError."""
        self._client.set_budget(
            nano_of(limit), notebook=label_of(name), window="total", thresholds=(), on_limit="drain", grace_seconds=0, new=True
        )
        return self.of(name)

    def end(self, name: str) -> None:
        """Takes its budget away, without which nothing runs for it. Raises ForebayError."""
        rows = [row for row in self._rows() if row.notebook == label_of(name)]
        if not rows:
            raise ForebayError(f"The experiment {name} has no budget.")
        for row in rows:
            self._client.remove_budget(row.id)

    def usage(self, names: Iterable[str]) -> Iterator[ChargeRow]:
        """All that billing has posted for some, of each the latest first. Raises ForebayError."""
        for name in names:
            yield from self._client.usage(notebook=label_of(name))


def _experiment(row: BudgetStanding) -> Experiment:
    limit, spent = row.limit_nano or 0, (row.spent_nano or 0) + (row.running_nano or 0)
    may_run = row.state == OPEN and spent < limit
    why = None if may_run else row.sentence or "Its budget is used up."
    return Experiment(name_of(row.notebook or ""), money(limit), money(spent), money(max(0, limit - spent)), row.currency, may_run, why)


def money(nano: int) -> str:
    """Nano-units as an amount, exactly."""
    return amount(Decimal(nano).scaleb(-9))

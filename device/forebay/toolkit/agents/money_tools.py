"""The tools about money: experiments and their budgets, and what work has cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any

from pydantic import Field

from forebay.client import Client
from forebay.client.models.billing import ChargeRow
from forebay.toolkit.agents.experiments import Experiment, Experiments, money, name_of
from forebay.toolkit.agents.kernel_tools import ExperimentName, KernelName
from forebay.toolkit.agents.registry import Registry
from forebay.toolkit.jobs.costs import amount

ROWS_MAX = 100
Amount = Annotated[str, Field(description="A decimal number of the currency in which the user is billed, as 0.50; 0 lets nothing run.")]


@dataclass(frozen=True)
class RunCost:
    """What one run has cost."""

    id: str
    """As run_code told it."""
    experiment: str
    cost: str
    currency: str
    device_seconds: float


@dataclass(frozen=True)
class Cost:
    """What billing has posted, exactly."""

    total: dict[str, str]
    """By currency."""
    runs: list[RunCost]
    """The latest first."""
    runs_left_out: int


@dataclass(frozen=True)
class Month:
    """This month (UTC) in one currency."""

    currency: str
    spent: str
    forecast: str
    """At its end, if it goes on as in the last seven days."""


class MoneyTools:
    """Each method is a tool; its docstring tells agents what it does."""

    def __init__(self, client: Client, experiments: Experiments, registry: Registry) -> None:
        self._client = client
        self._experiments = experiments
        self._registry = registry

    @property
    def tools(self) -> list[Callable[..., Any]]:
        return [self.set_budget, self.end_experiment, self.list_experiments, self.experiment_cost, self.kernel_cost, self.month_cost]

    def set_budget(self, experiment: ExperimentName, budget: Amount) -> Experiment:
        """Begin an experiment, or change what it may cost in all. The service enforces it, whatever code does.

        Once that is used up, the device is taken back at most one billing tick (some seconds) later, tensors stay, the run is
        interrupted, and nothing runs before the budget is raised.
        """
        return self._experiments.set_budget(experiment, budget)

    def end_experiment(self, experiment: ExperimentName) -> str:
        """Take an experiment's budget away: nothing runs for it any more. Its costs stay known. A user has at most 100 budgets."""
        self._experiments.end(experiment)
        return f"Nothing runs for the experiment {experiment} any more."

    def list_experiments(self) -> list[Experiment]:
        """List experiments with their budgets and what they have spent, the latest first (100 at most)."""
        return self._experiments.all()[:ROWS_MAX]

    def experiment_cost(self, experiment: ExperimentName) -> Cost:
        """Exactly what an experiment has cost so far, and each of its runs; what runs now is posted some seconds after its end."""
        return _cost(self._experiments.usage([experiment]))

    def kernel_cost(self, kernel: KernelName) -> Cost:
        """Exactly what the runs of a kernel have cost so far, of all experiments."""
        found = self._registry.kernel(kernel)
        return _cost(self._experiments.usage(found.experiments), lambda run: run.startswith(found.key))

    def month_cost(self) -> list[Month]:
        """What the user has spent this month (UTC), notebooks and jobs included, and what the month will come to."""
        return [Month(row.currency, money(row.spent_nano), money(row.forecast_nano)) for row in self._client.forecast()]


def _cost(usage: Iterable[ChargeRow], is_wanted: Callable[[str], bool] = lambda run: True) -> Cost:
    total: dict[str, Decimal] = {}
    by_run: dict[tuple[str, str, str], tuple[Decimal, int]] = {}
    for row in usage:
        run = row.span.cell_id or row.span.id
        if not is_wanted(run):
            continue
        total[row.currency] = total.get(row.currency, Decimal(0)) + row.cost_exact
        key = run, name_of(row.span.label), row.currency
        cost, device_ns = by_run.get(key, (Decimal(0), 0))
        by_run[key] = cost + row.cost_exact, device_ns + row.duration_ns
    runs = [RunCost(run, name, amount(cost), currency, device_ns / 1e9) for (run, name, currency), (cost, device_ns) in by_run.items()]
    by_currency = {currency: amount(cost) for currency, cost in sorted(total.items())}
    return Cost(by_currency, runs[:ROWS_MAX], max(0, len(runs) - ROWS_MAX))

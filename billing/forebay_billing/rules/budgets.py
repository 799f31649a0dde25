"""Budgets: what a tenant, a user or a notebook may cost, what happens when it has, and what a month will have cost. Pure.

What counts is usage at list price and surcharge, as it is rated, corrections taken off: what the ledger posts, before discounts, free
allowances, credits and tax. To what was posted comes what runs: the open leases, up to the pool's last word on them.

A budget that drains begins early enough for the grace to end at the limit. So no more is overspent than what runs costs between two
answered words of the pool; ``docs/reference/billing.md`` states the bound, and the simulator asserts it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Literal

from forebay_service.errors import Fault

from forebay_billing.errors import Forbidden, InvalidRequest
from forebay_billing.model.money import nano_text, round_half_even
from forebay_billing.model.months import Month

DAY_NS = 86_400 * 10**9
SECOND_NS = 10**9
THRESHOLDS = (50, 80, 100)
"""Per cent of the limit."""
THRESHOLDS_MAX = 10
THRESHOLD_MAX = 1000
GRACE_SECONDS = 60
GRACE_SECONDS_MAX = 3600
LIMIT_NANO_MAX = 10**24
SETTLING_NS = SECOND_NS
"""For so long leases may go on after they were told to end, or an answer may be on its way: kept back from what a drain lets be spent."""
FORECAST_DAYS = 7
TOTAL = "total"
"""The window of a budget that is not monthly."""

Window = Literal["month", "total"]
OnLimit = Literal["notify", "refuse", "drain"]
State = Literal["open", "wait", "refuse", "drain"]
Origin = Literal["operator", "owner", "user"]
"""Who set a budget: a user does for labels of their own."""
StopCode = Literal["used_up", "nearly_used_up"]
"""Why a budget stops somebody; a drain begins before its end."""
_STRICTNESS: tuple[State, ...] = ("open", "wait", "refuse", "drain")


@dataclass(frozen=True)
class Subject:
    """Whose usage counts: a tenant's, a user's, or what a user's spans of one label cost: a notebook's path, a script's command line."""

    tenant: str
    user: str | None = None
    notebook: str | None = None

    def covers(self, other: Subject) -> bool:
        """Whether what ``other`` costs counts here as well."""
        return self.tenant == other.tenant and self.user in (None, other.user) and self.notebook in (None, other.notebook)

    @property
    def around(self) -> tuple[Subject, ...]:
        """The subjects for which it counts: itself, its user, its tenant."""
        tenant, user = Subject(self.tenant), Subject(self.tenant, self.user)
        if self.notebook is not None:
            return tenant, user, self
        return (tenant,) if self.user is None else (tenant, user)

    def __str__(self) -> str:
        if self.notebook is not None:
            return f"notebook {self.notebook} of {self.user} ({self.tenant})"
        return f"tenant {self.tenant}" if self.user is None else f"{self.user} of {self.tenant}"


@dataclass(frozen=True)
class Budget:
    """A limit for a subject in a currency. Of a subject, currency, window and origin there is one."""

    id: int
    subject: Subject
    currency: str
    window: Window
    origin: Origin
    limit_grains: int
    thresholds: tuple[int, ...]
    on_limit: OnLimit
    grace_seconds: int
    """How long leases may go on after a drain told them to end."""
    set_at_ns: int
    """When it was set, or changed last."""
    set_by: str


@dataclass(frozen=True)
class Running:
    """What the open leases have cost that no usage record tells of yet, by period, and what an hour of them costs."""

    accrued_grains: Mapping[str, int]
    rate_nano_per_hour: int = 0

    @property
    def total_grains(self) -> int:
        return sum(self.accrued_grains.values())


IDLE = Running({})

Accrued = Mapping[tuple[Subject, str], Running]
"""By subject and currency."""


@dataclass(frozen=True)
class Spent:
    """What was posted for a subject: by period, and by UTC day of use (days since 1970)."""

    by_period: Mapping[str, int]
    by_day: Mapping[int, int]

    @property
    def total_grains(self) -> int:
        return sum(self.by_period.values())


NOTHING = Spent({}, {})


@dataclass(frozen=True)
class Standing:
    """How a budget stands in the window that is open now."""

    budget: Budget
    period: str
    """The month, or ``total``."""
    spent_grains: int
    running_grains: int
    state: State
    grace_ns: int
    """What is left of the grace, while it drains."""
    forecast_grains: int
    """What the subject will have cost in the window when the month ends."""
    forecast_range: tuple[int, int] | None
    """Between which it will be, in grains; None before a whole day."""

    @property
    def used_grains(self) -> int:
        return self.spent_grains + self.running_grains

    @property
    def left_grains(self) -> int:
        return max(0, self.budget.limit_grains - self.used_grains)

    @property
    def code(self) -> StopCode | None:
        """Why it stops somebody; None while it does not."""
        if self.state == "open":
            return None
        return "used_up" if self.used_grains >= self.budget.limit_grains else "nearly_used_up"

    @property
    def sentence(self) -> str | None:
        """The code in English, for callers that know it not; without amounts, which are not for everybody."""
        if self.code is None:
            return None
        budget = self.budget
        whose = f"The budget{f' of {self.period}' if budget.window == 'month' else ''} for {budget.subject}"
        subject = budget.subject
        asked = {"operator": "an operator", "owner": "the tenant's owner", "user": f"{subject.user} of {subject.tenant}"}[budget.origin]
        return f"{whose} is {self.code.replace('_', ' ')}; {asked} can raise it."


@dataclass(frozen=True)
class Due:
    """A threshold that was reached: an alert is owed, once."""

    budget: Budget
    period: str
    threshold: int
    used_grains: int


@dataclass(frozen=True)
class Verdict:
    """What all budgets of one subject do together: the strictest counts."""

    subject: Subject
    state: State
    grace_ns: int
    standing: Standing
    """The tag of that budget."""


def standing(budget: Budget, spent: Spent, running: Running, last_rate: int, now_ns: int) -> Standing:
    """How the budget stands. ``last_rate`` is what an hour of the subject's leases cost when any last ran, in nano-units."""
    period = period_of(budget, now_ns)
    spent_grains, running_grains = used_in(period, spent, running)
    used_grains = spent_grains + running_grains
    state, grace = _state(budget, budget.limit_grains - used_grains, running.rate_nano_per_hour, last_rate)
    expected = forecast(used_grains, spent.by_day, now_ns), forecast_range(used_grains, spent.by_day, now_ns)
    return Standing(budget, period, spent_grains, running_grains, state, grace, *expected)


def period_of(budget: Budget, now_ns: int) -> str:
    """What the limit is for now: TOTAL, or the month."""
    return TOTAL if budget.window == "total" else str(Month.of(now_ns))


def used_in(period: str, spent: Spent, running: Running) -> tuple[int, int]:
    """What was posted in the period (TOTAL, or a month), and what runs in it, in grains."""
    if period == TOTAL:
        return spent.total_grains, running.total_grains
    return spent.by_period.get(period, 0), running.accrued_grains.get(period, 0)


def _state(budget: Budget, left_grains: int, rate: int, last_rate: int) -> tuple[State, int]:
    """The state, and the grace that the budget can still pay, in nanoseconds."""
    if budget.on_limit == "notify":
        return "open", 0
    if budget.on_limit == "refuse":
        return ("refuse" if left_grains <= 0 else "open"), 0
    grace_ns = budget.grace_seconds * SECOND_NS
    ahead_ns = SETTLING_NS + (grace_ns if rate else 0)
    if left_grains > (rate or last_rate) * ahead_ns:
        return "open", 0
    if not rate:
        return "drain", 0
    return "drain", max(0, min(grace_ns, left_grains // rate - SETTLING_NS))


def windows(budget: Budget, now_ns: int) -> list[str]:
    """The windows whose thresholds are looked at: usage of last month may still arrive, if the budget was then what it is."""
    if budget.window == "total":
        return [TOTAL]
    month = Month.of(now_ns)
    before = Month.of(month.start_ns - 1)
    return [str(before), str(month)] if budget.set_at_ns < month.start_ns else [str(month)]


def alerts_due(budget: Budget, spent: Spent, running: Running, now_ns: int) -> list[Due]:
    """Every threshold that is reached, told before or not, in a fixed order: whoever writes them down writes each once."""
    due = []
    for period in windows(budget, now_ns):
        used = sum(used_in(period, spent, running))
        due += [Due(budget, period, share, used) for share in budget.thresholds if used * 100 >= budget.limit_grains * share]
    return due


def forecast_range(used_grains: int, by_day: Mapping[int, int], now_ns: int) -> tuple[int, int] | None:
    """Between which the forecast is told to people, by how much its days differ; None until a whole day with usage is over.

    It is the sum of the days that are left, each drawn as the last days were, give or take its standard deviation, that of their mean
    included. One day alone says nothing of others: then it is from what is used to twice as much a day.
    """
    today, left_days = now_ns // DAY_NS, (Month.of(now_ns).end_ns - now_ns) / DAY_NS
    first = min(by_day, default=today)
    length = min(FORECAST_DAYS, today - first)
    if length < 1 or not any(by_day.get(day, 0) for day in range(today - length, today)):
        return None
    costs = [by_day.get(day, 0) for day in range(today - length, today)]
    expected = mean(costs) * left_days
    spread = expected if length == 1 else stdev(costs) * math.sqrt(left_days + left_days**2 / length)
    return used_grains + round(max(0.0, expected - spread)), used_grains + round(expected + spread)


def forecast(used_grains: int, by_day: Mapping[int, int], now_ns: int) -> int:
    """What will have been used when the month (UTC) ends: ``used_grains``, and the mean of the last days for the time that is left.

    The mean is over the FORECAST_DAYS days before today, or as many of them as there are since the first with usage. Without one, it is
    what today cost so far over the time that today has lasted, an hour at least.
    """
    left_ns = Month.of(now_ns).end_ns - now_ns
    today = now_ns // DAY_NS
    days = [day for day in by_day if today - FORECAST_DAYS <= day < today]
    if not days:
        return used_grains + round_half_even(by_day.get(today, 0) * left_ns, max(3600 * SECOND_NS, now_ns % DAY_NS))
    known = any(day < today - FORECAST_DAYS for day in by_day)
    length = FORECAST_DAYS if known else today - min(days)
    return used_grains + round_half_even(sum(by_day[day] for day in days) * left_ns, length * DAY_NS)


def verdicts(standings: Iterable[Standing]) -> list[Verdict]:
    """The strictest state of each subject, with the shortest grace of those that drain, ordered by subject."""
    strictest: dict[Subject, Standing] = {}
    for candidate in standings:
        known = strictest.get(candidate.budget.subject)
        if known is None or _severity(candidate) > _severity(known):
            strictest[candidate.budget.subject] = candidate
    found = sorted(strictest.items(), key=lambda item: (item[0].tenant, item[0].user or "", item[0].notebook or ""))
    return [Verdict(subject, worst.state, worst.grace_ns, worst) for subject, worst in found]


def _severity(found: Standing) -> tuple[int, int, int]:
    return _STRICTNESS.index(found.state), -found.grace_ns, -found.left_grains


def check_new(budget: Budget, others: Sequence[Budget]) -> None:
    """Raises InvalidRequest for a budget that says nothing sensible, Forbidden for one of an owner beyond what operators allow."""
    shares = budget.thresholds
    if len(shares) > THRESHOLDS_MAX or list(shares) != sorted(set(shares)) or any(not 1 <= share <= THRESHOLD_MAX for share in shares):
        sentence = f"thresholds: give at most {THRESHOLDS_MAX} different per cents from 1 to {THRESHOLD_MAX}, the lowest first."
        raise InvalidRequest(sentence, Fault("thresholds", "thresholds", {"count": THRESHOLDS_MAX, "most": THRESHOLD_MAX}))
    if budget.subject.notebook is not None and budget.subject.user is None:
        raise InvalidRequest("user: a notebook's budget names its user too.", Fault("user_needed", "user"))
    if budget.origin == "operator":
        return
    for other in others:
        binds = other.origin == "operator" and other.subject.covers(budget.subject) and other.currency == budget.currency
        if binds and other.window == budget.window and budget.limit_grains > other.limit_grains:
            limit = nano_text(other.limit_grains)
            sentence = f"An operator allows {limit} {other.currency} for {other.subject}; a budget of yours may be that at most."
            raise Forbidden(sentence, Fault("operators_limit", values={"amount": f"{limit} {other.currency}", "whom": str(other.subject)}))

"""Budgets by the accountant's own arithmetic: what the pool was told and when, and whether no more was spent than the docs allow.

The overspend of a budget that drains is bounded by what its subject costs

* from the last heartbeat that was answered "open" until the next one that was answered (while billing or the pool is down none is;
  one that billing takes for late, since a new pool's clock is behind the last one's, tells it nothing),
* and whenever a pool is new and was not answered yet,
* and by what had been used at that last "open" and had not reached billing,
* and, by as much as prices rose meanwhile, in the grace,
* and, after the grace, until workers have let go.

A monthly budget is held to this from the last such "open" within the month until billing's clock has left the month: what a pool whose
clock is behind meters of it later, nothing stops.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from forebay_pool.model.events import BudgetSet, Event, Restored
from forebay_pool.model.types import UsageRecord

from simulation.agenda import SECOND_NS
from simulation.auditor import Caught
from simulation.money.months import month_of
from simulation.money.tariffs import NANO

SETTLING_NS = SECOND_NS
"""What a drain keeps back for the answer's way."""
LETS_GO_NS = 10 * SECOND_NS
"""A worker that is told to close has done it by then, was killed, or is no longer believed: close_seconds, a lost link, slow links; and
the second by which a grace that became shorter may be exceeded."""
STRICTNESS = ("open", "wait", "refuse", "drain")
Subject = tuple[str, str | None, str | None]
"""A tenant, a user of it, or a notebook of that one."""
Limited = tuple[Subject, str]
"""What a limit is for, and its window."""
Alert = tuple[Subject, str, int, int]
"""The subject, the period (a month, or "total"), the per cent, and the limit in nano-units."""
Cost = tuple[Mapping[str, int], int]
"""Of an open lease: what it has cost in each month, in grains, and its present rate."""


@dataclass(frozen=True, eq=False)
class Beat:
    """A heartbeat that was answered."""

    at_ns: int
    """When, by the simulator's clock."""
    asked_ns: int
    answered_ns: int
    """Billing's clock before and after."""
    named: Mapping[str, Mapping[str, Any]]
    """The open leases, by record."""
    told: Mapping[Subject, tuple[str, int]]
    """States that are not open, with the grace in nanoseconds."""
    in_force: Mapping[Limited, Mapping[str, Any]]
    """Budgets that surely were, as they were asked for."""
    overtaken: bool
    """Whether billing may take it for one that came late: the pool is new, and its clock is behind the last one's."""

    def period(self, window: str) -> str | None:
        """What a budget of the window was for; None where a month ended meanwhile."""
        if window == "total":
            return window
        month = month_of(self.asked_ns)
        return month if month == month_of(self.answered_ns) else None


@dataclass(frozen=True)
class Stretch:
    """Time of a lease at one rate, by the simulator's clock."""

    subject: tuple[str, str, str]
    start_ns: int
    end_ns: int
    nano_per_hour: int
    month: str
    """In which it is used, by the pool's clock."""

    def cost(self, since_ns: int, until_ns: int) -> int:
        """Grains of what lies between."""
        return max(0, min(self.end_ns, until_ns) - max(self.start_ns, since_ns)) * self.nano_per_hour


@dataclass(frozen=True)
class Posted:
    """What a record that billing has adds to a month, and since when by billing's clock; below zero where it was taken back."""

    id: str
    subject: tuple[str, str, str]
    since_ns: int
    grains: int
    month: str


def limited(body: Mapping[str, Any]) -> Limited:
    """What a budget is for, as it is asked for."""
    return (body["tenant"], body.get("user"), body.get("notebook")), body["window"]


def covers(subject: Subject, other: tuple[str, str, str]) -> bool:
    return all(whose in (None, one) for whose, one in zip(subject, other, strict=True))


def _opened(
    beat: Beat, rate: Callable[[UsageRecord, int], Cost | None], records: Callable[[Mapping[str, Any]], UsageRecord]
) -> list[tuple[str, tuple[str, str, str], Cost]]:
    """The open leases of a beat that can be billed, each with whose it is and what it costs."""
    costs = {id: rate(records(lease), beat.asked_ns) for id, lease in beat.named.items()}
    whose = {id: (lease["tenant"], lease["user"], lease["span"]["label"]) for id, lease in beat.named.items()}
    return [(id, whose[id], cost) for id, cost in costs.items() if cost is not None]


class LimitBook:
    """Listens to the pool; :meth:`check` once all is metered."""

    def __init__(self) -> None:
        self.beats: list[Beat] = []
        self.said: dict[Subject, list[tuple[int, str, int]]] = defaultdict(list)
        """What the pool believes of each subject: since when, the state, and when open leases are to be over."""
        self.drained: set[Limited] = set()
        self.overspent: list[int] = []
        """By how many grains each budget that drained was, above its limit."""

    def saw(self, now_ns: int, event: Event) -> None:
        if isinstance(event, BudgetSet):
            over_ns = now_ns + int(event.grace_seconds * SECOND_NS)
            self.said[event.tenant, event.user, event.notebook].append((now_ns, event.state, over_ns))
        elif isinstance(event, Restored):
            self.pool_dies(now_ns)

    def pool_dies(self, now_ns: int) -> None:
        """Nobody remembers what billing said."""
        for heard in self.said.values():
            heard.append((now_ns, "open", now_ns))

    def heard(self, beat: Beat) -> None:
        self.beats.append(beat)

    # Once all is over

    def check(
        self, stretches: Sequence[Stretch], posted: Sequence[Posted], rate: Callable[[UsageRecord, int], Cost | None],
        records: Callable[[Mapping[str, Any]], UsageRecord], alerts: Mapping[Alert, int], calm_ns: int,
    ) -> None:  # fmt: skip
        """Raises Caught. ``rate`` gives what an open lease has cost and its present rate; ``alerts`` when each threshold was told of."""
        self._posted = cache(lambda subject: [one for one in posted if covers(subject, one.subject)])
        self._open_leases = cache(lambda beat: _opened(beat, rate, records))
        opens: dict[tuple[Limited, str], tuple[Beat, int]] = {}
        for beat in self.beats:
            self._check_heard(beat)
            for limit, body in beat.in_force.items():
                subject, period = limit[0], beat.period(limit[1])
                if period is None:
                    continue
                used, nano_per_hour = self._known(beat, subject, period)
                self._check_alerts(beat, subject, period, body, used, alerts)
                self._check_answer(beat, subject, body, used, nano_per_hour)
                if body["on_limit"] == "drain" and beat.at_ns < calm_ns:
                    key = (limit, period)
                    if beat.told.get(subject, ("open", 0))[0] != "open":
                        self.drained.add(limit)
                    elif not beat.overtaken or key not in opens or opens[key][0].in_force[limit] != body:
                        opens[key] = (beat, used)
        for (limit, period), (beat, used) in opens.items():
            mine = [one for one in stretches if covers(limit[0], one.subject) and period in ("total", one.month)]
            later = (one.at_ns for one in self.beats if one.at_ns > beat.at_ns and one.period(limit[1]) != period)
            self._check_overspend(limit, period, beat, used, mine, min(calm_ns, next(later, calm_ns)))

    def _check_heard(self, beat: Beat) -> None:
        """What was answered the pool knows from then on. Raises Caught."""
        for subject, (state, _) in beat.told.items():
            before = [one for one in self.said.get(subject, ()) if one[0] <= beat.at_ns]
            if all(one[1] != state for one in before if one[0] == before[-1][0]):
                raise Caught(f"{beat.at_ns / SECOND_NS:.3f} s: the budget of {subject} is told {state}, and the pool does not know it")

    def _known(self, beat: Beat, subject: Subject, period: str) -> tuple[int, int]:
        """What billing must have counted when it answered, and what a second of the open leases cost.

        What came after its month was closed counts later than here, and never earlier. Of a beat that it may have taken for late it knows
        no lease.
        """
        mine = [one for one in self._posted(subject) if one.since_ns <= beat.asked_ns]
        used = sum(one.grains for one in mine if period in ("total", one.month))
        there, nano_per_hour = {one.id for one in mine}, 0
        for name, whose, (grains, rate) in () if beat.overtaken else self._open_leases(beat):
            if name not in there and covers(subject, whose):
                used += sum(grains.values()) if period == "total" else grains.get(period, 0)
                nano_per_hour += rate
        return used, nano_per_hour

    def _check_answer(self, beat: Beat, subject: Subject, body: Mapping[str, Any], used: int, nano_per_hour: int) -> None:
        """Never laxer than the rule."""
        left = body["limit_nano"] * NANO - used
        grace_ns = body["grace_seconds"] * SECOND_NS
        state, longest_ns = "open", grace_ns
        if body["on_limit"] == "refuse" and left <= 0:
            state = "refuse"
        if body["on_limit"] == "drain":
            ahead_ns = SETTLING_NS + (grace_ns if nano_per_hour else 0)
            if left <= nano_per_hour * ahead_ns:
                state = "drain"
                longest_ns = max(0, min(grace_ns, left // nano_per_hour - SETTLING_NS)) if nano_per_hour else grace_ns
        told, told_grace_ns = beat.told.get(subject, ("open", 0))
        laxer = STRICTNESS.index(told) < STRICTNESS.index(state)
        if (laxer or (told == state == "drain" and told_grace_ns > longest_ns + SECOND_NS // 1000)) and not beat.overtaken:
            raise Caught(
                f"{beat.at_ns / SECOND_NS:.3f} s: the budget of {subject} is told {told} with {told_grace_ns} ns, "
                f"and it ought to be {state} with {longest_ns}: {left} grains are left, and {nano_per_hour} an hour run"
            )

    def _check_alerts(
        self, beat: Beat, subject: Subject, period: str, body: Mapping[str, Any], used: int, alerts: Mapping[Alert, int]
    ) -> None:
        for share in (50, 80, 100):
            told_ns = alerts.get((subject, period, share, body["limit_nano"]))
            reached = used * 100 >= body["limit_nano"] * NANO * share and not beat.overtaken
            if reached and (told_ns is None or told_ns > beat.answered_ns):
                raise Caught(f"{share} per cent of the budget of {subject} are used at {beat.at_ns / SECOND_NS:.3f} s; nobody was told")

    def _check_overspend(
        self, limited: Limited, period: str, beat: Beat, used: int, stretches: Sequence[Stretch], end_ns: int
    ) -> None:
        """The bound, from the last time on that the budget was open. Raises Caught."""
        subject, limit = limited[0], beat.in_force[limited]["limit_nano"] * NANO
        moments = [one for one in self.said[subject] if beat.at_ns <= one[0] < end_ns]
        spent = lambda since_ns, until_ns: sum(one.cost(since_ns, until_ns) for one in stretches)  # noqa: E731 - reads better
        missing = spent(0, beat.at_ns) - used
        foreseen = {one.at_ns: self._known(one, subject, period)[1] for one in self.beats if beat.at_ns <= one.at_ns < end_ns}
        self._check_let_go(subject, moments, spent, end_ns)
        blind, risen, slack, state, over_ns, since_ns = 0, 0, 0, "open", 0, beat.at_ns
        for at_ns, next_state, next_over_ns in [*moments, (end_ns, "open", 0)]:
            if state == "open":
                blind += spent(since_ns, at_ns)
            else:
                grace_ns = max(since_ns, min(at_ns, over_ns))
                risen += max(0, spent(since_ns, grace_ns) - foreseen.get(since_ns, 0) * (grace_ns - since_ns))
                slack += spent(max(since_ns, over_ns), max(at_ns, over_ns))
            state, over_ns, since_ns = next_state, next_over_ns, at_ns
        over = spent(0, end_ns) - limit
        if any(one[1] == "drain" for one in moments):
            self.overspent.append(max(0, over))
        if over > blind + missing + risen + slack:
            most = f"{blind} + {missing} + {risen} + {slack}"
            raise Caught(f"{limited} spent {over} grains above the limit; {most} are the most that it may be")

    def _check_let_go(
        self, subject: Subject, moments: Sequence[tuple[int, str, int]], spent: Callable[[int, int], int], calm_ns: int
    ) -> None:
        """However often a drain is told again, the leases end with the shortest grace. Raises Caught."""
        over_ns: int | None = None
        for at_ns, state, next_over_ns in [*moments, (calm_ns, "open", 0)]:
            if over_ns is not None and spent(over_ns + LETS_GO_NS, at_ns):
                raise Caught(f"leases of {subject} go on, {(at_ns - over_ns) / SECOND_NS:.3f} s after the grace of a drain")
            over_ns = None if state != "drain" else next_over_ns if over_ns is None else min(over_ns, next_over_ns)

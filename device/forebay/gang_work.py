"""What the devices of a session that has several do together, and what one of them does alone. All times are integers of nanoseconds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch  # noqa: F401 what _C is linked to
from forebay_wire.gang_work import Alone, Considered, GangPlan, Layout, Pipeline, Weights

from forebay import _C

WORTH_TELLING_NS = 10**9
"""Whoever computes for less is not told that one device did it alone."""
OF_NO_OPERATOR = {Alone.NO_BATCH: "no_batch", Alone.NO_ROOM: "no_room"}
"""Reasons that concern whatever is called."""


@dataclass(frozen=True)
class Work:
    """Calls, and how long the first device's worker was at them."""

    calls: int
    ns: int

    def since(self, before: Work) -> Work:
        """What came after."""
        return Work(self.calls - before.calls, self.ns - before.ns)


NONE = Work(0, 0)


@dataclass(frozen=True)
class LoneWork:
    """Calls of one operator that ran on one device alone, for one reason."""

    operator: str
    reason: Alone
    work: Work


@dataclass(frozen=True)
class GangWork:
    """Of the session of one virtual device, in a stretch of the program."""

    device: int
    """The virtual one."""
    devices: int
    """How many it consists of."""
    divided: Work
    """Each device computed on its rows of a batch."""
    copies: Work
    """Each device computed the same."""
    alone: tuple[LoneWork, ...]
    """The longest first."""
    plan: GangPlan | None = None
    """How the program's steps are divided now, where that was planned."""

    @property
    def alone_ns(self) -> int:
        """On one device, while the others had nothing to do."""
        return sum(lone.work.ns for lone in self.alone)

    @property
    def ns(self) -> int:
        """All calls."""
        return self.divided.ns + self.copies.ns + self.alone_ns

    @property
    def calls(self) -> int:
        return self.divided.calls + self.copies.calls + sum(lone.work.calls for lone in self.alone)

    @property
    def mostly_alone(self) -> bool:
        """Whether one device computed alone for more than half of the time, and of that there is a second or more."""
        return self.ns >= WORTH_TELLING_NS and 2 * self.alone_ns > self.ns

    @property
    def alone_percent(self) -> int:
        return round(100 * self.alone_ns / self.ns) if self.ns else 0

    def causes(self, most: int) -> list[str]:
        """What one device did alone, the longest first: operators, and ``no_batch`` or ``no_room``."""
        ns: Counter[str] = Counter()
        for lone in self.alone:
            ns[OF_NO_OPERATOR.get(lone.reason) or _short(lone.operator)] += lone.work.ns
        return [name for name, _ in ns.most_common(most)]

    def since(self, before: GangWork | None) -> GangWork:
        """What came after ``before``; all, where there was none, or a session before this one."""
        if before is None or before.calls > self.calls:
            return self
        known = {(lone.operator, lone.reason): lone.work for lone in before.alone}
        grown = (
            LoneWork(lone.operator, lone.reason, lone.work.since(known.get((lone.operator, lone.reason), NONE))) for lone in self.alone
        )
        divided, copies = self.divided.since(before.divided), self.copies.since(before.copies)
        return GangWork(self.device, self.devices, divided, copies, _longest_first(grown), self.plan)

    def as_json(self) -> dict[str, Any]:
        """The fields of this class; reasons and layouts by their names."""
        alone = [{"operator": lone.operator, "reason": lone.reason.name.lower(), **asdict(lone.work)} for lone in self.alone]
        return {**asdict(self), "alone": alone, "alone_ns": self.alone_ns, "plan": None if self.plan is None else _json_of(self.plan)}


def read(device: int) -> GangWork | None:
    """Of the session so far, from its worker, once all is recorded before; None of a session with one device, or without a worker."""
    told = _C.gang_work(device)
    if told["devices"] < 2:
        return None
    alone = (LoneWork(lone["operator"], Alone(lone["reason"]), Work(lone["calls"], lone["ns"])) for lone in told["alone"])
    divided, copies = Work(**told["divided"]), Work(**told["copies"])
    return GangWork(device, told["devices"], divided, copies, _longest_first(alone), _plan_of(told["plan"]))


def _plan_of(told: _C.GangPlan | None) -> GangPlan | None:
    if told is None:
        return None
    weights = tuple(Weights(one["operator"], tuple(one["sizes"]), one["count"], one["bytes"], one["rows_of"]) for one in told["weights"])
    considered = tuple(Considered(Layout(one["layout"]), one["step_ns"], one["bytes"]) for one in told["considered"])
    one = told["pipeline"]
    pipeline = None if one is None else Pipeline(
        one["serves"], one["parts"], one["step_ns"], one["bytes"], tuple(one["stages"]), one["rows"]
    )
    return GangPlan(
        Layout(told["layout"]), told["room_bytes"], weights, considered, told["steps"], told["step_ns"], tuple(told["bytes"]), pipeline
    )


def _json_of(plan: GangPlan) -> dict[str, Any]:
    considered = [{**asdict(one), "layout": one.layout.name.lower()} for one in plan.considered]
    return {**asdict(plan), "layout": plan.layout.name.lower(), "considered": considered}


def _short(operator: str) -> str:
    """``aten::add.Tensor`` as people call it."""
    return operator.rpartition("::")[2].partition(".")[0]


def _longest_first(alone: Iterable[LoneWork]) -> tuple[LoneWork, ...]:
    return tuple(sorted((lone for lone in alone if lone.work.calls), key=lambda lone: -lone.work.ns))

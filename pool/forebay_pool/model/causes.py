"""Why something is so: in English, and by codes and values for who says it otherwise. What people type is a plain string."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Literal

from forebay_wire import messages as wire
from forebay_wire.sentences import sentence

Value = str | int
CauseCode = Literal[
    "device_lost", "xid", "xid_of_programs", "memory_errors", "hot", "workers_over_memory", "ray_dead", "other_release", "unconfined",
]  # fmt: skip
"""Of devices and nodes."""
WaitDetail = Literal[
    "unserved", "all_closed", "workers_limit", "not_enough", "one_held", "all_held", "all_held_more", "not_parkable", "held_there",
    "closed_there", "ending_there", "lease_drains", "parking", "freeing", "link_lost", "worker_starts", "brought_back", "moving", "store",
    "gathering", "host_starts", "runtime_held",
    "ranks_gather", "ranks_wait", "quota_held", "quota_used", "crashes_wait", "no_budget", "budget_month_used", "budget_month_nearly",
    "budget_total_used", "budget_total_nearly", "text",
]  # fmt: skip
"""Of sessions that wait: which of the causes that a :data:`~forebay_wire.messages.WaitCode` may have. ``text``: what a billing of an older
release says."""
FlavorCode = Literal["flavor_absent", "flavor_no_devices", "flavor_unfit"]
"""Of flavors that are not served."""


class Cause(str):
    """A sentence of the pool's own. As a string it is the catalogue's English; ``code``, ``values`` and ``parts`` say the same."""

    code: str
    values: Mapping[str, Value]
    parts: tuple[str, ...]
    """Causes, and what people typed, that stand in the sentence."""

    def __new__(cls, code: str, /, *parts: str, **values: Value) -> Cause:
        english = sentence(code, values, parts)
        if english is None:
            raise LookupError(f"the catalogue has no sentence for {code!r} with {sorted(values)} and {len(parts)} parts")
        cause = super().__new__(cls, english)
        cause.code, cause.values, cause.parts = code, values, parts
        return cause

    @cached_property
    def told(self) -> wire.Cause:
        """As it is sent to clients: many may wait for the same."""
        return wire.Cause(code=self.code, values=dict(self.values), parts=tuple(told(part) for part in self.parts))

    def __getnewargs_ex__(self) -> tuple[tuple[str, ...], dict[str, Value]]:
        """So that it can be copied, and sent from node to node."""
        return (self.code, *self.parts), dict(self.values)


def heard(cause: wire.Cause) -> Cause | None:
    """What another service says; None where the catalogue here has no sentence for it."""
    parts = [heard(part) for part in cause.parts]
    try:
        return None if None in parts else Cause(cause.code, *(part for part in parts if part is not None), **cause.values)
    except LookupError:
        return None


def told(why: str) -> wire.Cause:
    """As it is sent to clients."""
    return why.told if isinstance(why, Cause) else wire.Cause(code="text", values={"text": why})

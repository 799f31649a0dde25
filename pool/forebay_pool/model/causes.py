"""Why devices are closed, or to be looked at, and why sessions wait: in English, and by codes and values for who says it otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

CauseCode = Literal["device_lost", "xid", "xid_of_programs", "memory_errors", "hot", "workers_over_memory", "ray_dead"]
"""Of devices and nodes."""
WaitDetail = Literal[
    "unserved", "all_closed", "workers_limit", "not_enough", "one_held", "all_held", "not_parkable", "held_there", "closed_there",
    "ending_there", "lease_drains", "parking", "freeing", "link_lost", "worker_starts", "brought_back", "moving", "store", "gathering",
    "quota_held", "quota_used", "budget",
]  # fmt: skip
"""Of sessions that wait: which of the sentences that a :data:`~forebay_wire.messages.WaitCode` may have."""


class Cause(str):
    """A sentence of the pool's own. As a string it is English; ``code`` and ``values`` say the same. What people type is a plain string."""

    code: CauseCode | WaitDetail
    values: Mapping[str, str | int]

    def __new__(cls, code: CauseCode | WaitDetail, sentence: str, /, **values: str | int) -> Cause:
        cause = super().__new__(cls, sentence % values)
        cause.code, cause.values = code, values
        return cause

    def __getnewargs_ex__(self) -> tuple[tuple[str, str], dict[str, str | int]]:
        """So that it can be copied, and sent from node to node."""
        return (self.code, self.replace("%", "%%")), dict(self.values)

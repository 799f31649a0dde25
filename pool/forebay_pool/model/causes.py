"""Why devices and nodes are closed, or to be looked at: in English, and by codes and values for who says it in another language."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

CauseCode = Literal["device_lost", "xid", "xid_of_programs", "memory_errors", "hot", "workers_over_memory", "ray_dead"]


class Cause(str):
    """A sentence of the pool's own. As a string it is English; ``code`` and ``values`` say the same. What people type is a plain string."""

    code: CauseCode
    values: Mapping[str, str | int]

    def __new__(cls, code: CauseCode, sentence: str, /, **values: str | int) -> Cause:
        cause = super().__new__(cls, sentence % values)
        cause.code, cause.values = code, values
        return cause

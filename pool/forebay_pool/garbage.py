"""How often Python looks for unreachable cycles in the pool.

Sessions, leases and requests that are over are taken apart by the state machine, so there are hardly any cycles to find; but each search
looks at everything that is alive, for a tenth of a second where ten thousand sessions are.
"""

from __future__ import annotations

import gc

THRESHOLDS = (50_000, 50, 1_000)
"""Allocations before the youngest objects are searched, and how many such searches before those of the next age are."""


def collect_rarely() -> None:
    gc.set_threshold(*THRESHOLDS)

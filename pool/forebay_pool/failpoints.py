"""Where a test may stop the pool: before and after each commit and each call to billing."""

from __future__ import annotations

from forebay_service.failpoints import Failpoints

POOL = Failpoints()
reach, armed = POOL.reach, POOL.armed

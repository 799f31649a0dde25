"""Where a test may stop billing: before and after each commit and each call to a payment provider or a receiver of alerts."""

from __future__ import annotations

from forebay_service.failpoints import Failpoints

BILLING = Failpoints()
reach, armed = BILLING.reach, BILLING.armed

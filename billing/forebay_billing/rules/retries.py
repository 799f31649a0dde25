"""What follows from a failed call: pure, with chance as an argument."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

BACKOFF_SECONDS_MIN = 1.0
BACKOFF_SECONDS_MAX = 3600.0
RETRY_AFTER_SECONDS_MAX = 3600.0
GIVE_UP_NS = 3 * 86_400 * 10**9
"""A row that failed for so long becomes a dead letter. Long enough for a weekend's outage, well within the 35 days of meter events."""
KEYS_KEPT_NS = 23 * 3600 * 10**9
"""Stripe may forget idempotency keys after 24 hours; an hour is kept back for clocks that differ."""

Cause = Literal["unreachable", "busy", "conflict", "indeterminate", "denied", "refused"]
"""``unreachable``: no answer, so it may have happened. ``busy``: 429. ``conflict``: 409, the same key is under way. ``indeterminate``: a
5xx, which the same key would replay for ever, or a key that was used with other parameters. ``denied``: 401 or 403, the API key and
not the call is wrong. ``refused``: it will never be taken."""
OF_ALL_CALLS: tuple[Cause, ...] = ("unreachable", "busy", "denied")
"""What fails because of these would fail with any other object, too."""


class StripeFailure(Exception):
    """A call to Stripe that failed; ``str(failure)`` is one sentence without secrets."""

    def __init__(self, cause: Cause, message: str, retry_after_seconds: float | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.cause = cause
        self.retry_after_seconds = retry_after_seconds
        self.code = code


@dataclass(frozen=True)
class Later:
    """Try again after ``seconds``; ``look``: first see whether it happened, then use a new idempotency key."""

    seconds: float
    look: bool


@dataclass(frozen=True)
class Dead:
    """Not again without an operator."""


def next_step(failure: StripeFailure, attempt: int, age_ns: int, chance: float) -> Later | Dead:
    """After the ``attempt``-th try (from 1) of a row first tried ``age_ns`` ago. ``chance`` is uniform in [0, 1)."""
    if failure.cause == "refused":
        return Dead()
    if failure.cause != "denied" and age_ns >= GIVE_UP_NS:
        return Dead()
    seconds = backoff_seconds(attempt, chance)
    if failure.retry_after_seconds is not None:
        seconds = max(seconds, min(failure.retry_after_seconds, RETRY_AFTER_SECONDS_MAX))
    return Later(seconds, failure.cause == "indeterminate")


def backoff_seconds(attempt: int, chance: float) -> float:
    """Doubles with each attempt up to its bound; between half of that and all of it, so that callers do not come back together."""
    ceiling = min(BACKOFF_SECONDS_MAX, BACKOFF_SECONDS_MIN * float(1 << min(attempt - 1, 30)))
    return ceiling * (0.5 + chance / 2)

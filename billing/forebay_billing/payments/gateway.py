"""The one door to Stripe: the official library at a pinned API version, its errors translated, secrets kept out of every message.

The library's own retries are off, because the outbox retries and must know of each attempt; so is its telemetry, which would write
a file into the home folder.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import stripe

from forebay_billing import failpoints
from forebay_billing.rules.retries import Cause, StripeFailure

API_VERSION = "2026-10-28.endive"
TIMEOUT_SECONDS = 30
PAGE_OBJECTS = 100

_SECRET = re.compile(r"\b(sk|rk|pk|whsec)_[A-Za-z0-9_*]+")

T = TypeVar("T")
stripe.enable_telemetry = False


class Gateway:
    """A client of one Stripe account. ``api_url`` is another address of the API, None for Stripe's own."""

    def __init__(self, api_key: str, api_url: str | None = None, http_client: stripe.HTTPClient | None = None) -> None:
        self.client = stripe.StripeClient(
            api_key,
            stripe_version=API_VERSION,
            base_addresses={} if api_url is None else {"api": api_url, "meter_events": api_url, "files": api_url, "connect": api_url},
            max_network_retries=0,
            http_client=http_client or stripe.RequestsClient(timeout=TIMEOUT_SECONDS),
        )

    def call(self, name: str, work: Callable[[stripe.StripeClient], T]) -> T:
        """One call. Raises StripeFailure."""
        failpoints.reach(f"payments.{name}.before")
        with _translated():
            answer = work(self.client)
        failpoints.reach(f"payments.{name}.after")
        return answer


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except stripe.StripeError as error:
        raise StripeFailure(_cause(error), masked(_sentence(error)), _retry_after(error), error.code) from None


def _cause(error: stripe.StripeError) -> Cause:
    if isinstance(error, stripe.APIConnectionError) or error.http_status is None:
        return "unreachable"
    if isinstance(error, stripe.IdempotencyError):
        return "indeterminate"
    if isinstance(error, stripe.RateLimitError) or error.http_status == 429:
        return "busy"
    if error.http_status == 409:
        return "conflict"
    if error.http_status in (401, 403):
        return "denied"
    return "indeterminate" if error.http_status >= 500 or error.http_status < 400 else "refused"


def _sentence(error: stripe.StripeError) -> str:
    return " ".join(f"Stripe answered {error.http_status or 'nothing'}: {error}".split())


def _retry_after(error: stripe.StripeError) -> float | None:
    for name, text in (error.headers or {}).items():
        if name.lower() == "retry-after" and re.fullmatch(r"\d{1,6}", text):
            return float(text)
    return None


def masked(text: str) -> str:
    """``text`` without anything that looks like one of Stripe's secrets."""
    return _SECRET.sub(lambda match: f"{match[1]}_…", text)


def tag(thing: Any, name: str) -> str | None:
    """The entry ``name`` of an object's metadata."""
    metadata = getattr(thing, "metadata", None)
    value = None if metadata is None else metadata.to_dict().get(name)
    return None if value is None else str(value)


def id_of(reference: Any) -> str | None:
    """The id of what is given as an id or as the object itself."""
    return reference if reference is None or isinstance(reference, str) else str(reference.id)


def first_tagged(things: Iterable[Any], name: str, value: str) -> str | None:
    """The id of the first object with that entry in its metadata."""
    return next((str(thing.id) for thing in things if tag(thing, name) == value), None)

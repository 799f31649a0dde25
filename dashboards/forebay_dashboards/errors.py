"""What can go wrong in the dashboards; every message is a sentence for the person who reads the page."""

from __future__ import annotations

from forebay_service.languages import Text, as_sent, in_context

SERVICES = {"pool": in_context("service", "pool"), "billing": in_context("service", "billing"), "hub": in_context("service", "hub")}
"""What pages call the services that they ask."""


class DashboardsError(Exception):
    """Base of all errors of this service."""


class PageError(DashboardsError):
    """One whose ``text`` is for the person who reads the page; as a string it is English, for logs."""

    def __init__(self, text: Text) -> None:
        super().__init__(str(text))
        self.text = text


class MoneyError(PageError):
    """An amount that was typed in cannot be a price."""


class FormError(PageError):
    """A form field holds what it must not; nothing was changed."""


class AccessRefused(PageError):
    """The visitor may not see or do this."""


class UpstreamUnavailable(PageError):
    """Pool or billing did not answer, or answered with its own failure; ``detail`` says how. The page says so and recovers by itself."""

    def __init__(self, service: str, detail: Text) -> None:
        name = SERVICES.get(service, service)
        super().__init__(Text("The %(service)s service cannot answer right now: %(detail)s.", service=name, detail=detail))
        self.service = service


class UpstreamRefused(PageError):
    """Pool or billing understood the request and refused it; the message is theirs, and shown as they sent it."""

    def __init__(self, service: str, status: int, code: str, message: str) -> None:
        super().__init__(message if isinstance(message, Text) else as_sent(message))
        self.service = service
        self.status = status
        self.code = code

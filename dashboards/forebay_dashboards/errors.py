"""What can go wrong in the dashboards; every message is a sentence for the person who reads the page."""

from __future__ import annotations


class DashboardsError(Exception):
    """Base of all errors of this service."""


class SettingsError(DashboardsError):
    """A setting is missing, unknown or out of range."""


class MoneyError(DashboardsError):
    """An amount that was typed in cannot be a price."""


class FormError(DashboardsError):
    """A form field holds what it must not; nothing was changed."""


class AccessRefused(DashboardsError):
    """The visitor may not see or do this."""


class UpstreamUnavailable(DashboardsError):
    """Pool or billing did not answer, or answered with its own failure; ``detail`` says how. The page says so and recovers by itself."""

    def __init__(self, service: str, detail: str) -> None:
        super().__init__(f"The {service} service cannot answer right now: {detail}.")
        self.service = service


class UpstreamRefused(DashboardsError):
    """Pool or billing understood the request and refused it; the message is theirs."""

    def __init__(self, service: str, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.service = service
        self.status = status
        self.code = code

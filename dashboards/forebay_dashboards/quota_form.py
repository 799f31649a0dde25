"""The forms of quotas and of models' policies: what was typed, as the pool takes it. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forebay_dashboards.errors import FormError, MoneyError
from forebay_dashboards.money import format_decimal, parse_decimal
from forebay_dashboards.rows import Quota

WHOLE = {
    "device_seconds": "device seconds",
    "window_seconds": "window",
    "priority_max": "highest priority",
    "weight": "weight",
    "parked_bytes": "parked bytes",
}
FIELDS = ("tenant", "user", "devices", *WHOLE, "on_exhausted", "on_parked_full")
NAMES_CHARACTERS_MAX = 60_000


def typed(quota: Quota) -> dict[str, str]:
    """A quota as the form shows it."""
    values = {name: getattr(quota, name) for name in FIELDS if name != "devices"}
    shown = {name: "" if value is None else str(value) for name, value in values.items()}
    return shown | {"devices": "" if quota.devices_milli is None else format_decimal(quota.devices_milli, 3)}


def read_quota(form: Mapping[str, str]) -> tuple[str, str | None, dict[str, Any]]:
    """Tenant, user and the body for the pool, which judges the rest. What is left empty has no bound. Raises FormError."""
    tenant, user = form["tenant"].strip(), form["user"].strip()
    if not tenant:
        raise FormError("Say whose quota it is: a tenant, and if it is one user's, the user too.")
    body: dict[str, Any] = {name: _whole(form[name], what) for name, what in WHOLE.items() if form[name].strip()}
    if form["devices"].strip():
        try:
            body["devices_milli"] = parse_decimal(form["devices"], 3, "number of devices")
        except MoneyError as error:
            raise FormError(str(error)) from None
    if ("device_seconds" in body) != ("window_seconds" in body):
        raise FormError("Device seconds and the window in which they count go together: fill in both, or neither.")
    return tenant, user or None, body | {name: form[name] for name in ("on_exhausted", "on_parked_full") if form[name]}


def read_tenants(text: str) -> list[str] | None:
    """Tenants that may have a model, one a line or between commas; None, all, where nothing was typed."""
    return sorted({name.strip() for name in text[:NAMES_CHARACTERS_MAX].replace(",", "\n").splitlines() if name.strip()}) or None


def _whole(text: str, what: str) -> int:
    plain = text.strip().replace(",", "").removeprefix("-")
    if not (plain.isascii() and plain.isdigit() and len(plain) <= 19):
        raise FormError(f"“{text.strip()[:20]}” is no whole number; the {what} must be one.")
    return -int(plain) if text.strip().startswith("-") else int(plain)

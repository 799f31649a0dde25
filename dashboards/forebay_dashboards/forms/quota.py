"""The forms of quotas and of models' policies: what was typed, as the pool takes it. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forebay_service.languages import Text

from forebay_dashboards.errors import FormError, MoneyError
from forebay_dashboards.rows import Quota
from forebay_dashboards.text.money import format_decimal, parse_decimal

WHOLE = {
    "device_seconds": Text("device seconds"),
    "window_seconds": Text("window"),
    "priority_max": Text("highest priority"),
    "weight": Text("weight"),
    "parked_bytes": Text("parked bytes"),
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
        raise FormError(Text("Say whose quota it is: a tenant, and if it is one user's, the user too."))
    body, problems = read_bounds(form)
    for sentence in problems.values():
        raise FormError(sentence)
    return tenant, user or None, body


def read_bounds(form: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Text]]:
    """The body for the pool, and by field what is wrong with it."""
    body: dict[str, Any] = {}
    problems: dict[str, Text] = {}
    for name, what in WHOLE.items():
        if form[name].strip():
            try:
                body[name] = whole(form[name], what)
            except FormError as error:
                problems[name] = error.text
    if form["devices"].strip():
        try:
            body["devices_milli"] = parse_decimal(form["devices"], 3, Text("number of devices"))
        except MoneyError as error:
            problems["devices"] = error.text
    empty = [name for name in ("device_seconds", "window_seconds") if not form[name].strip()]
    if len(empty) == 1:
        problems[empty[0]] = Text("Device seconds and the window in which they count go together: fill in both, or neither.")
    return body | {name: form[name] for name in ("on_exhausted", "on_parked_full") if form[name]}, problems


def read_tenants(text: str) -> list[str] | None:
    """Tenants that may have a model, one a line or between commas; None, all, where nothing was typed."""
    return sorted({name.strip() for name in text[:NAMES_CHARACTERS_MAX].replace(",", "\n").splitlines() if name.strip()}) or None


def whole(text: str, what: Text) -> int:
    """A whole number that was typed in, with commas between thousands or without. Raises FormError."""
    plain = text.strip().replace(",", "").removeprefix("-")
    if not (plain.isascii() and plain.isdigit() and len(plain) <= 19):
        raise FormError(Text("“%(typed)s” is no whole number; the %(what)s must be one.", typed=text.strip()[:20], what=what))
    return -int(plain) if text.strip().startswith("-") else int(plain)

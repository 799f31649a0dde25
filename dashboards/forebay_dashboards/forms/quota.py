"""The forms of quotas and of models' policies: what was typed, as the pool takes it. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forebay_service.languages import Text

from forebay_dashboards.errors import FormError, MoneyError
from forebay_dashboards.rows.pool import Quota
from forebay_dashboards.text.money import format_decimal, parse_decimal


@dataclass(frozen=True)
class Measure:
    """A field of a unit that people think in. The pool keeps whole numbers of a smaller one, of which ``size`` are one; with so many
    decimals each of them is typed and shown exactly.
    """

    sent: str
    """What the pool calls it."""
    size: int
    decimals: int
    what: Text

    def shown(self, kept: int | None) -> str:
        """As it is typed; empty for no bound."""
        if kept is None:
            return ""
        scale: int = 10**self.decimals
        return format_decimal((2 * kept * scale + self.size) // (2 * self.size), self.decimals)

    def read(self, text: str) -> int:
        """As the pool keeps it. Raises MoneyError."""
        scale: int = 10**self.decimals
        return (2 * parse_decimal(text, self.decimals, self.what) * self.size + scale) // (2 * scale)


MEASURES = {
    "devices": Measure("devices_milli", 1000, 3, Text("number of devices")),
    "device_hours": Measure("device_seconds", 3600, 4, Text("device hours")),
    "window_days": Measure("window_seconds", 86_400, 5, Text("window")),
    "parked_gib": Measure("parked_bytes", 2**30, 10, Text("parked memory")),
}
WHOLE = {"priority_max": Text("highest priority"), "weight": Text("weight")}
CHOICES = ("on_exhausted", "on_parked_full")
FIELDS = ("tenant", "user", *MEASURES, *WHOLE, *CHOICES)
NAMES_CHARACTERS_MAX = 60_000


def typed(quota: Quota) -> dict[str, str]:
    """A quota as the form shows it."""
    values = {name: getattr(quota, name) for name in ("tenant", "user", *WHOLE, *CHOICES)}
    shown = {name: "" if value is None else str(value) for name, value in values.items()}
    return shown | {name: measure.shown(getattr(quota, measure.sent)) for name, measure in MEASURES.items()}


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
    for name in (one for one in (*MEASURES, *WHOLE) if form[one].strip()):
        try:
            if name in MEASURES:
                body[MEASURES[name].sent] = MEASURES[name].read(form[name])
            else:
                body[name] = whole(form[name], WHOLE[name])
        except (FormError, MoneyError) as error:
            problems[name] = error.text
    empty = [name for name in ("device_hours", "window_days") if not form[name].strip()]
    if len(empty) == 1:
        problems[empty[0]] = Text("Device hours and the window in which they count go together: fill in both, or neither.")
    return body | {name: form[name] for name in CHOICES if form[name]}, problems


def read_tenants(text: str) -> list[str] | None:
    """Tenants that may have a model, one a line or between commas; None, all, where nothing was typed."""
    return sorted({name.strip() for name in text[:NAMES_CHARACTERS_MAX].replace(",", "\n").splitlines() if name.strip()}) or None


def whole(text: str, what: Text) -> int:
    """A whole number that was typed in, with commas between thousands or without. Raises FormError."""
    plain = text.strip().replace(",", "").removeprefix("-")
    if not (plain.isascii() and plain.isdigit() and len(plain) <= 19):
        raise FormError(Text("“%(typed)s” is no whole number; the %(what)s must be one.", typed=text.strip()[:20], what=what))
    return -int(plain) if text.strip().startswith("-") else int(plain)

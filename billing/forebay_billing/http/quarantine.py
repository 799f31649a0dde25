"""Rows of a pool with text that no book can hold: they are metered under text that stands in for it, and what came is put aside for people.

A pool of this release sends none, since both sides take their definition of every text from :mod:`forebay_wire.texts`. What an older one
let in must not make device time free, and a row that cannot be read must not keep the others from being heard.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from forebay_service.bodies import body_of, first_fault
from forebay_service.errors import Invalid
from forebay_wire.texts import label_of, line_of, name_of
from pydantic import ValidationError

from forebay_billing.http.bodies import HeartbeatBody, LeaseBody, UsageBatchBody, UsageBody

SHOWN_CHARS_MAX = 200
_NAMES = ("id", "record", "user", "session", "lease")
"""Fields that may be called otherwise; who pays for what, and under which price, may not."""


@dataclass(frozen=True)
class Quarantined:
    """A row that was put aside. ``came`` is what it said, ``stands`` what stands for it now; a ``fault`` says why nothing can."""

    kind: Literal["usage", "heartbeat"]
    subject: str
    came: dict[str, str]
    stands: dict[str, str]
    fault: str | None = None


def usage_of(body: bytes) -> tuple[list[UsageBody], list[Quarantined]]:
    """The records of ``POST api/usage``, and which of them say something else than came. Raises Invalid."""
    try:
        return body_of(UsageBatchBody, body).records, []
    except Invalid:
        tree = _tree(body)
        asides = _mend(tree, "records", "usage")
        if not asides:
            raise
        return body_of(UsageBatchBody, json.dumps(tree).encode()).records, asides


def heartbeat_of(body: bytes) -> tuple[HeartbeatBody, list[Quarantined]]:
    """A heartbeat, without the leases of which nothing can be understood. Raises Invalid."""
    try:
        return body_of(HeartbeatBody, body), []
    except Invalid:
        tree = _tree(body)
        asides = _mend(tree, "leases", "heartbeat")
        rows = tree.get("leases") if isinstance(tree, dict) else None
        if not isinstance(rows, list):
            raise
        faults = [_fault(row) for row in rows]
        asides += [_unread(row, fault) for row, fault in zip(rows, faults, strict=True) if fault is not None]
        tree["leases"] = [row for row, fault in zip(rows, faults, strict=True) if fault is None]
        return body_of(HeartbeatBody, json.dumps(tree).encode()), asides


def unheard(lease: LeaseBody, fault: str) -> Quarantined:
    """An open lease that can be read, and of which nothing is believed."""
    return Quarantined("heartbeat", _shown(lease.record), {}, {}, fault)


def _tree(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _mend(tree: Any, rows: str, kind: Literal["usage", "heartbeat"]) -> list[Quarantined]:
    """Puts stand-ins into the rows, and tells where."""
    found = tree.get(rows) if isinstance(tree, dict) else None
    asides = [_mend_row(row, kind) for row in found if isinstance(row, dict)] if isinstance(found, list) else []
    return [aside for aside in asides if aside is not None]


def _mend_row(row: dict[str, Any], kind: Literal["usage", "heartbeat"]) -> Quarantined | None:
    came: dict[str, str] = {}
    stands: dict[str, str] = {}

    def mend(of: dict[str, Any], field: str, said: str, mended: Callable[[str], str]) -> None:
        text = of.get(field)
        if isinstance(text, str) and mended(text) != text:
            of[field] = stands[said] = mended(text)
            came[said] = _shown(text)

    for name in _NAMES:
        mend(row, name, name, name_of)
    span = row.get("span")
    if isinstance(span, dict):
        mend(span, "id", "span.id", name_of)
        mend(span, "label", "span.label", label_of)
        mend(span, "cell_id", "span.cell_id", name_of)
        mend(span, "first_line", "span.first_line", line_of)
    return Quarantined(kind, _subject(row), came, stands) if came else None


def _fault(row: Any) -> str | None:
    """What keeps an open lease from being understood."""
    try:
        LeaseBody.model_validate_json(json.dumps(row))
    except ValidationError as error:
        return first_fault(error, "lease")
    return None


def _unread(row: Any, fault: str) -> Quarantined:
    return Quarantined("heartbeat", _subject(row) if isinstance(row, dict) else "lease", {}, {}, fault)


def _subject(row: dict[str, Any]) -> str:
    name = str(row.get("id", row.get("record", "")))
    return _shown(f"{row['source']}/{name}" if isinstance(row.get("source"), str) else name)


def _shown(text: str) -> str:
    """What came as any page, log or table can show it."""
    shown = text if name_of(text) == text else ascii(text)
    return shown if len(shown) <= SHOWN_CHARS_MAX else f"{shown[:SHOWN_CHARS_MAX]}… ({len(text)} characters)"

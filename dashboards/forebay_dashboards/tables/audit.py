"""One audit of all services: their entries, newest first, a page at a time. No I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from forebay_service.languages import Text

from forebay_dashboards.errors import FormError
from forebay_dashboards.rows.pool import AuditEntry, AuditPage

ENTRIES_PER_PAGE = 50
DONE = "done"
"""Stands for a service that has nothing older."""

Service = Literal["pool", "billing", "hub"]
SERVICES: tuple[Service, ...] = ("pool", "billing", "hub")
_CURSOR = re.compile(r"\.".join([rf"({DONE}|[0-9]{{0,19}})"] * len(SERVICES)))


@dataclass(frozen=True)
class Told:
    """An entry, and which service wrote it down."""

    service: Service
    entry: AuditEntry


def read_cursor(text: str) -> dict[Service, str | None]:
    """Where each service goes on; None from the newest. Raises FormError."""
    match = _CURSOR.fullmatch(text or "." * (len(SERVICES) - 1))
    if match is None:
        raise FormError(Text("“%(typed)s” is no place in the audit; begin with the newest.", typed=text[:40]))
    return {service: place or None for service, place in zip(SERVICES, match.groups(), strict=True)}


def merge(pages: dict[Service, AuditPage | None], cursors: dict[Service, str | None]) -> tuple[list[Told], str | None]:
    """The newest entries of all pages, and the cursor of what follows them; None where nothing does.

    A service whose page is missing did not answer: it goes on where it stood.
    """
    entries = [Told(service, entry) for service, page in pages.items() if page is not None for entry in page.entries]
    shown = sorted(entries, key=lambda told: (told.entry.at_ns, told.entry.id), reverse=True)[:ENTRIES_PER_PAGE]
    following: dict[Service, str] = {}
    for service, page in pages.items():
        own = [told.entry.id for told in shown if told.service == service]
        if page is None:
            following[service] = cursors[service] or ""
        elif len(own) < len(page.entries):
            following[service] = str(own[-1]) if own else cursors[service] or ""
        else:
            following[service] = page.next or DONE
    if all(cursor == DONE for service, cursor in following.items() if pages[service] is not None):
        return shown, None
    return shown, ".".join(following[service] for service in SERVICES)

"""What billing answers of where, and how, people are told of their own work, as typed rows."""

from __future__ import annotations

from typing import Literal

from forebay_dashboards.rows.answers import Count, Row


class NoticeChannel(Row):
    """Where a person is told of own cells; an address that is not confirmed yet hears nothing."""

    id: Count
    kind: Literal["email", "webhook", "slack"]
    target: str
    confirmed: bool
    secret: str | None = None
    """Of a webhook, told to whoever made it, and never again."""
    note: str | None = None
    """Why the latest notice did not arrive."""


class NoticePreferences(Row):
    """How a person wants to be told; None where nothing was chosen, and then in ``common_language``, and of no jobs."""

    language: str | None = None
    jobs: str | None = None
    common_language: str

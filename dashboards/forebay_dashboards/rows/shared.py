"""What the pool answers of notebooks that are shared to be read, as typed rows."""

from __future__ import annotations

from forebay_dashboards.rows.answers import Count, Row


class SharedNotebook(Row):
    """Who shares it, and until when."""

    id: Count
    user: str
    name: str
    shared_at_ns: Count
    expires_at_ns: Count


class NotebookPage(Row):
    """HTML that somebody of the tenant made: it is shown where it can run nothing."""

    page: str

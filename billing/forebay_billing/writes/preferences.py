"""How a person wants to be told: in which language, and of what becomes of own jobs. What a person never chose is the installation's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from forebay_service.languages import CATALOGUES
from sqlalchemy import Connection, delete, insert, select

from forebay_billing.ledger.books import Books
from forebay_billing.tables.notices import preferences

JobNotices = Literal["none", "failures", "all"]
"""``failures``: of jobs that failed or were stopped by a budget; ``all``: also of those that ended well or are run again."""


@dataclass(frozen=True)
class Preferences:
    """What a person chose; None where nothing was."""

    language: str | None = None
    jobs: JobNotices | None = None


def preferences_of(connection: Connection, user: str) -> Preferences:
    """Those of a user."""
    row = connection.execute(select(preferences).where(preferences.c.user_name == user)).one_or_none()
    return Preferences() if row is None else Preferences(row.language, row.jobs)


def language_of(connection: Connection, user: str, common: str) -> str:
    """The language that a user chose, else ``common``."""
    chosen = preferences_of(connection, user).language
    return chosen if chosen is not None and chosen in CATALOGUES else common


def prefer(books: Books, user: str, changes: Mapping[str, Any], now_ns: int) -> Preferences:
    """Writes what a user chooses anew, by name; what is not named stays."""
    connection = books.connection
    chosen = replace(preferences_of(connection, user), **changes)
    connection.execute(delete(preferences).where(preferences.c.user_name == user))
    connection.execute(insert(preferences).values(user_name=user, language=chosen.language, jobs=chosen.jobs, set_at_ns=now_ns))
    return chosen

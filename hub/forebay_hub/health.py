"""``GET api/forebay/health``: whether the hub's database answers and takes what is written.

JupyterHub's own ``health`` answers as long as the process does. While its database does not, JupyterHub refuses every token with 403.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from jupyterhub.apihandlers import APIHandler
from jupyterhub.orm import APIToken
from sqlalchemy import select, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

FRESH_SECONDS = 10.0
"""A look is this old at most, however many ask."""
ANSWERS = "The hub's database does not answer: nobody can sign in, and every token is refused."
TAKES = "The hub's database cannot be written; is its disk full? Tokens are refused from half a minute on."


class DatabaseLook:
    """What the last look at the database found."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at = float("-inf")
        self._trouble: str | None = None

    def trouble(self, database: Session) -> str | None:
        """What is wrong, in a sentence; None: nothing."""
        if self._clock() - self._at >= FRESH_SECONDS:
            self._trouble, self._at = _look(database), self._clock()
        return self._trouble


def _look(database: Session) -> str | None:
    try:
        database.execute(select(APIToken.id).limit(1)).first()
    except SQLAlchemyError:
        database.rollback()
        return ANSWERS
    try:
        database.execute(text("UPDATE alembic_version SET version_num = version_num"))
        database.commit()
    except SQLAlchemyError:
        database.rollback()
        return TAKES
    return None


LOOK = DatabaseLook()


class HubHealth(APIHandler):  # type: ignore[misc] # jupyterhub has no type information
    """For everybody, as it says nothing of anybody: 200, or 503 with what is wrong."""

    def get(self) -> None:
        trouble = LOOK.trouble(self.db)
        if trouble is not None:
            self.set_status(503)
        self.finish({"status": "ok" if trouble is None else "ill", "troubles": {} if trouble is None else {"database": trouble}})


ROUTES = ((r"/api/forebay/health", HubHealth),)

"""Which of several pools on one PostgreSQL leads: see :mod:`forebay_service.processes.leadership`.

Whoever takes the lock raises the epoch in the table ``leadership`` (:meth:`forebay_pool.store.database.Store.lead`), and from then on no
write of an earlier leader counts.
"""

from __future__ import annotations

from forebay_service.processes import leadership
from forebay_service.processes.leadership import reason
from sqlalchemy.exc import SQLAlchemyError

from forebay_pool.errors import StoreUnavailable

LOCK = 0x464F524543
"""The advisory lock of the pool that leads on this database."""


class Leadership(leadership.Leadership):
    """One pool's claim to lead."""

    def __init__(self, database_url: str) -> None:
        super().__init__(database_url, LOCK)

    def take(self) -> bool:
        """Whether the lock is ours from now on. Raises StoreUnavailable."""
        try:
            return super().take()
        except SQLAlchemyError as error:
            raise StoreUnavailable(f"the database cannot be reached: {reason(error)}") from error

"""Which of several processes of a service on one PostgreSQL leads: the one that holds the lock. On SQLite there is one, and it leads.

The lock belongs to a connection of its own. It is free at once when the leader's process dies, and after ``SILENCE_SECONDS`` when the
leader says nothing: PostgreSQL itself ends a connection that is idle for so long.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from sqlalchemy import Connection, create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import NullPool

CONNECT_SECONDS = 2
SILENCE_SECONDS = 3.0
"""After so long without a word from the leader its lock is free. PostgreSQL 14 and later: ``idle_session_timeout``."""
PING_SECONDS = 0.75
SURE_SECONDS = 2.5
"""So long after the beginning of its last word the leader knows that the lock is still its own."""

log = logging.getLogger(__name__)


class Leadership:
    """One process's claim to lead. Its calls block; :meth:`hold` makes them on a thread of its own. ``lock`` is the service's number."""

    def __init__(self, database_url: str, lock: int) -> None:
        self._lock = lock
        self.shared = make_url(database_url).get_backend_name() != "sqlite"
        """Whether other processes may use this database."""
        options = f"-c idle_session_timeout={int(1000 * SILENCE_SECONDS)}"
        bounds = {"connect_timeout": CONNECT_SECONDS, "options": options}
        self._engine = create_engine(database_url, poolclass=NullPool, hide_parameters=True, connect_args=bounds) if self.shared else None
        self._connection: Connection | None = None
        self._heard = float("-inf")
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def sure(self) -> bool:
        """Whether nobody else can lead at this moment. A process that was stopped, and woke up, is not sure."""
        return not self.shared or time.monotonic() - self._heard < SURE_SECONDS

    def take(self) -> bool:
        """Whether the lock is ours from now on. Raises SQLAlchemyError where the database cannot be asked."""
        if not self.shared:
            return True
        try:
            return self._take()
        except SQLAlchemyError:
            self._drop()
            raise

    def _take(self) -> bool:
        began = time.monotonic()
        if self._connection is None and self._engine is not None:
            self._connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        query, values = text("select pg_try_advisory_lock(:lock)"), {"lock": self._lock}
        if self._connection is None or not self._connection.execute(query, values).scalar():
            return False
        self._heard = began
        return True

    def hold(self, still_leads: Callable[[], bool], on_lost: Callable[[], None]) -> None:
        """Keeps the lock, and takes it again after a lost connection. ``on_lost`` is called once, from a thread, when another leads;
        ``still_leads`` says whether none has led meanwhile, and raises SQLAlchemyError while the database cannot say.
        """
        if self.shared:
            self._thread = threading.Thread(target=self._hold, args=(still_leads, on_lost), name="forebay-leadership", daemon=True)
            self._thread.start()

    def _hold(self, still_leads: Callable[[], bool], on_lost: Callable[[], None]) -> None:
        while not self._over.wait(PING_SECONDS):
            try:
                if self._ping():
                    continue
                if not self._take() or not still_leads():
                    on_lost()
                    return
            except SQLAlchemyError as error:
                log.warning("the database does not answer: %s", reason(error), extra={"action": "leadership_unsure"})
                self._drop()

    def _ping(self) -> bool:
        """Whether the connection that has the lock is alive."""
        began = time.monotonic()
        if self._connection is None:
            return False
        try:
            self._connection.execute(text("select 1"))
        except SQLAlchemyError:
            self._drop()
            return False
        self._heard = began
        return True

    def release(self) -> None:
        """Lets another lead."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        self._heard = float("-inf")
        self._drop()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.invalidate()
            connection.close()


def reason(error: SQLAlchemyError) -> str:
    """What the database said, without the statement."""
    return str(error.orig) if isinstance(error, DBAPIError) else str(error)

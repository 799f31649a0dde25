"""Rows of a table that are carried out outside of any transaction, each at least once, by one holder at a time.

The table has the columns ``state`` (``waiting``, ``done``, ``dead``), ``attempts``, ``next_at_ns``, ``settled_at_ns`` and ``note``. Who
claims a row that is due counts an attempt and moves ``next_at_ns`` on: a holder that died is followed by another when that time comes.
The number of the attempt is the holder's token, as whoever claims the row again has a higher one, and only the holder's word settles it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from sqlalchemy import ColumnElement, Connection, Table, and_, func, literal, select, update


class Held(Protocol):
    """A row that somebody claimed."""

    @property
    def row(self) -> Mapping[str, object]:
        """The columns of its primary key."""

    @property
    def attempt(self) -> int:
        """From 1."""


class Claims:
    """The claims on one table; all times are in nanoseconds."""

    def __init__(self, table: Table, claim_seconds: int, note_characters_max: int) -> None:
        self._table = table
        self.claim_ns = claim_seconds * 10**9
        """A row that was claimed and not settled for so long is claimed again: its holder died, or hangs."""
        self._note_characters_max = note_characters_max

    def due(self, now_ns: int) -> ColumnElement[bool]:
        """The rows that may be claimed."""
        return and_(self._table.c.state == "waiting", self._table.c.next_at_ns <= now_ns)

    def is_due(self, connection: Connection, now_ns: int) -> bool:
        """Whether there is anything to claim."""
        return connection.execute(select(literal(1)).select_from(self._table).where(self.due(now_ns)).limit(1)).first() is not None

    def claim(self, connection: Connection, held: Held, now_ns: int, **values: Any) -> bool:
        """Makes the row its holder's, with further values; false where another one was quicker."""
        changes = {"attempts": held.attempt, "next_at_ns": now_ns + self.claim_ns, **values}
        return self._change(connection, held, held.attempt - 1, changes)

    def note(self, connection: Connection, held: Held, **values: Any) -> bool:
        """Writes something down about a row that is held; false, as below, where somebody else claimed it since."""
        return self._change(connection, held, held.attempt, values)

    def done(self, connection: Connection, held: Held, now_ns: int, note: str | None = None) -> bool:
        """Settles the row."""
        return self.note(connection, held, state="done", settled_at_ns=now_ns, note=note)

    def later(self, connection: Connection, held: Held, at_ns: int, reason: str, **values: Any) -> bool:
        """Has it tried again from ``at_ns`` on."""
        return self.note(connection, held, next_at_ns=at_ns, note=self._cut(reason), **values)

    def give_up(self, connection: Connection, held: Held, now_ns: int, reason: str) -> bool:
        """Leaves it to a person."""
        return self.note(connection, held, state="dead", settled_at_ns=now_ns, note=self._cut(reason))

    def give_up_all(self, connection: Connection, rows: ColumnElement[bool], now_ns: int, reason: str) -> int:
        """Gives those of the rows up that wait, whoever holds them; returns how many."""
        values = {"state": "dead", "settled_at_ns": now_ns, "note": self._cut(reason)}
        return connection.execute(update(self._table).where(rows, self._table.c.state == "waiting").values(**values)).rowcount

    def unsettled(self, connection: Connection) -> dict[str, int]:
        """How many wait, and how many are dead; quick, however many are done."""
        state = self._table.c.state
        query = select(state, func.count()).where(state.in_(("waiting", "dead"))).group_by(state)
        return {found: count for found, count in connection.execute(query)}

    def _change(self, connection: Connection, held: Held, attempts: int, values: Mapping[str, Any]) -> bool:
        columns = self._table.c
        named = [columns[name] == value for name, value in held.row.items()]
        changed = update(self._table).where(*named, columns.state == "waiting", columns.attempts == attempts).values(**values)
        return connection.execute(changed).rowcount == 1

    def _cut(self, reason: str) -> str:
        return reason[: self._note_characters_max]

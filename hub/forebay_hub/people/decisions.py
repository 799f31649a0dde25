"""What owners decided of the people of their tenants. It outlives a restart, at which the directory of people is read anew."""

from __future__ import annotations

from sqlalchemy import Connection, delete, insert, select

from forebay_hub.people.tables import DECISIONS, append_audit, opened
from forebay_hub.tenants import Decision, Role


def read_decisions(database_url: str) -> list[Decision]:
    """All that hold, the oldest first. Raises SettingsError."""
    with opened(database_url) as connection:
        rows = connection.execute(select(DECISIONS).order_by(DECISIONS.c.at_ns)).all()
    return [Decision(row.tenant, row.login, row.role) for row in rows]


def decide(connection: Connection, decision: Decision, before: Role | None, who: str, now_ns: int) -> None:
    """Writes the decision down in place of an earlier one."""
    of = DECISIONS.c
    connection.execute(delete(DECISIONS).where(of.tenant == decision.tenant, of.login == decision.login))
    values = {"tenant": decision.tenant, "login": decision.login, "role": decision.role, "at_ns": now_ns, "who": who}
    connection.execute(insert(DECISIONS).values(values))
    action, after = ("member.remove", {"removed": True}) if decision.role is None else ("member.set", {"role": decision.role})
    subject = f"{decision.tenant}/{decision.login}"
    append_audit(connection, now_ns, who, action, subject, None if before is None else {"role": before}, after)

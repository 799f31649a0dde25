"""Alerts that are owed, where they go, and how far each delivery has come.

An alert is written with a delivery for each channel that there is then, in one transaction; a threshold that was told of once is
known by its budget, window and limit, and never told of again. A delivery is claimed, tried outside of any transaction, and
settled only by whoever holds the claim.
"""

from __future__ import annotations

import secrets
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass

from forebay_service.claims import Claims
from sqlalchemy import Connection, func, insert, select, update

from forebay_billing.errors import TooLarge
from forebay_billing.ledger.books import Books
from forebay_billing.model.money import halves
from forebay_billing.reads.alerts import (
    ALERTS_SHOWN_MAX,
    Alert,
    Channel,
    ChannelKind,
    alert_of,
    alert_rows,
    channel_by_id,
    channels_of,
    missing,
)
from forebay_billing.rules.budgets import Due
from forebay_billing.tables.budgets import alerts, channels, deliveries

CLAIMS = Claims(deliveries, claim_seconds=60, note_characters_max=500)
CLAIMED_MAX = 32
CHANNELS_PER_TENANT_MAX = 20
CHANNEL_DAILY_MAX = 200
"""Alerts that go to a tenant's channel within a day; what is beyond is given up, and says so."""
DAY_NS = 86_400 * 10**9
SECRET_BYTES = 32


@dataclass(frozen=True)
class AlertDelivery:
    """An alert on its way to a channel. ``attempt`` is the token: whoever claims it again has a higher one."""

    alert: Alert
    channel: Channel
    attempt: int
    created_at_ns: int

    @property
    def row(self) -> dict[str, object]:
        """The columns of its primary key."""
        return {"alert_id": self.alert.id, "channel_id": self.channel.id}

    @property
    def destination(self) -> Channel:
        return self.channel

    @property
    def reader(self) -> str:
        """Whoever has alerts sent there."""
        return self.channel.set_by


def new_secret() -> str:
    """For a webhook to be signed with: ``whsec_`` and base64, as Standard Webhooks writes it."""
    return "whsec_" + b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def write(books: Books, due: Sequence[Due], now_ns: int) -> int:
    """Writes what is still missing, each with its deliveries; returns how many alerts are new."""
    connection = books.connection
    fresh = missing(connection, due)
    largest: int | None = connection.execute(select(func.max(alerts.c.id))).scalar_one()
    for id, each in enumerate(fresh, (largest or 0) + 1):
        limit_milli, limit_grains = halves(each.budget.limit_grains)
        used_milli, used_grains = halves(each.used_grains)
        values = {"limit_milli": limit_milli, "limit_grains": limit_grains, "used_milli": used_milli, "used_grains": used_grains}
        connection.execute(
            insert(alerts).values(id=id, budget_id=each.budget.id, period=each.period, threshold=each.threshold, at_ns=now_ns, **values)
        )
        for channel in channels_of(connection, each.budget.subject.tenant, with_operators=True):
            row = {"alert_id": id, "channel_id": channel.id, "attempts": 0, **_beginning(connection, channel, now_ns)}
            connection.execute(insert(deliveries).values(**row, created_at_ns=now_ns, next_at_ns=now_ns))
    return len(fresh)


# Channels


def add_channel(books: Books, tenant: str | None, kind: ChannelKind, target: str, who: str, now_ns: int) -> Channel:
    """A new channel; a webhook gets a secret of its own. Raises TooLarge."""
    connection = books.connection
    if len(channels_of(connection, tenant)) >= CHANNELS_PER_TENANT_MAX:
        raise TooLarge(f"There are {CHANNELS_PER_TENANT_MAX} channels already; remove one first.")
    largest: int | None = connection.execute(select(func.max(channels.c.id))).scalar_one()
    secret = new_secret() if kind == "webhook" else None
    channel = Channel((largest or 0) + 1, tenant, kind, target, secret, now_ns, who)
    connection.execute(insert(channels).values(vars(channel)))
    after = {"id": channel.id, "tenant": tenant, "kind": kind, "target": channel.told}
    books.append_audit(now_ns, who, "alerts.channel.add", f"{tenant or ''}#{channel.id}", None, after)
    return channel


def remove_channel(books: Books, id: int, tenant: str | None, who: str, now_ns: int) -> Channel:
    """Nothing goes there any more, and what waited is given up; ``tenant`` None removes anybody's. Raises UnknownChannel."""
    found = channel_by_id(books.connection, id, tenant)
    books.connection.execute(update(channels).where(channels.c.id == id).values(removed_at_ns=now_ns))
    CLAIMS.give_up_all(books.connection, deliveries.c.channel_id == id, now_ns, "the channel was removed")
    before = {"id": id, "tenant": found.tenant, "kind": found.kind, "target": found.told}
    books.append_audit(now_ns, who, "alerts.channel.remove", f"{found.tenant or ''}#{id}", before, {"removed": True})
    return found


def retry_dead(books: Books, id: int, tenant: str | None, who: str, now_ns: int) -> int:
    """Tries again what could not be delivered to a channel, as much as it may get today; returns how many. Raises UnknownChannel."""
    found = channel_by_id(books.connection, id, tenant)
    values = {"state": "waiting", "created_at_ns": now_ns, "next_at_ns": now_ns, "settled_at_ns": None}
    of = deliveries.c
    dead = select(of.alert_id).where(of.channel_id == id, of.state == "dead").order_by(of.alert_id.desc())
    wanted = books.connection.execute(dead.limit(_room(books.connection, found, now_ns))).scalars().all()
    again = update(deliveries).where(of.channel_id == id, of.alert_id.in_(wanted))
    count = books.connection.execute(again.values(**values)).rowcount
    books.append_audit(now_ns, who, "alerts.channel.retry", f"{found.tenant or ''}#{id}", None, {"deliveries": count})
    return count


def _room(connection: Connection, channel: Channel, now_ns: int) -> int:
    """How many alerts may go to the channel now. What waits or arrived counts; the operators' own channels have no bound."""
    if channel.tenant is None:
        return ALERTS_SHOWN_MAX
    of = deliveries.c
    sent = (of.channel_id == channel.id, of.created_at_ns > now_ns - DAY_NS, of.state != "dead")
    return max(0, CHANNEL_DAILY_MAX - int(connection.execute(select(func.count()).where(*sent)).scalar_one()))


def _beginning(connection: Connection, channel: Channel, now_ns: int) -> dict[str, object]:
    """The state of a new delivery."""
    if _room(connection, channel, now_ns) > 0:
        return {"state": "waiting"}
    note = f"{CHANNEL_DAILY_MAX} alerts went there within a day; try it again tomorrow"
    return {"state": "dead", "settled_at_ns": now_ns, "note": note}


# Deliveries


def claim(connection: Connection, now_ns: int, limit: int = CLAIMED_MAX) -> list[AlertDelivery]:
    """Deliveries that are due, oldest first; each is the caller's for ``CLAIMS.claim_ns``."""
    query = (
        alert_rows(
            channels.c.id.label("channel_id"), channels.c.tenant.label("channel_tenant"), channels.c.kind, channels.c.target,
            channels.c.secret, channels.c.set_at_ns.label("channel_set_at_ns"), channels.c.set_by.label("channel_set_by"),
            deliveries.c.attempts, deliveries.c.created_at_ns,
        )
        .join(deliveries, deliveries.c.alert_id == alerts.c.id)
        .join(channels, channels.c.id == deliveries.c.channel_id)
        .where(CLAIMS.due(now_ns))
        .order_by(deliveries.c.next_at_ns, alerts.c.id)
        .limit(limit)
    )  # fmt: skip
    parcels = []
    for row in connection.execute(query).all():
        channel = Channel(
            row.channel_id, row.channel_tenant, row.kind, row.target, row.secret, row.channel_set_at_ns, row.channel_set_by
        )
        parcel = AlertDelivery(alert_of(row), channel, row.attempts + 1, row.created_at_ns)
        if CLAIMS.claim(connection, parcel, now_ns):
            parcels.append(parcel)
    return parcels

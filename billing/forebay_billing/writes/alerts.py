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
from typing import Any, Literal
from urllib.parse import urlsplit

from forebay_service.claims import Claims
from sqlalchemy import ColumnElement, Connection, Row, func, insert, or_, select, update

from forebay_billing.errors import TooLarge, UnknownChannel
from forebay_billing.ledger.access import Scope
from forebay_billing.ledger.books import Books
from forebay_billing.model.money import halves, whole
from forebay_billing.rules.budgets import Budget, Due
from forebay_billing.tables.budgets import alerts, budgets, channels, deliveries
from forebay_billing.writes.budgets import budget_of

CLAIMS = Claims(deliveries, claim_seconds=60, note_characters_max=500)
CLAIMED_MAX = 32
CHANNELS_PER_TENANT_MAX = 20
CHANNEL_DAILY_MAX = 200
"""Alerts that go to a tenant's channel within a day; what is beyond is given up, and says so."""
DAY_NS = 86_400 * 10**9
ALERTS_SHOWN_MAX = 500
SECRET_BYTES = 32
TOLD_CHARACTERS = 4
"""Of a chat's address that are told, so that people know which it is …"""
HIDDEN_CHARACTERS_MIN = 12
"""… where so many others of its path are not."""

ChannelKind = Literal["webhook", "email", "slack"]


@dataclass(frozen=True)
class Channel:
    """Where alerts go: those of a tenant, or all where ``tenant`` is None."""

    id: int
    tenant: str | None
    kind: ChannelKind
    target: str
    secret: str | None
    """Signs webhooks; ``whsec_`` and base64, as Standard Webhooks writes it."""
    set_at_ns: int
    set_by: str

    @property
    def told(self) -> str:
        """See :func:`told_target`."""
        return told_target(self.kind, self.target)


@dataclass(frozen=True)
class Alert:
    """A threshold of a budget that was reached."""

    id: int
    budget: Budget
    period: str
    threshold: int
    limit_grains: int
    used_grains: int
    at_ns: int


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


@dataclass(frozen=True)
class Health:
    """How a channel's deliveries stand."""

    waiting: int
    done: int
    dead: int
    note: str | None
    """What the latest failure said."""


def new_secret() -> str:
    """For a webhook to be signed with: ``whsec_`` and base64, as Standard Webhooks writes it."""
    return "whsec_" + b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def told_target(kind: str, target: str) -> str:
    """What is told of where a channel goes, once it is kept: whoever knows the address of a chat's webhook writes there."""
    if kind != "slack":
        return target
    parts = urlsplit(target)
    host = f"{parts.scheme}://{parts.netloc}/"
    hidden = target[len(host) : -TOLD_CHARACTERS]
    return f"{host}…{target[-TOLD_CHARACTERS:] if len(hidden) >= HIDDEN_CHARACTERS_MIN else ''}"


def missing(connection: Connection, due: Sequence[Due]) -> list[Due]:
    """The thresholds of which no alert was ever written, each once."""
    ids = sorted({each.budget.id for each in due})
    if not ids:
        return []
    query = select(alerts).where(alerts.c.budget_id.in_(ids))
    known = {(row.budget_id, row.period, row.threshold, whole(row.limit_milli, row.limit_grains)) for row in connection.execute(query)}
    named = {(each.budget.id, each.period, each.threshold, each.budget.limit_grains): each for each in due}
    return [each for name, each in named.items() if name not in known]


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


def alerts_of(connection: Connection, scope: Scope, since_ns: int | None) -> list[Alert]:
    """The newest alerts that concern the scope: a user's own budgets, and those of the tenant as a whole."""
    conditions: list[ColumnElement[bool]] = []
    if scope.tenant is not None:
        conditions.append(budgets.c.tenant == scope.tenant)
    if scope.user is not None:
        conditions.append(or_(budgets.c.user_name.is_(None), budgets.c.user_name == scope.user))
    if since_ns is not None:
        conditions.append(alerts.c.at_ns >= since_ns)
    query = _alert_rows().where(*conditions).order_by(alerts.c.id.desc()).limit(ALERTS_SHOWN_MAX)
    return [_alert_of(row) for row in connection.execute(query)]


# Channels


def channels_of(connection: Connection, tenant: str | None, with_operators: bool = False) -> list[Channel]:
    """The channels of a tenant, or the operators' (None)."""
    of_tenant: ColumnElement[bool] = channels.c.tenant.is_(None) if tenant is None else channels.c.tenant == tenant
    if with_operators:
        of_tenant = or_(of_tenant, channels.c.tenant.is_(None))
    query = select(channels).where(channels.c.removed_at_ns.is_(None), of_tenant).order_by(channels.c.id)
    return [_channel_of(row) for row in connection.execute(query)]


def all_channels(connection: Connection) -> list[Channel]:
    """Of all tenants, and the operators'."""
    query = select(channels).where(channels.c.removed_at_ns.is_(None)).order_by(channels.c.id)
    return [_channel_of(row) for row in connection.execute(query)]


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
    found = _channel(books.connection, id, tenant)
    books.connection.execute(update(channels).where(channels.c.id == id).values(removed_at_ns=now_ns))
    CLAIMS.give_up_all(books.connection, deliveries.c.channel_id == id, now_ns, "the channel was removed")
    before = {"id": id, "tenant": found.tenant, "kind": found.kind, "target": found.told}
    books.append_audit(now_ns, who, "alerts.channel.remove", f"{found.tenant or ''}#{id}", before, {"removed": True})
    return found


def retry_dead(books: Books, id: int, tenant: str | None, who: str, now_ns: int) -> int:
    """Tries again what could not be delivered to a channel, as much as it may get today; returns how many. Raises UnknownChannel."""
    found = _channel(books.connection, id, tenant)
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


def health(connection: Connection, channel_id: int) -> Health:
    """How the channel's deliveries stand."""
    query = select(deliveries.c.state, func.count()).where(deliveries.c.channel_id == channel_id).group_by(deliveries.c.state)
    counts = {state: count for state, count in connection.execute(query)}
    tried = or_(deliveries.c.attempts > 0, deliveries.c.state == "dead")
    failed = select(deliveries.c.note).where(deliveries.c.channel_id == channel_id, deliveries.c.state != "done", tried)
    note = connection.execute(failed.order_by(deliveries.c.alert_id.desc()).limit(1)).scalar_one_or_none()
    return Health(counts.get("waiting", 0), counts.get("done", 0), counts.get("dead", 0), note)


# Deliveries


def claim(connection: Connection, now_ns: int, limit: int = CLAIMED_MAX) -> list[AlertDelivery]:
    """Deliveries that are due, oldest first; each is the caller's for ``CLAIMS.claim_ns``."""
    query = (
        _alert_rows(
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
        parcel = AlertDelivery(_alert_of(row), channel, row.attempts + 1, row.created_at_ns)
        if CLAIMS.claim(connection, parcel, now_ns):
            parcels.append(parcel)
    return parcels


def _channel(connection: Connection, id: int, tenant: str | None) -> Channel:
    row = connection.execute(select(channels).where(channels.c.id == id, channels.c.removed_at_ns.is_(None))).one_or_none()
    if row is None or tenant not in (None, row.tenant):
        raise UnknownChannel(f"There is no channel {id}; list them with GET api/alerts/channels.")
    return _channel_of(row)


def _channel_of(row: Row[Any]) -> Channel:
    return Channel(row.id, row.tenant, row.kind, row.target, row.secret, row.set_at_ns, row.set_by)


def _alert_rows(*more: ColumnElement[Any]) -> Any:
    columns = [column for column in budgets.c if column.name not in ("limit_milli", "limit_grains", "id")]
    own = (
        alerts.c.id.label("alert_id"), alerts.c.period, alerts.c.threshold, alerts.c.limit_milli, alerts.c.limit_grains,
        alerts.c.used_milli, alerts.c.used_grains, alerts.c.at_ns, alerts.c.budget_id.label("id"),
    )  # fmt: skip
    return select(*own, *columns, *more).select_from(alerts.join(budgets, budgets.c.id == alerts.c.budget_id))


def _alert_of(row: Row[Any]) -> Alert:
    """The budget in it has the limit that was reached, which may have been changed since."""
    budget, used = budget_of(row), whole(row.used_milli, row.used_grains)
    return Alert(row.alert_id, budget, row.period, row.threshold, budget.limit_grains, used, row.at_ns)

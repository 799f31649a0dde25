"""Alerts of budgets that were written, the channels they go to, and how deliveries stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from sqlalchemy import ColumnElement, Connection, Row, func, or_, select

from forebay_billing.errors import UnknownChannel
from forebay_billing.ledger.access import Scope
from forebay_billing.model.money import whole
from forebay_billing.reads.budgets import budget_of
from forebay_billing.rules.budgets import Budget, Due
from forebay_billing.tables.budgets import alerts, budgets, channels, deliveries

ALERTS_SHOWN_MAX = 500
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
class Health:
    """How a channel's deliveries stand."""

    waiting: int
    done: int
    dead: int
    note: str | None
    """What the latest failure said."""


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


def alerts_of(connection: Connection, scope: Scope, since_ns: int | None) -> list[Alert]:
    """The newest alerts that concern the scope: a user's own budgets, and those of the tenant as a whole."""
    conditions: list[ColumnElement[bool]] = []
    if scope.tenant is not None:
        conditions.append(budgets.c.tenant == scope.tenant)
    if scope.user is not None:
        conditions.append(or_(budgets.c.user_name.is_(None), budgets.c.user_name == scope.user))
    if since_ns is not None:
        conditions.append(alerts.c.at_ns >= since_ns)
    query = alert_rows().where(*conditions).order_by(alerts.c.id.desc()).limit(ALERTS_SHOWN_MAX)
    return [alert_of(row) for row in connection.execute(query)]


def channels_of(connection: Connection, tenant: str | None, with_operators: bool = False) -> list[Channel]:
    """The channels of a tenant, or the operators' (None)."""
    of_tenant: ColumnElement[bool] = channels.c.tenant.is_(None) if tenant is None else channels.c.tenant == tenant
    if with_operators:
        of_tenant = or_(of_tenant, channels.c.tenant.is_(None))
    query = select(channels).where(channels.c.removed_at_ns.is_(None), of_tenant).order_by(channels.c.id)
    return [channel_of(row) for row in connection.execute(query)]


def all_channels(connection: Connection) -> list[Channel]:
    """Of all tenants, and the operators'."""
    query = select(channels).where(channels.c.removed_at_ns.is_(None)).order_by(channels.c.id)
    return [channel_of(row) for row in connection.execute(query)]


def channel_by_id(connection: Connection, id: int, tenant: str | None) -> Channel:
    """A channel of the tenant, or of anybody (None). Raises UnknownChannel."""
    row = connection.execute(select(channels).where(channels.c.id == id, channels.c.removed_at_ns.is_(None))).one_or_none()
    if row is None or tenant not in (None, row.tenant):
        raise UnknownChannel(f"There is no channel {id}; list them with GET api/alerts/channels.")
    return channel_of(row)


def health(connection: Connection, channel_id: int) -> Health:
    """How the channel's deliveries stand."""
    query = select(deliveries.c.state, func.count()).where(deliveries.c.channel_id == channel_id).group_by(deliveries.c.state)
    counts = {state: count for state, count in connection.execute(query)}
    tried = or_(deliveries.c.attempts > 0, deliveries.c.state == "dead")
    failed = select(deliveries.c.note).where(deliveries.c.channel_id == channel_id, deliveries.c.state != "done", tried)
    note = connection.execute(failed.order_by(deliveries.c.alert_id.desc()).limit(1)).scalar_one_or_none()
    return Health(counts.get("waiting", 0), counts.get("done", 0), counts.get("dead", 0), note)


def channel_of(row: Row[Any]) -> Channel:
    """The channel in a row of ``channels``."""
    return Channel(row.id, row.tenant, row.kind, row.target, row.secret, row.set_at_ns, row.set_by)


def alert_rows(*more: ColumnElement[Any]) -> Any:
    """Alerts with their budgets, for :func:`alert_of`."""
    columns = [column for column in budgets.c if column.name not in ("limit_milli", "limit_grains", "id")]
    own = (
        alerts.c.id.label("alert_id"), alerts.c.period, alerts.c.threshold, alerts.c.limit_milli, alerts.c.limit_grains,
        alerts.c.used_milli, alerts.c.used_grains, alerts.c.at_ns, alerts.c.budget_id.label("id"),
    )  # fmt: skip
    return select(*own, *columns, *more).select_from(alerts.join(budgets, budgets.c.id == alerts.c.budget_id))


def alert_of(row: Row[Any]) -> Alert:
    """The budget in it has the limit that was reached, which may have been changed since."""
    budget, used = budget_of(row), whole(row.used_milli, row.used_grains)
    return Alert(row.alert_id, budget, row.period, row.threshold, budget.limit_grains, used, row.at_ns)

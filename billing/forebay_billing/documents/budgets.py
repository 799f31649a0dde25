"""Budgets as JSON. Amounts are nano-units, rounded half-even; what somebody may not know is null."""

from __future__ import annotations

from typing import Any

from forebay_service.identity import OPERATE, SERVICE, TENANT, Identity

from forebay_billing.documents.usage import range_json
from forebay_billing.model.money import nano_of
from forebay_billing.reads.alerts import Alert, Channel, Health
from forebay_billing.reads.budgets import budget_tag, facts
from forebay_billing.rules.budgets import SECOND_NS, Budget, Standing, Subject, Verdict

_HIDDEN = ("etag", "limit_nano", "spent_nano", "running_nano", "left_nano", "forecast_nano", "forecast_low_nano", "forecast_high_nano")
"""What stays with those who may know amounts; a tag is made of the limit, which could be guessed from it."""


def may_know_amounts(identity: Identity, subject: Subject) -> bool:
    """A member may know what is spent in the own name; what others of the tenant spend is for the owner."""
    return identity.may(OPERATE) or identity.may(SERVICE) or identity.may(TENANT) or subject.user == identity.name


def budget_json(budget: Budget) -> dict[str, Any]:
    """A budget as it was set, with the tag that a change may expect."""
    return {**facts(budget), "etag": budget_tag(budget)}


def standing_json(found: Standing, identity: Identity) -> dict[str, Any]:
    """A budget and how it stands, for whoever asks."""
    amounts = {
        "spent_nano": nano_of(found.spent_grains),
        "running_nano": nano_of(found.running_grains),
        "left_nano": nano_of(found.left_grains),
        "forecast_nano": nano_of(found.forecast_grains),
        **range_json(found.forecast_range),
    }
    row = {
        **budget_json(found.budget),
        "period": found.period,
        **amounts,
        "state": found.state,
        "code": found.code,
        "sentence": found.sentence,
    }
    if not may_know_amounts(identity, found.budget.subject):
        row |= dict.fromkeys(_HIDDEN)
    return row


def verdict_json(found: Verdict) -> dict[str, Any]:
    """What the pool is told of a subject."""
    stands = found.standing
    return {
        "tenant": found.subject.tenant,
        "user": found.subject.user,
        "span": found.subject.notebook,
        "state": found.state,
        "code": stands.code,
        "origin": stands.budget.origin,
        "sentence": stands.sentence or "",
        "grace_seconds": found.grace_ns / SECOND_NS,
        "currency": stands.budget.currency,
        "period": stands.period,
        "limit_nano": nano_of(stands.budget.limit_grains),
        "left_nano": nano_of(stands.left_grains),
    }


def alert_json(alert: Alert) -> dict[str, Any]:
    """An alert as webhooks and the API tell it; amounts in nano-units."""
    budget = {name: value for name, value in facts(alert.budget).items() if name not in ("limit_nano", "id", "set_at_ns", "set_by")}
    return {
        "id": alert.id,
        "budget": alert.budget.id,
        **budget,
        "period": alert.period,
        "threshold": alert.threshold,
        "limit_nano": nano_of(alert.limit_grains),
        "used_nano": nano_of(alert.used_grains),
        "at_ns": alert.at_ns,
    }


def alert_row(alert: Alert, identity: Identity) -> dict[str, Any]:
    """An alert, for whoever asks."""
    row = alert_json(alert)
    if not may_know_amounts(identity, alert.budget.subject):
        row |= {"limit_nano": None, "used_nano": None}
    return row


def channel_json(channel: Channel, with_secret: bool = False) -> dict[str, Any]:
    """A channel; its secret is told once, to whoever made it."""
    row = {name: getattr(channel, name) for name in ("id", "tenant", "kind", "set_at_ns", "set_by")} | {"target": channel.told}
    return {**row, "secret": channel.secret} if with_secret else row


def channel_health_json(channel: Channel, found: Health) -> dict[str, Any]:
    """A channel, and how its deliveries stand."""
    return {**channel_json(channel), "waiting": found.waiting, "done": found.done, "dead": found.dead, "note": found.note}

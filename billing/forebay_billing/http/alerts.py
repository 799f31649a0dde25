"""The endpoints of alerts and of the channels that they go to."""

from __future__ import annotations

import logging

from forebay_service.errors import Fault
from forebay_service.people.addresses import is_address
from sqlalchemy import Connection

from forebay_billing.documents.budgets import alert_row, channel_health_json, channel_json
from forebay_billing.errors import InvalidRequest, UnknownChannel
from forebay_billing.http.bodies import ChannelActionBody, ChannelBody
from forebay_billing.http.budgets import number_of
from forebay_billing.http.handler import Attempt, BillingHandler
from forebay_billing.http.queries import AlertsQuery, ChannelsQuery, NoQuery
from forebay_billing.ledger.access import channel_tenant, usage_scope
from forebay_billing.ledger.books import Books
from forebay_billing.reads.alerts import Channel, alerts_of, channels_of, health, told_target
from forebay_billing.reads.standings import SAY_PROFILE, check_named
from forebay_billing.settings import Settings
from forebay_billing.tasks.webhooks import check_resolved, check_target
from forebay_billing.writes import alerts

log = logging.getLogger(__name__)


class AlertsHandler(BillingHandler):
    """``GET api/alerts``."""

    endpoint = "alerts"

    async def get(self) -> None:
        identity = await self.bearer()
        query = self.query(AlertsQuery)
        scope = usage_scope(identity, query.tenant, query.user)
        found = await self.context.store.read(lambda connection: alerts_of(connection, scope, query.since_ns))
        self.write_json([alert_row(alert, identity) for alert in found])


class ChannelsHandler(BillingHandler):
    """``GET`` and ``POST api/alerts/channels``."""

    endpoint = "alert_channels"

    async def get(self) -> None:
        identity = await self.bearer()
        query = self.query(ChannelsQuery)
        tenant = channel_tenant(identity, query.tenant)

        def read(connection: Connection) -> list[dict[str, object]]:
            found = channels_of(connection, tenant)
            return [channel_health_json(channel, health(connection, channel.id)) for channel in found]

        self.write_json(await self.context.store.read(read))

    async def post(self) -> None:
        identity = await self.bearer()
        self.query(NoQuery)
        body = self.body(ChannelBody)
        tenant, now_ns = channel_tenant(identity, body.tenant), self.context.clock_ns()
        await check_channel(body.kind, body.target, self.context.settings)

        def work(books: Books) -> Channel:
            if tenant is not None:
                check_named(books.connection, tenant, identity, SAY_PROFILE)
            return alerts.add_channel(books, tenant, body.kind, body.target, identity.name, now_ns)

        asked = {**body.model_dump(), "target": told_target(body.kind, body.target)}
        attempt = None if tenant in (None, identity.tenant) else Attempt("alerts.channel.add", tenant, asked)
        channel = await self.change(identity, work, lambda added: channel_json(added, with_secret=True), attempt)
        if channel is not None:
            fields = {"action": "alerts.channel.add", "who": identity.name, "tenant": tenant, "channel": channel.id}
            log.info("an alert channel is added", extra=fields)


class ChannelHandler(BillingHandler):
    """``POST`` and ``DELETE api/alerts/channels/{id}``."""

    endpoint = "alert_channel"

    async def post(self, id: str) -> None:
        identity = await self.bearer()
        self.query(NoQuery)
        tenant, now_ns = channel_tenant(identity, None), self.context.clock_ns()
        self.body(ChannelActionBody)
        number = _number(id)
        await self.change(
            identity,
            lambda books: alerts.retry_dead(books, number, tenant, identity.name, now_ns),
            lambda count: {"id": number, "deliveries": count},
        )

    async def delete(self, id: str) -> None:
        identity = await self.bearer()
        self.query(NoQuery)
        tenant, now_ns = channel_tenant(identity, None), self.context.clock_ns()
        number = _number(id)

        def document(channel: Channel) -> dict[str, object]:
            return {"id": channel.id, "removed": True}

        await self.change(identity, lambda books: alerts.remove_channel(books, number, tenant, identity.name, now_ns), document)


async def check_channel(kind: str, target: str, settings: Settings) -> None:
    """Raises InvalidRequest for what is no address of this kind, or one that this installation sends nothing to."""
    if kind == "email":
        check_address(target, settings)
    else:
        check_target(target, settings.alert_private_addresses, settings.webhook_ports)
        await check_resolved(target, settings.alert_private_addresses)


def check_address(target: str, settings: Settings, field: str = "target") -> None:
    """Raises InvalidRequest for what is no e-mail address, and where no mail is sent."""
    if not is_address(target):
        raise InvalidRequest(f"{field}: give one e-mail address, such as ops@example.com.", Fault("no_address", field))
    if settings.smtp_host is None:
        raise InvalidRequest(f"{field}: this installation sends no e-mail (setting smtp_host).", Fault("mail_off", field))


def _number(id: str) -> int:
    number = number_of(id)
    if number is None:
        raise UnknownChannel(f"There is no channel {id!r}; list them with GET api/alerts/channels.")
    return number

"""Brings alerts to their channels: what is said, and how."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

from forebay_billing.documents.budgets import alert_json
from forebay_billing.model.money import decimal_text, nano_of
from forebay_billing.settings import Settings
from forebay_billing.tasks.alert_webhooks import Undelivered, Webhooks
from forebay_billing.tasks.smtp import Mailbox
from forebay_billing.writes.alerts import Alert, AlertDelivery


class AlertSender:
    """Sends parcels until :meth:`close`; ``webhooks`` are given where there is no network."""

    def __init__(self, settings: Settings, webhooks: Webhooks | None = None) -> None:
        self._webhooks = webhooks or Webhooks(settings.alert_private_addresses)
        self._mailbox = mailbox_of(settings)

    def close(self) -> None:
        """Lets go of the connections."""
        self._webhooks.close()

    async def bring(self, parcel: AlertDelivery, now_ns: int) -> None:
        """One attempt. Raises Undelivered."""
        alert, channel = parcel.alert, parcel.channel
        id = f"forebay-alert-{alert.id}-{channel.id}"
        if channel.kind == "webhook":
            body = json.dumps(notice(alert)).encode()
            await self._webhooks.send(channel.target, channel.secret or "", id, now_ns // 10**9, body)
            return
        if self._mailbox is None:
            raise Undelivered("No mail server is set (setting smtp_host).")
        await asyncio.to_thread(self._mailbox.send, channel.target, headline(alert), letter(alert), id, now_ns)


def mailbox_of(settings: Settings) -> Mailbox | None:
    """The operator's mail server; None where none is set."""
    if settings.smtp_host is None:
        return None
    password = settings.smtp_password_text()
    return Mailbox(settings.smtp_host, settings.smtp_port, settings.smtp_security, settings.smtp_from, settings.smtp_user, password)


def notice(alert: Alert) -> dict[str, Any]:
    """The body of a webhook."""
    return {
        "type": "budget.threshold_reached",
        "timestamp": datetime.fromtimestamp(alert.at_ns // 10**9, UTC).isoformat(),
        "data": alert_json(alert),
    }


def headline(alert: Alert) -> str:
    """The subject of a mail: one line, whatever a notebook is called."""
    what = " ".join(str(alert.budget.subject).split())
    return f"{alert.threshold} % of the budget for {what:.120} is used"


_DOES = {
    "notify": "Nothing stops at the limit.",
    "refuse": "At the limit new leases are refused; those that are open go on.",
    "drain": "At the limit running work pauses: tensors are kept, and cells go on once the budget is raised.",
}


def letter(alert: Alert) -> str:
    """The text of a mail."""
    budget = alert.budget
    used, limit = (decimal_text(nano_of(grains), 9).rstrip("0").rstrip(".") for grains in (alert.used_grains, alert.limit_grains))
    window = "in all" if budget.window == "total" else f"in {alert.period}"
    return (
        f"{headline(alert)}: {used} of {limit} {budget.currency} {window}, at list prices, with what runs.\n\n"
        f"{_DOES[budget.on_limit]}\nThe budget was set by {budget.set_by} ({budget.origin}).\n"
    )

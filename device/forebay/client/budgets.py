"""What may be spent, and who hears of it: budgets, alerts, the monthly report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from forebay.client.calls import Calls, segment
from forebay.client.models.billing import (
    AlertRow,
    BudgetRow,
    BudgetStanding,
    ChannelRow,
    RecipientRow,
    Removed,
    Retried,
)
from forebay.client.times import Moment, unix_ns


class BudgetCalls(Calls):
    """Calls to billing about budgets. Changes are for a tenant's owner and who pays for it, whose ``tenant`` may be left out; and for any
    user's own labels."""

    def budgets(self, *, tenant: str | None = None, user: str | None = None) -> list[BudgetStanding]:
        """Budgets and how they stand; a member sees the own ones, and of the tenant's whether they stop anybody."""
        return self._read(list[BudgetStanding], self._books, "api/budgets", tenant=tenant, user=user)

    def set_budget(
        self,
        limit_nano: int,
        *,
        tenant: str | None = None,
        user: str | None = None,
        notebook: str | None = None,
        currency: str | None = None,
        window: Literal["month", "total"] = "month",
        thresholds: Sequence[int] | None = None,
        on_limit: Literal["notify", "refuse", "drain"] = "notify",
        grace_seconds: int | None = None,
        new: bool = False,
        etag: str | None = None,
    ) -> BudgetRow:
        """Makes a budget, or changes the one of the same subject (tenant, user, notebook) and window. A ``notebook`` without a ``user`` is
        the caller's own.

        ``thresholds`` are percents that alert. ``new`` says that nothing was recorded for the tenant yet; with an ``etag`` it changes
        only the budget that has it, else raises PreconditionFailed.
        """
        body = {
            "limit_nano": limit_nano,
            "tenant": tenant,
            "user": user,
            "notebook": notebook,
            "currency": currency,
            "window": window,
            "thresholds": None if thresholds is None else list(thresholds),
            "on_limit": on_limit,
            "grace_seconds": grace_seconds,
            "new": new,
        }
        return self._change(BudgetRow, self._books, "PUT", "api/budgets", body, etag)

    def remove_budget(self, budget: int, *, etag: str | None = None) -> None:
        """Removes a budget by its ``id``; with an ``etag`` only one that has it."""
        self._change(Removed, self._books, "DELETE", f"api/budgets/{segment(budget)}", None, etag)

    def alerts(self, *, tenant: str | None = None, user: str | None = None, since: Moment | None = None) -> list[AlertRow]:
        """Thresholds of budgets that were reached, newest first."""
        return self._read(list[AlertRow], self._books, "api/alerts", tenant=tenant, user=user, since_ns=unix_ns(since))

    def alert_channels(self, *, tenant: str | None = None) -> list[ChannelRow]:
        """Where alerts go, and how deliveries stand."""
        return self._read(list[ChannelRow], self._books, "api/alerts/channels", tenant=tenant)

    def add_alert_channel(self, kind: Literal["webhook", "email", "slack"], target: str, *, tenant: str | None = None) -> ChannelRow:
        """Sends alerts to an address. A webhook's ``secret``, which signs what it is sent, is told here alone."""
        return self._change(ChannelRow, self._books, "POST", "api/alerts/channels", {"tenant": tenant, "kind": kind, "target": target})

    def retry_alert_channel(self, channel: int) -> int:
        """Sends again what was given up; returns how many deliveries that is."""
        path = f"api/alerts/channels/{segment(channel)}"
        return self._change(Retried, self._books, "POST", path, {"action": "retry"}).deliveries

    def remove_alert_channel(self, channel: int) -> None:
        """Removes a channel, and gives up what waits."""
        self._change(Removed, self._books, "DELETE", f"api/alerts/channels/{segment(channel)}", None)

    def report_file(self, month: str, *, tenant: str | None = None) -> bytes:
        """A tenant's month as PDF: by day, member, flavor and notebook, at list prices."""
        return self._file(self._books, "api/reports", month=month, tenant=tenant)

    def report_recipients(self, *, tenant: str | None = None) -> list[RecipientRow]:
        """Whom each month's report is mailed to, and the latest mailing."""
        return self._read(list[RecipientRow], self._books, "api/reports/recipients", tenant=tenant)

    def add_report_recipient(self, target: str, *, tenant: str | None = None) -> RecipientRow:
        """Has each month's report mailed to an address, a day after its end."""
        return self._change(RecipientRow, self._books, "POST", "api/reports/recipients", {"tenant": tenant, "target": target})

    def remove_report_recipient(self, recipient: int) -> None:
        """An address gets no more reports."""
        self._change(Removed, self._books, "DELETE", f"api/reports/recipients/{segment(recipient)}", None)

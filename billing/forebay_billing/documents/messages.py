"""What goes to people: alerts, notices, reports and codes, in the language of whoever it goes to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from forebay_service.causes import job_end
from forebay_service.languages import Text, as_sent

from forebay_billing.documents.budgets import alert_json
from forebay_billing.documents.monthly_report import Report
from forebay_billing.model.money import decimal_text, nano_of
from forebay_billing.reads.alerts import Alert
from forebay_billing.reads.notices import Notice, NoticeChannel
from forebay_billing.rules.budgets import Subject

LINE_CHARACTERS_MAX = 500


@dataclass(frozen=True)
class Attachment:
    """A file that goes with a mail."""

    name: str
    media_type: str
    content: bytes = field(repr=False)


@dataclass(frozen=True)
class Message:
    """A mail has the subject, the text and the attachment, a webhook the document, a chat its line. ``id`` names it, so that a receiver
    sees a repetition for what it is."""

    id: str
    subject: str
    text: str
    document: Mapping[str, Any] = field(default_factory=dict)
    attachment: Attachment | None = None
    chat: str = ""
    """One line; empty: the subject."""


_DOES = {
    "notify": Text("Nothing stops at the limit."),
    "refuse": Text("At the limit new leases are refused; those that are open go on."),
    "drain": Text("At the limit running work pauses: tensors are kept, and cells go on once the budget is raised."),
}


def of_alert(alert: Alert, channel: int, language: str) -> Message:
    """The subject is one line, whatever a notebook is called."""
    budget = alert.budget
    headline = Text("%(threshold)s %% of the budget for %(what)s is used", threshold=alert.threshold, what=_what(budget.subject))
    used, limit = (decimal_text(nano_of(grains), 9).rstrip("0").rstrip(".") for grains in (alert.used_grains, alert.limit_grains))
    values = {"headline": headline, "used": used, "limit": limit, "currency": budget.currency, "period": alert.period}
    if budget.window == "total":
        spent = Text("%(headline)s: %(used)s of %(limit)s %(currency)s in all, at list prices, with what runs.", **values)
    else:
        spent = Text("%(headline)s: %(used)s of %(limit)s %(currency)s in %(period)s, at list prices, with what runs.", **values)
    set_by = Text("The budget was set by %(who)s (%(origin)s).", who=budget.set_by, origin=_ORIGINS[budget.origin])
    told, does = spent.said(language), _DOES[budget.on_limit].said(language)
    text = f"{told}\n\n{does}\n{set_by.said(language)}\n"
    document = {"type": "budget.threshold_reached", "timestamp": _time(alert.at_ns), "data": alert_json(alert)}
    return Message(f"forebay-alert-{alert.id}-{channel}", _line(headline, language), text, document, chat=f"{told} {does}")


_ORIGINS = {"owner": Text("owner"), "operator": Text("operator"), "user": Text("user")}


def _what(subject: Subject) -> Text:
    values = {"tenant": subject.tenant, "user": subject.user, "notebook": f"{' '.join((subject.notebook or '').split()):.120}"}
    if subject.notebook is not None:
        return Text("notebook %(notebook)s of %(user)s (%(tenant)s)", **values)
    return Text("tenant %(tenant)s", **values) if subject.user is None else Text("%(user)s of %(tenant)s", **values)


def of_notice(notice: Notice, channel: int, language: str) -> Message:
    """All is in the subject; a mail about a cell has its first line too."""
    line = line_of(notice, language)
    told: dict[str, object] = {"user": notice.person.user, "tenant": notice.person.tenant, "seconds": notice.seconds, "text": line}
    why = None if notice.why is None else _why(notice).said(language)
    if notice.job is None:
        told |= {"notebook": notice.label, "cell": notice.cell, "first_line": notice.first_line, "why": why}
    else:
        told |= {"job": notice.job, "label": notice.label, "why": why}
    kind = f"notebook.cell_{notice.kind}" if notice.job is None else f"job.{notice.kind}"
    document = {"type": kind, "timestamp": _time(notice.at_ns), "data": told}
    text = f"{line}\n\n{notice.first_line or ''}\n".rstrip() + "\n"
    return Message(f"forebay-notice-{notice.id}-{channel}", line, text, document)


def line_of(notice: Notice, language: str) -> str:
    """What is said of it, in one line, whatever a notebook or a job is called."""
    values = {"label": notice.label, "time": _duration(notice.seconds), "why": _why(notice)}
    return _line(_of_cell(notice, values) if notice.job is None else _of_job(notice, values), language)


def _of_cell(notice: Notice, values: Mapping[str, object]) -> Text:
    values = {**values, "cell": "?" if notice.cell is None else notice.cell}
    if notice.kind == "ended":
        return Text("%(label)s: cell %(cell)s has ended after %(time)s.", **values)
    if notice.kind == "failed":
        return Text("%(label)s: cell %(cell)s failed after %(time)s: %(why)s", **values)
    if notice.kind == "waits":
        return Text("%(label)s: cell %(cell)s waits for a device: %(why)s", **values)
    return Text("%(label)s: cell %(cell)s is stopped by a budget: %(why)s", **values)


def _of_job(notice: Notice, values: Mapping[str, object]) -> Text:
    if notice.kind == "ended":
        return Text("%(label)s has ended after %(time)s.", **values)
    if notice.kind == "failed":
        return Text("%(label)s failed after %(time)s: %(why)s", **values)
    if notice.kind == "retried":
        return Text("%(label)s is run again, as its run was lost: %(why)s", **values)
    return Text("%(label)s is stopped by a budget: %(why)s", **values)


def _why(notice: Notice) -> Text:
    """A job's reason is known by its code; a cell's is in the language of its kernel."""
    if notice.why is None:
        return Text("no reason was told")
    return as_sent(notice.why, None if notice.cause is None else job_end(notice.cause.code, notice.cause.values))


def _duration(seconds: float) -> Text:
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return Text("%(hours)s h %(minutes)s min", hours=minutes // 60, minutes=minutes % 60)
    return Text("%(minutes)s min %(seconds)s s", minutes=minutes, seconds=rest) if minutes else Text("%(seconds)s s", seconds=rest)


def of_code(channel: NoticeChannel, language: str) -> Message:
    """The code that confirms an address; nothing is mailed without one."""
    values = {"user": channel.person.user, "code": channel.code}
    text = Text("%(user)s wants to be told of notebooks and jobs here. If that is you, the code is %(code)s; else do nothing.", **values)
    subject = Text("Your code for Forebay: %(code)s", **values)
    return Message(f"forebay-code-{channel.id}", subject.said(language), f"{text.said(language)}\n")


def of_report(report: Report, recipient: int, file: Attachment, language: str) -> Message:
    """The file says it all."""
    subject = Text("Usage of %(tenant)s in %(month)s", tenant=report.tenant, month=report.month)
    attached = Text("%(subject)s is attached: by day, member, flavor and notebook, at list prices.", subject=subject)
    owed = Text("What is owed is on the month's invoice.")
    text = f"{attached.said(language)}\n{owed.said(language)}\n"
    return Message(f"forebay-report-{recipient}-{report.month}", subject.said(language), text, attachment=file)


def _line(text: Text, language: str) -> str:
    return " ".join(text.said(language).split())[:LINE_CHARACTERS_MAX]


def _time(at_ns: int) -> str:
    return datetime.fromtimestamp(at_ns // 10**9, UTC).isoformat()

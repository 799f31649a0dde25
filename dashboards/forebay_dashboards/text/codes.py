"""Words of the services that the pages show: states, reasons and kinds, translated by their codes. One that is new is shown as sent."""

from __future__ import annotations

from forebay_service.causes import job_end, told, why_budget_stops
from forebay_service.languages import Text, as_sent, either, in_context

from forebay_dashboards.errors import SERVICES
from forebay_dashboards.rows.billing import BudgetRow
from forebay_dashboards.rows.pool import Flavor, Job, Session
from forebay_dashboards.text.waits import waiting

_STATES = {
    "idle": in_context("state", "idle"),
    "queued": in_context("state", "queued"),
    "active": in_context("state", "active"),
    "resident": in_context("state", "resident"),
    "parked": in_context("state", "parked"),
    "ended": in_context("state", "ended"),
    "free": in_context("state", "free"),
    "placing": in_context("state", "placing"),
    "leased": in_context("state", "leased"),
    "draining": in_context("state", "draining"),
    "cordoned": in_context("state", "cordoned"),
    "lost": in_context("state", "lost"),
    "up": in_context("state", "up"),
}
_WAITS = {
    "quota": in_context("wait", "quota"),
    "shortage": in_context("wait", "shortage"),
    "fragmentation": in_context("wait", "fragmentation"),
    "budget": in_context("wait", "budget"),
    "draining": in_context("wait", "draining"),
    "starting": in_context("wait", "starting"),
    "restoring": in_context("wait", "restoring"),
    "store": in_context("wait", "store"),
    "unknown": in_context("wait", "unknown"),
}
_WORDS: dict[str, dict[str, Text]] = {
    "state": _STATES,
    "wait": _WAITS,
    "alert": {**_STATES, "closed": in_context("alert", "closed"), "look": in_context("alert", "look")},
    "use": {
        "held": in_context("use", "held"),
        "idle": in_context("use", "idle"),
        "free": in_context("use", "free"),
        "closed": in_context("use", "closed"),
    },
    "images": {
        "process": Text("images in the host's memory"),
        "disk": Text("images on the host's disk"),
        "node": Text("images that all hosts see"),
        "none": Text("no images"),
    },
    "runtime": {
        "torch": Text("calls of PyTorch"),
        "xla": Text("programs of JAX and TensorFlow"),
        "exec": Text("processes (forebay exec)"),
    },
    "lease": {"failed": in_context("lease", "failed"), "revoked": in_context("lease", "revoked")},
    "invoice": {
        "draft": in_context("invoice", "draft"),
        "open": in_context("invoice", "open"),
        "paid": in_context("invoice", "paid"),
        "void": in_context("invoice", "void"),
    },
    "channel": {
        "webhook": in_context("channel", "webhook"),
        "email": in_context("channel", "email"),
        "slack": in_context("channel", "Slack"),
    },
    "credit": {"prepaid": in_context("credit", "prepaid"), "promotional": in_context("credit", "promotional")},
    "budget": {
        "open": in_context("budget", "open"),
        "wait": in_context("budget", "wait"),
        "refuse": in_context("budget", "refuse"),
        "drain": in_context("budget", "drain"),
    },
    "role": {"owner": in_context("role", "owner"), "billing": in_context("role", "pays the bills"), "member": in_context("role", "member")},
    "job": {
        "queued": in_context("job", "queued"),
        "starting": in_context("job", "starting"),
        "running": in_context("job", "running"),
        "succeeded": in_context("job", "succeeded"),
        "failed": in_context("job", "failed"),
        "cancelling": in_context("job", "cancelling"),
        "cancelled": in_context("job", "cancelled"),
    },
    "service": SERVICES,
    "kind": {"session": Text("session"), "device": Text("device"), "node": Text("node")},
}
_WHY = {
    "quota": Text("Its quota is used up."),
    "shortage": Text("All devices that serve it are held."),
    "fragmentation": Text("Devices are free, but not together."),
    "budget": Text("A budget is used up."),
    "draining": Text("Its devices are being given back."),
    "starting": Text("A worker starts."),
    "restoring": Text("Its tensors come back."),
    "store": Text("The pool cannot write."),
}
_STOPPED = {
    "wait": Text("The budget is used up: who waits goes on waiting until it is raised."),
    "refuse": Text("The budget is used up: new leases are refused until it is raised."),
    "drain": Text("The budget is used up: leases are taken back until it is raised."),
}
_ON_LIMIT = {
    "notify": Text("At the limit nothing stops."),
    "refuse": Text("At the limit new leases are refused."),
    "drain": Text("At the limit leases are taken back; tensors are kept."),
}


def why_job(job: Job) -> Text | None:
    """Why a job is not running, or is to run again: in English as the pool says it, in other languages by its reason."""
    if job.reason is None or job.sentence is None:
        return None
    values = {"exit_status": job.exit_status, "time_limit_seconds": job.time_limit_seconds}
    return as_sent(job.sentence, job_end(job.reason, values))


def word(code: str, about: str) -> Text:
    """What a code says; ``about`` is a key of the words above."""
    return _WORDS[about].get(code) or as_sent(code)


def why(session: Session) -> Text:
    """Why a session waits: in English as the pool says it, in other languages by its detail and values, else as its code says."""
    if session.reason is None:
        return Text("no reason given")
    known = waiting(session.detail, session.values) or told(session.detail, session.values, session.parts)
    return as_sent(session.reason, known or _WHY.get(session.code or ""))


def unserved(flavor: Flavor) -> Text:
    """Why a flavor cannot be served here: in English as the pool says it, in other languages by the cause's code, else by what it needs."""
    known = None if flavor.cause is None else told(flavor.cause.code, flavor.cause.values, flavor.cause.parts)
    needs = [f"{one.amount} {one.model}" for one in flavor.equivalents]
    lacks = Text("needs %(devices)s, which is not here", devices=either(needs)) if needs else None
    return as_sent(flavor.reason or "", known or lacks)


def consequence(budget: BudgetRow) -> Text:
    """What a budget does now, or would at its limit."""
    if budget.sentence:
        why = why_budget_stops(budget.code, budget.tenant, budget.user, budget.notebook, budget.period, budget.origin)
        return as_sent(budget.sentence, why or _STOPPED.get(budget.state))
    return _ON_LIMIT[budget.on_limit]


def budget_name(budget: BudgetRow) -> Text:
    """What a budget limits, over which time, and who set it where that is the tenant."""
    name = Text("Budget of %(user)s", user=budget.user) if budget.user else Text("Budget")
    if budget.notebook:
        name = Text("%(budget)s for %(notebook)s", budget=name, notebook=budget.notebook)
    window = Text("for all time") if budget.window == "total" else Text("each month")
    if budget.origin == "owner":
        return Text("%(budget)s, %(window)s, set by the tenant", budget=name, window=window)
    if budget.origin == "user":
        return Text("%(budget)s, %(window)s, set by the user", budget=name, window=window)
    return Text("%(budget)s, %(window)s", budget=name, window=window)

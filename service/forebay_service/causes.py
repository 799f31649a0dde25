"""Why a flavor is not served, a budget stops somebody, or a job ended, in the reader's language: by codes and values of pool and billing.

The first two are told on the pages of the dashboards and on JupyterHub's spawn page, the last on those pages and in notices. No I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from forebay_service.languages import Text, as_sent, plural

TOTAL = "total"
"""The period of a budget that is for all time; others are months."""
WHOLE_MIB = 2**30 // 10
"""Less than that is told in MiB."""

Values = Mapping[str, Any]
Parts = Sequence[Text]


class Cause(BaseModel):
    """A cause in a row of the pool; ``code`` is None where somebody typed ``message``. ``parts`` stand in its sentence."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    message: str = ""
    code: str | None = None
    values: dict[str, Any] = {}
    parts: tuple[Cause, ...] = ()


def _memory(given: Values, name: str) -> str:
    size = int(given[name])
    return f"{size / 2**20:.1f} MiB" if 0 < size < WHOLE_MIB else f"{size / 2**30:.1f} GiB"


def _choice(parts: Parts) -> Text:
    found = parts[0]
    for part in parts[1:]:
        found = Text("%(one)s or %(other)s", one=found, other=part)
    return found


def _together(parts: Parts) -> Text:
    return Text.made("; ".join(parts), lambda language: "; ".join(part.said(language) for part in parts))


_TEXTS: Mapping[str, Callable[[Values, Parts], Text]] = {
    "text": lambda given, parts: as_sent(str(given["text"])),
    "flavor_absent": lambda given, parts: Text(
        "%(flavor)s needs %(ways)s; this installation has %(found)s.", flavor=given["flavor"], ways=_choice(parts), found=given["found"]
    ),
    "flavor_no_devices": lambda given, parts: Text(
        "%(flavor)s needs %(ways)s; this installation has no device.", flavor=given["flavor"], ways=_choice(parts)
    ),
    "flavor_unfit": lambda given, parts: Text("%(flavor)s cannot be served: %(why)s.", flavor=given["flavor"], why=_together(parts)),
    "way": lambda given, parts: as_sent(f"{given['count']} {given['model']}"),
    "way_share": lambda given, parts: Text("%(percent)s %% of a %(model)s", percent=given["percent"], model=given["model"]),
    "way_unnamed": lambda given, parts: Text("a device that nobody named"),
    "ways_more": lambda given, parts: plural("%(count)s other", "%(count)s others", int(given["more"])),
    "models_more": lambda given, parts: plural("%(count)s other", "%(count)s others", int(given["more"])),
    "kept_for_others": lambda given, parts: Text("%(model)s is kept for other tenants", model=given["model"]),
    "too_few": lambda given, parts: Text(
        "it takes %(takes)s %(model)s together, and there are %(found)s", takes=given["takes"], model=given["model"], found=given["found"]
    ),
    "too_few_in_node": lambda given, parts: Text(
        "it takes %(takes)s %(model)s in one node, and there are %(found)s",
        takes=given["takes"],
        model=given["model"],
        found=given["found"],
    ),
    "too_few_under_switch": lambda given, parts: Text(
        "it takes %(takes)s %(model)s under one switch, and there are %(found)s",
        takes=given["takes"],
        model=given["model"],
        found=given["found"],
    ),
    "too_small": lambda given, parts: Text(
        "a %(model)s here has %(device)s, the flavor %(flavor)s",
        model=given["model"],
        device=_memory(given, "device_bytes"),
        flavor=_memory(given, "flavor_bytes"),
    ),
    "too_small_together": lambda given, parts: Text(
        "%(takes)s %(model)s together have %(devices)s, the flavor %(flavor)s",
        takes=given["takes"],
        model=given["model"],
        devices=_memory(given, "devices_bytes"),
        flavor=_memory(given, "flavor_bytes"),
    ),
    "none_here": lambda given, parts: Text("there is no %(ways)s here", ways=_choice(parts)),
    "budget_month_used": lambda given, parts: Text(
        "The budget of %(period)s for %(whom)s is used up; %(raiser)s can raise it.", period=given["period"], whom=parts[0], raiser=parts[1]
    ),
    "budget_month_nearly": lambda given, parts: Text(
        "The budget of %(period)s for %(whom)s is nearly used up; %(raiser)s can raise it.",
        period=given["period"],
        whom=parts[0],
        raiser=parts[1],
    ),
    "budget_total_used": lambda given, parts: Text(
        "The budget for %(whom)s is used up; %(raiser)s can raise it.", whom=parts[0], raiser=parts[1]
    ),
    "budget_total_nearly": lambda given, parts: Text(
        "The budget for %(whom)s is nearly used up; %(raiser)s can raise it.", whom=parts[0], raiser=parts[1]
    ),
    "raised_by_operator": lambda given, parts: Text("an operator"),
    "raised_by_owner": lambda given, parts: Text("the tenant's owner"),
    "whom_tenant": lambda given, parts: Text("tenant %(tenant)s", tenant=given["tenant"]),
    "whom_user": lambda given, parts: Text("%(user)s of %(tenant)s", user=given["user"], tenant=given["tenant"]),
    "whom_notebook": lambda given, parts: Text(
        "notebook %(notebook)s of %(user)s (%(tenant)s)", notebook=given["notebook"], user=given["user"], tenant=given["tenant"]
    ),
    "account_tenant": lambda given, parts: Text("tenant %(tenant)s", tenant=given["tenant"]),
    "account_notebook": lambda given, parts: Text("%(notebook)s of %(user)s", notebook=given["notebook"], user=given["user"]),
    "no_budget": lambda given, parts: Text("%(whom)s has no budget left; work goes on once there is.", whom=parts[0]),
}


def told(code: str | None, values: Values, parts: Sequence[Cause]) -> Text | None:
    """The text of a cause; None for one that is none of these, is new, or lacks a value."""
    make = _TEXTS.get(code or "")
    texts = [_part(part) for part in parts]
    try:
        return make and make(values, texts)
    except (KeyError, IndexError, TypeError, ValueError):
        return None


def _part(part: Cause) -> Text:
    return as_sent(part.message, told(part.code, part.values, part.parts))


def why_budget_stops(
    code: str | None, tenant: str | None, user: str | None, notebook: str | None, period: str, origin: str
) -> Text | None:
    """Of billing's row of a budget: None while it stops nobody, and where billing is of a release that says why in English alone."""
    use = {"used_up": "used", "nearly_used_up": "nearly"}.get(code or "")
    if use is None or tenant is None:
        return None
    whom = Cause(code="whom_notebook" if notebook else "whom_user" if user else "whom_tenant", values=_given(tenant, user, notebook))
    raiser = Cause(code="whom_user", values=_given(tenant, user, None)) if origin == "user" else Cause(code=f"raised_by_{origin}")
    parts = (whom, raiser)
    return told(f"budget_{'total' if period == TOTAL else 'month'}_{use}", {"period": period}, parts)


def _given(tenant: str, user: str | None, notebook: str | None) -> dict[str, str | None]:
    return {"tenant": tenant, "user": user, "notebook": notebook}


_JOB_ENDS: Mapping[str, Callable[[Values], Text]] = {
    "exit_status": lambda given: Text("The program ended with status %(status)s.", status=given["exit_status"]),
    "time_limit": lambda given: Text(
        "It ran for %(seconds)s s, the longest that it was to run, and was ended.", seconds=given["time_limit_seconds"]
    ),
    "budget": lambda given: Text("A budget is used up."),
    "unstartable": lambda given: Text("The program could not be started; what the run printed says why."),
    "worker_lost": lambda given: Text("The worker that held its tensors was lost."),
    "server_lost": lambda given: Text("The process that ran it is gone, as after a host was lost."),
    "server_stopped": lambda given: Text("The server that it ran in was stopped."),
    "older_release": lambda given: Text(
        "Its server's forebay is of an older release, which takes no files along; `forebay update` in a notebook helps."
    ),
    "not_started": lambda given: Text("JupyterHub could not start a server for it."),
    "silent": lambda given: Text("The process that ran it was not heard of any more."),
    "refused": lambda given: Text("JupyterHub starts no server for this user any more."),
    "by_user": lambda given: Text("Its user cancelled it."),
    "by_other": lambda given: Text("An owner of the tenant, or an operator, cancelled it."),
}


def job_end(reason: str, values: Values) -> Text | None:
    """Why a job is not running, or is to run again; None for a reason that is new, or lacks a value."""
    make = _JOB_ENDS.get(reason)
    try:
        return make and make(values)
    except KeyError:
        return None

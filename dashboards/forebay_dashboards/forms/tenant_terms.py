"""What a tenant is held to and billed by, each part a form that opens in its place: what it shows, and what it asks for. No I/O."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from typing import Any, Literal, TypeVar

from forebay_service.languages import Text

from forebay_dashboards.errors import FormError, MoneyError
from forebay_dashboards.forms import plan as plan_forms
from forebay_dashboards.forms import quota as quota_forms
from forebay_dashboards.forms.etags import STALE, STAMP, stamp_of
from forebay_dashboards.rows.billing import BudgetRow, Plan, Standing
from forebay_dashboards.rows.pool import Quota
from forebay_dashboards.text.money import format_decimal, parse_decimal
from forebay_dashboards.text.times import moment, nanoseconds
from forebay_dashboards.upstream.sections import Section

T = TypeVar("T")
Kind = Literal["budget", "removal", "quota", "plan", "profile", "credit"]
FIELD_CHARACTERS_MAX = 4096
NONE: list[int] = []
QUOTA_FIELDS = tuple(name for name in quota_forms.FIELDS if name not in ("tenant", "user"))
SENT = {
    "limit_nano": "limit", "thresholds": "warn", "grace_seconds": "grace", "discount_bps": "discount", "free_nano": "free",
    "free_seconds": "free_hours", "commitment_nano": "commitment", "tax_label": "label", "tax_bps": "rate", "amount_minor": "amount",
    "expires_at_ns": "expires", **{measure.sent: name for name, measure in quota_forms.MEASURES.items()},
}  # fmt: skip
"""Fields of the form by what they are called in what is sent, where that is another name."""


Author = Literal["operator", "owner"]
NOT_READ: Section[Any] = Section(None)
"""Of parts that an owner's page does not have."""


@dataclass(frozen=True)
class Terms:
    """All that was read about a tenant, to ``month``, the present one (UTC), for an ``author`` of changes: an owner sets budgets alone."""

    tenant: str
    month: str
    author: Author
    standing: Section[Standing]
    budgets: Section[tuple[BudgetRow, ...]]
    quota: Section[Quota] = NOT_READ
    plans: Section[tuple[Plan, ...]] = NOT_READ
    """All versions."""

    @property
    def keys(self) -> list[str]:
        """The parts, as they stand below one another. ``budget`` and ``credit`` are for new ones."""
        budgets = [*(f"budget-{one.id}" for one in self.budgets.content or ()), "budget"]
        return budgets if self.author == "owner" else [*budgets, "quota", "plan", "currency", "tax", "credit"]

    def may_change(self, key: str) -> bool:
        """Whether the part is the author's to change: what an operator set, an owner only reads."""
        budget = self.budget(key)
        return self.problem(key) is None and (budget is None or self.author == "operator" or budget.origin != "operator")

    def budget(self, key: str) -> BudgetRow | None:
        """The budget of a key such as ``budget-7``."""
        return next((one for one in self.budgets.content or () if key == f"budget-{one.id}"), None)

    @property
    def plan(self) -> Plan | None:
        """The plan in force this month."""
        begun = [plan for plan in self.plans.content or () if plan.valid_from <= self.month]
        return max(begun, key=lambda plan: (plan.valid_from, plan.version), default=None)

    @property
    def coming_plans(self) -> list[Plan]:
        """Plans that begin in a later month, the next one first; of each month the last that was made."""
        latest = {plan.valid_from: plan for plan in sorted(self.plans.content or (), key=lambda plan: plan.version)}
        return [plan for begins, plan in sorted(latest.items()) if begins > self.month]

    @property
    def problems(self) -> list[Text]:
        """What could not be read."""
        return [section.problem for section in (self.standing, self.quota, self.plans, self.budgets) if section.problem is not None]

    def problem(self, key: str) -> Text | None:
        """Why a part cannot be shown or edited right now, if so."""
        asked: dict[str, tuple[Section[Any], ...]] = {"quota": (self.quota,), "plan": (self.standing, self.plans)}
        needed = asked.get(key, (self.standing, self.budgets) if key.startswith("budget") else (self.standing,))
        return next((section.problem for section in needed if section.problem is not None), None)


@dataclass(frozen=True)
class TermForm:
    """A part as a form. ``stamp`` is the tag of what it was when the form was made, empty for nothing: whoever saves later than somebody
    else is told so by the service, which compares it in the transaction of the change. Of a credit, it names the form.
    """

    key: str
    values: Mapping[str, str]
    stamp: str
    problems: Mapping[str, Text] = field(default_factory=dict)
    """A sentence by field; under ``form`` what concerns no single field."""

    @property
    def kind(self) -> str:
        """What the form is of, whichever budget it is."""
        return self.key.partition("-")[0]


@dataclass(frozen=True)
class Change:
    """What a valid form asks for: ``body`` goes to the pool (a quota) or to billing; ``number`` is of the budget that is removed."""

    kind: Kind
    body: Mapping[str, Any]
    number: int = 0
    stamp: str = ""
    """Of the form."""


def open_form(terms: Terms, key: str, drawn: str) -> TermForm:
    """The part as it is. ``drawn`` is a name that no other form has. Raises KeyError for what is not there, or could not be read."""
    if key not in terms.keys or not terms.may_change(key):
        raise KeyError(key)
    if key.startswith("budget-"):
        return _budget_form(terms, key)
    standing, quota = terms.standing.content, terms.quota.content
    if key == "quota" and quota is not None:
        shown = quota_forms.typed(quota)
        values = {name: shown[name] for name in QUOTA_FIELDS}
        return TermForm(key, values, stamp_of(quota.etag))
    if key == "plan":
        last = max(terms.plans.content or (), key=lambda plan: plan.version, default=None)
        return TermForm(key, plan_forms.typed(terms.plan) | {"valid_from": terms.month}, stamp_of(last.etag if last else None))
    if standing is None:
        raise KeyError(key)
    version = stamp_of(standing.profile_etag)
    match key:
        case "currency":
            return TermForm(key, {"currency": standing.profile_currency or ""}, version)
        case "tax":
            rate = format_decimal(standing.tax_bps, 2) if standing.tax_bps else ""
            return TermForm(key, {"label": standing.tax_label, "rate": rate}, version)
        case "budget":
            values = {"user": "", "notebook": "", "window": "month", "limit": "", "on_limit": "notify", "warn": "", "grace": ""}
            return TermForm(key, values, "")
        case "credit":
            return TermForm(key, {"kind": "prepaid", "name": "", "amount": "", "expires": "", "priority": "50"}, drawn)
    raise KeyError(key)


def judge(terms: Terms, key: str, typed: Mapping[str, str], now_ns: int) -> TermForm | Change:
    """What the form asks for, or the form again with what is wrong in it. Raises KeyError as :func:`open_form`."""
    stamp = typed.get("stamp", "")
    shown = replace(open_form(terms, key, stamp), stamp=stamp)
    values = {name: typed.get(name, "")[:FIELD_CHARACTERS_MAX] for name in shown.values}
    if STAMP.fullmatch(stamp) is None:
        return stale(terms, key, values)
    budget = terms.budget(key)
    if budget is not None and typed.get("action") == "remove":
        return Change("removal", {}, budget.id, stamp)
    if budget is not None and budget.origin != terms.author:
        return replace(shown, problems={"form": Text("The tenant's own people set this budget. They change it; here it can be removed.")})
    problems: dict[str, Text] = {}
    change = _READERS[shown.kind](terms, values, _Collector(problems), budget, now_ns)
    if problems:
        return replace(shown, values=values, problems=problems)
    return replace(change, stamp=stamp)


def stale(terms: Terms, key: str, values: Mapping[str, str]) -> TermForm:
    """The form as it would be opened now, with what was typed into another: saved again, it is meant. Raises KeyError."""
    shown = open_form(terms, key, "")
    return replace(shown, values={**shown.values, **values}, problems={"form": STALE})


def refused(form: TermForm, sentence: Text) -> TermForm:
    """The form with what a service said of it, beside the field that it names."""
    name, colon, _ = sentence.partition(":")
    field = SENT.get(name, name) if colon else ""
    if field not in form.values:
        field = next(iter(form.values)) if len(form.values) == 1 else "form"
    return replace(form, problems={field: sentence})


@dataclass(frozen=True)
class _Collector:
    """Reads fields, and keeps what is wrong with each."""

    problems: dict[str, Text]

    def __call__(self, name: str, read: Callable[[], T], otherwise: T) -> T:
        try:
            return read()
        except (FormError, MoneyError) as error:
            self.problems[name] = error.text
            return otherwise


def _budget_form(terms: Terms, key: str) -> TermForm:
    budget = terms.budget(key)
    if budget is None:
        raise KeyError(key)
    values = {
        "limit": format_decimal(budget.limit_nano or 0, 9),
        "on_limit": budget.on_limit,
        "warn": ", ".join(map(str, budget.thresholds)),
        "grace": str(budget.grace_seconds),
    }
    return TermForm(key, values if budget.origin == terms.author else {}, stamp_of(budget.etag))


def _read_budget(terms: Terms, values: Mapping[str, str], collect: _Collector, budget: BudgetRow | None, now_ns: int) -> Change:
    body: dict[str, Any] = {"tenant": terms.tenant, "on_limit": values["on_limit"], "new": True}
    body["limit_nano"] = collect("limit", lambda: _amount(values["limit"], 9, Text("Say how much may be spent, such as 250.")), 0)
    if values["warn"].strip():
        body["thresholds"] = collect("warn", lambda: _per_cents(values["warn"]), NONE)
    if values["grace"].strip():
        body["grace_seconds"] = collect("grace", lambda: quota_forms.whole(values["grace"], Text("grace")), 0)
    if budget is not None:
        body |= {"window": budget.window, "user": budget.user, "notebook": budget.notebook}
        return Change("budget", body)
    user, notebook, window = values["user"].strip(), values["notebook"].strip(), values["window"]
    if notebook and not user:
        collect.problems["notebook"] = Text("A notebook is one user's: say whose it is, too.")
    for one in terms.budgets.content or ():
        if (one.user or "", one.notebook or "", one.window, one.origin) == (user, notebook, window, terms.author):
            collect.problems["form"] = Text("There is a budget of just this already; edit that one.")
    return Change("budget", body | {"window": window, "user": user or None, "notebook": notebook or None})


def _read_quota(terms: Terms, values: Mapping[str, str], collect: _Collector, budget: BudgetRow | None, now_ns: int) -> Change:
    body, problems = quota_forms.read_bounds(values)
    collect.problems.update(problems)
    return Change("quota", body)


def _read_plan(terms: Terms, values: Mapping[str, str], collect: _Collector, budget: BudgetRow | None, now_ns: int) -> Change:
    standing = terms.standing.content
    currency = "" if standing is None else standing.currency
    agreed = {name: values[name] for name in plan_forms.TERMS}
    typed = plan_forms.TypedPlan.model_validate({"tenant": terms.tenant, "currency": currency, **agreed})
    body: dict[str, Any] = {"currency": currency, "valid_from": values["valid_from"].strip(), "new": True}
    for name, (sent, read) in typed.parts().items():
        body[sent] = collect(name, read, None)
    return Change("plan", body)


def _read_currency(terms: Terms, values: Mapping[str, str], collect: _Collector, budget: BudgetRow | None, now_ns: int) -> Change:
    code = values["currency"].strip().upper()
    if code and re.fullmatch("[A-Z]{3}", code) is None:
        collect.problems["currency"] = Text(
            "Name the currency by its three letters, such as USD, or leave it empty for the installation's own."
        )
    return Change("profile", {"currency": code or None})


def _read_tax(terms: Terms, values: Mapping[str, str], collect: _Collector, budget: BudgetRow | None, now_ns: int) -> Change:
    rate = collect("rate", lambda: parse_decimal(values["rate"], 2, Text("Rate")), 0)
    label = values["label"].strip()
    if rate and not label:
        collect.problems["label"] = Text("A tax above zero needs its name, such as VAT.")
    return Change("profile", {"tax_label": label, "tax_bps": rate})


def _read_credit(terms: Terms, values: Mapping[str, str], collect: _Collector, budget: BudgetRow | None, now_ns: int) -> Change:
    decimals = 2 if terms.standing.content is None else terms.standing.content.decimals
    body: dict[str, Any] = {"tenant": terms.tenant, "kind": values["kind"], "name": values["name"].strip(), "new": True}
    body["amount_minor"] = collect("amount", lambda: _amount(values["amount"], decimals, Text("Say how much, such as 50.")), 0)
    if not body["name"]:
        collect.problems["name"] = Text("Say what it is for: the tenant reads it.")
    if values["priority"].strip():
        body["priority"] = collect("priority", lambda: quota_forms.whole(values["priority"], Text("order of use")), 0)
    if values["expires"].strip():
        body["expires_at_ns"] = collect("expires", lambda: _day_after(values["expires"], now_ns), 0)
    return Change("credit", body)


_READERS: dict[str, Callable[[Terms, Mapping[str, str], _Collector, BudgetRow | None, int], Change]] = {
    "budget": _read_budget,
    "quota": _read_quota,
    "plan": _read_plan,
    "currency": _read_currency,
    "tax": _read_tax,
    "credit": _read_credit,
}


def _amount(text: str, decimals: int, otherwise: Text) -> int:
    if not text.strip():
        raise FormError(otherwise)
    return parse_decimal(text, decimals, Text("Amount"))


def _per_cents(text: str) -> list[int]:
    parts = [part for part in re.split(r"[,\s]+", text.strip()) if part]
    if not all(part.isascii() and part.isdigit() and len(part) < 6 for part in parts):
        raise FormError(Text("“%(typed)s” is no list of per cents, such as 50, 80, 100.", typed=text.strip()[:40]))
    return [int(part) for part in parts]


def _day_after(text: str, now_ns: int) -> int:
    """The start of a day to come, in UTC."""
    try:
        day = date.fromisoformat(text.strip())
        found = nanoseconds(datetime(day.year, day.month, day.day, tzinfo=UTC))
    except ValueError:
        raise FormError(
            Text("“%(typed)s” is no day; write it as year, month and day, such as 2027-03-01.", typed=text.strip()[:20])
        ) from None
    if found <= now_ns:
        raise FormError(
            Text(
                "A credit that expires on %(day)s could pay nothing any more: today is %(today)s (UTC).",
                day=day,
                today=f"{moment(now_ns):%Y-%m-%d}",
            )
        )
    return found

"""What pool and billing answer, as typed rows.

Their answers are read leniently (a field that is new there must not take a page down), unlike what browsers send to us.
"""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, Literal

from forebay_service.causes import Cause
from forebay_service.languages import Text
from pydantic import BaseModel, ConfigDict, Field

from forebay_dashboards.access import Owner

WHOLE_MILLI = 1000
"""A whole device, in thousandths."""
NAMED_MAX = 3
"""Of more ways to serve a flavor a table names those that are here, or so many."""
Count = Annotated[int, Field(ge=0)]
Currency = Annotated[str, Field(pattern="^[A-Z]{3}$")]

Tag = Annotated[str | None, Field(pattern=r'^"[\x21\x23-\x7e]{1,64}"$')]
"""Of what was set, which a change may expect to stand; None: nothing was set, or nobody said."""


class Row(BaseModel):
    """Base of all rows: immutable."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Span(Row):
    """What work is attributed to: ``label`` is the notebook's path or the script's argv."""

    id: str
    kind: Literal["cell", "process"]
    label: str
    cell: Count | None = None
    cell_id: str | None = None
    first_line: str | None = None


class Equivalent(Row):
    """``count`` devices of ``model`` serve a flavor, or ``share_milli`` thousandths of one."""

    model: str
    count: Count
    share_milli: Count = WHOLE_MILLI
    devices: Count = Field(default=0, exclude=True)
    """So many of the model are here; nothing that anybody sets."""

    @property
    def amount(self) -> str:
        """How many devices: ``16``, or ``0.25``."""
        return f"{self.count * self.share_milli / WHOLE_MILLI:g}" if self.share_milli < WHOLE_MILLI else str(self.count)


class Flavor(Row):
    """A size of virtual device. ``servable`` says whether this installation has devices for it, ``reason`` why not."""

    etag: Tag = None
    name: str
    memory_bytes: Count
    equivalents: tuple[Equivalent, ...] = ()
    residents_max: Count | None = None
    """How many resident sessions of it a device may carry; None: as many as its memory holds."""
    servable: bool = False
    reason: str | None = None
    cause: Cause | None = None

    @property
    def several(self) -> bool:
        """Whether several devices that are here may be leased together for it."""
        return any(one.count > 1 and one.devices for one in self.equivalents)

    @property
    def named(self) -> tuple[Equivalent, ...]:
        """Those that stand in a table: all, or of many those that are here; the first ones where none is."""
        if len(self.equivalents) <= NAMED_MAX:
            return self.equivalents
        return tuple(one for one in self.equivalents if one.devices) or self.equivalents[:NAMED_MAX]

    @property
    def others(self) -> tuple[Equivalent, ...]:
        """The rest."""
        return tuple(one for one in self.equivalents if one not in self.named)


class Suggestion(Row):
    """A flavor that the devices which are here could serve: a new one, or one that is there (``etag``) with more that serves it."""

    name: str
    memory_bytes: Count
    equivalents: tuple[Equivalent, ...]
    added: tuple[Equivalent, ...]
    """What of them is new."""
    residents_max: Count | None = None
    etag: Tag = None
    proposed_nano_per_hour: Count | None = None
    currency: Currency | None = None
    priced_as: str | None = None
    """The flavor as which memory is priced in the proposal."""


class Lease(Row):
    """An open lease; ``duration_ns`` was its age when the row was made."""

    lease: str
    session: str
    tenant: str
    user: str
    flavor: str
    device_model: str
    node: str = ""
    devices: Count = 1
    share_milli: Count = WHOLE_MILLI
    """Of each of the devices, in thousandths."""
    span: Span
    opened_at_ns: Count
    duration_ns: Count
    price_nano_per_hour: Count | None = None
    currency: Currency | None = None

    @property
    def key(self) -> str:
        return self.lease

    @property
    def owner(self) -> Owner:
        return Owner(self.tenant, self.user)


class Session(Row):
    """A process's virtual device; a queued one has a ``position`` (1 is next) and a ``reason``."""

    session: str
    tenant: str
    user: str
    flavor: str
    device_model: str | None = None
    state: str
    span: Span | None = None
    process: str = ""
    memory_bytes: Count | None = None
    position: Count | None = None
    reason: str | None = None
    code: str | None = None
    """Of the reason: a word for programs."""
    detail: str | None = None
    """Which of the code's causes, and what stands in its sentence."""
    values: dict[str, Any] = {}
    parts: tuple[Cause, ...] = ()
    estimate_seconds: float | None = None
    """Until the grant, where anybody knows: half of those who are told so wait for less."""
    estimate_low_seconds: float | None = None
    estimate_high_seconds: float | None = None
    """None waits for less than the one, and one in four for longer than the other."""
    estimated_at_ns: Count | None = None
    """When that was told."""
    running: Count | None = None
    running_seconds: float | None = None
    """Leases that held then what it waits for, and for how long the oldest had run."""
    since_ns: Count

    @property
    def key(self) -> str:
        return self.session

    @property
    def owner(self) -> Owner:
        return Owner(self.tenant, self.user)


class Fault(Row):
    """What is wrong in what was sent to a service; ``field`` is None where it is not one field's."""

    code: str
    field: str | None = None
    values: dict[str, Any] = {}


class Device(Row):
    """A physical device and what holds it."""

    device: str
    node: str
    kind: str
    model: str
    vendor: str = ""
    memory_bytes: Count
    state: str
    cordoned: bool = False
    cause: str | None = None
    """Why it is closed, or what an operator should look at; ``causes`` has the same one by one."""
    causes: tuple[Cause, ...] = ()
    temperature_celsius: int | None = None
    free_milli: Count = 0
    lease: str | None = None
    leases: tuple[str, ...] = ()
    residents: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return self.device

    @property
    def owner(self) -> Owner:
        return Owner(None, None)


class Node(Row):
    """A host of devices; ``cause`` says why it was given up."""

    node: str
    switch: str = ""
    state: str
    cause: str | None = None
    causes: tuple[Cause, ...] = ()
    devices: Count
    closed: Count = 0
    free_milli: Count = 0
    leases: Count = 0
    residents: Count = 0
    parked: Count = 0

    @property
    def key(self) -> str:
        return self.node

    @property
    def owner(self) -> Owner:
        return Owner(None, None)


class PriceVersion(Row):
    """A price in force from ``valid_from_ns`` (Unix time) until the next version. The tag is of all versions in the currency."""

    etag: Tag = None
    flavor: str
    price_nano_per_hour: Count
    currency: Currency
    valid_from_ns: Count
    version: Count
    changed_at_ns: Count | None = None
    changed_by: str | None = None


class SurchargeVersion(Row):
    """What a whole device of a model costs beside the flavor's price, in force from ``valid_from_ns`` until the next version. The tag is
    of all versions of the model's in the currency.
    """

    etag: Tag = None
    model: str
    surcharge_nano_per_hour: Count
    currency: Currency
    valid_from_ns: Count
    version: Count
    changed_at_ns: Count
    changed_by: str


class PriceChange(Row):
    """What a price list changes: of a flavor or a model in nano-units per hour, of parked bytes per GiB and hour."""

    kind: Literal["flavor", "surcharge", "parked"]
    flavor: str | None = None
    model: str | None = None
    currency: Currency
    unit: Literal["nano_per_hour", "nano_per_gib_hour"]
    before: Count | None = None
    after: Count
    valid_from_ns: Count


class PriceChanges(Row):
    """All that a price list changes."""

    changes: tuple[PriceChange, ...]


class MonthCost(Row):
    """A month at the list price, and after what the plan changes of it."""

    list_nano: int
    total_nano: int


class PreviewRow(Row):
    """A tenant's month as it is and as it would be."""

    tenant: str
    currency: Currency
    present: MonthCost
    proposed: MonthCost
    difference_nano: int


class Preview(Row):
    """What a month would have cost."""

    month: str
    rows: tuple[PreviewRow, ...]


class Tier(Row):
    """From an amount of the month on, the list price is so much lower."""

    from_nano: Count
    discount_bps: Count


class Plan(Row):
    """What a tenant agreed on, from the month ``valid_from`` on."""

    etag: Tag = None
    tenant: str
    version: Count
    valid_from: str
    currency: Currency
    discount_bps: Count
    free_nano: Count
    free_seconds: dict[str, Count]
    tiers: tuple[Tier, ...]
    commitment_nano: Count
    changed_at_ns: Count
    changed_by: str


class AuditEntry(Row):
    """Who changed what; of what was refused ``after`` has the message."""

    id: Count
    at_ns: Count
    who: str
    action: str
    subject: str
    before: dict[str, object] | None = None
    after: dict[str, object]

    @property
    def differing(self) -> tuple[dict[str, object], dict[str, object]]:
        """What was, and is, different; but for when and by whom it was made, which the entry tells itself."""
        was, told = self.before or {}, ("changed_at_ns", "changed_by", "set_at_ns", "set_by")
        before = {name: value for name, value in was.items() if self.after.get(name) != value and name not in told}
        return before, {name: value for name, value in self.after.items() if was.get(name) != value and name not in told}


class AuditPage(Row):
    """Entries, newest first, and the cursor of the next page."""

    entries: tuple[AuditEntry, ...]
    next: str | None = None


class UsageRecord(Row):
    """A stretch of a lease with its cost."""

    source: str = ""
    id: str
    tenant: str
    user: str
    lease: str
    span: Span
    flavor: str
    device_model: str
    devices: Count = 1
    started_at_ns: Count
    duration_ns: Count
    close_reason: str = ""
    price_nano_per_hour: Count
    parked_bytes: Count | None = None
    energy_mj: Count | None = None
    """Where it is of tensors that were kept off devices, and not of a lease."""
    gib_hours: str = ""
    cost_nano: int
    currency: Currency
    corrected_at_ns: Count | None = None
    """When billing took it back, if it did."""

    @property
    def is_nothing(self) -> bool:
        """Whether it took no time and cost nothing, as tensors do that were parked and brought back at once where that is free."""
        return not self.duration_ns and not self.cost_nano


class UsagePage(Row):
    """Records, newest first; ``next`` is the cursor of the following page, None on the last."""

    records: tuple[UsageRecord, ...]
    next: str | None = None


class SummaryRow(Row):
    """Usage summed over what was not asked to be told apart; those fields are None."""

    tenant: str | None = None
    user: str | None = None
    flavor: str | None = None
    kind: Literal["cell", "process"] = "process"
    notebook: str = ""
    cell: Count | None = None
    """The number of its latest run; ``cell_id`` tells it from others of the notebook."""
    cell_id: str | None = None
    first_line: str | None = None
    day: date | None = None
    currency: Currency
    duration_ns: int
    cost_nano: int
    leases: Count
    energy_mj: Count | None = None
    energy_duration_ns: int = 0
    """What devices drew, and the part of ``duration_ns`` that it is of; None where no driver told."""
    co2_mg: Count | None = None
    """What was given off for that."""


class ForecastRow(Row):
    """What this month (UTC) cost so far, and will have cost at its end."""

    currency: Currency
    spent_nano: int
    forecast_nano: int
    forecast_low_nano: int | None = None
    forecast_high_nano: int | None = None
    """Between which it will be; None before a whole day, and where billing is of an older release."""


class InvoiceRow(Row):
    """A finalised invoice without its lines. Amounts are decimals, in units of the currency."""

    number: str
    tenant: str
    month: str
    currency: Currency
    state: str
    total: str
    open: str
    due_at_ns: Count


class CreditRow(Row):
    """A credit, and what is left of it."""

    id: Count
    tenant: str
    kind: str
    name: str
    currency: Currency
    amount: str
    left: str
    left_minor: int
    expires_at_ns: Count | None = None


class BudgetRow(Row):
    """A budget and how it stands. Amounts are nano-units; None: they are the tenant's, and not for this reader."""

    etag: Tag = None
    id: Count
    tenant: str
    user: str | None
    notebook: str | None
    currency: Currency
    window: Literal["month", "total"] = "month"
    origin: Literal["operator", "owner"] = "operator"
    """Who set it, and may change it."""
    thresholds: tuple[Count, ...] = ()
    grace_seconds: Count = 0
    set_at_ns: Count = 0
    period: str
    on_limit: Literal["notify", "refuse", "drain"]
    limit_nano: int | None
    spent_nano: int | None
    running_nano: int | None
    left_nano: int | None
    forecast_nano: int | None
    forecast_low_nano: int | None = None
    forecast_high_nano: int | None = None
    state: str = "open"
    """What it does: nothing, while it is open."""
    code: str | None = None
    """Why it stops somebody; ``sentence`` says it in English."""
    sentence: str | None = None

    @property
    def of(self) -> str:
        """Whose it is, and of which notebook."""
        whose = self.tenant if self.user is None else self.user
        return whose if self.notebook is None else Text("%(notebook)s of %(user)s", notebook=self.notebook, user=whose)


class Balance(Row):
    """What a tenant owes, what is held of it for open leases, and what it has ahead."""

    currency: Currency
    owed_nano: int
    held_nano: int
    credit_nano: int
    available_nano: int


class Standing(Row):
    """How a tenant stands at billing; ``known`` is False where nothing was ever written down for it."""

    profile_etag: Tag = None
    tenant: str
    known: bool
    currency: Currency
    decimals: Count
    """Of its currency's smallest coin."""
    profile_version: Count
    profile_currency: Currency | None = None
    """The currency that was set for it; None: the settings' one."""
    legal_name: str | None = None
    tax_label: str = ""
    tax_bps: Count = 0
    month: tuple[ForecastRow, ...]
    balances: tuple[Balance, ...]


class TenantOrder(Row):
    """Names of tenants: those that a column says something of, in its order; the others that were found; and those that were not."""

    ranked: tuple[str, ...]
    unranked: tuple[str, ...]
    unmatched: tuple[str, ...]


class TenantRows(Row):
    """What billing has of some tenants."""

    standings: tuple[Standing, ...] = ()
    budgets: tuple[BudgetRow, ...] = ()
    plans: tuple[Plan, ...] = ()
    """Those in force."""
    open_invoices: tuple[InvoiceRow, ...] = ()


class Channel(Row):
    """Where alerts go, and how deliveries stand; without a tenant those of all."""

    id: Count
    tenant: str | None = None
    kind: str
    target: str
    secret: str | None = None
    """Of a webhook, told to whoever made it, and never again."""
    waiting: Count = 0
    done: Count = 0
    dead: Count = 0
    note: str | None = None


class Health(Row):
    """What a service says of itself: the parts that it needs and that are not well, each with a sentence."""

    troubles: dict[str, str] = {}


class Forecast(Row):
    """What a flavor's demand will come to, if the last quarter of an hour goes on; devices that serve it are shared with its rivals."""

    flavor: str
    offered_devices: float
    rival_devices: float
    devices: float
    utilisation: float | None
    missing_devices: float
    wait_probability: float


class Mailing(Row):
    """How the newest report to a recipient stands."""

    month: str
    state: str
    note: str | None = None


class Recipient(Row):
    """An address that a tenant's reports are mailed to."""

    id: Count
    target: str
    latest: Mailing | None = None


class Profile(Row):
    """Whom a tenant's invoices are made out to."""

    etag: Tag = None
    legal_name: str = ""
    address: str = ""
    tax_id: str = ""
    email: str | None = None


class Alert(Row):
    """A threshold of a budget that was reached."""

    user: str | None
    notebook: str | None
    tenant: str
    currency: Currency
    threshold: Count
    period: str
    used_nano: int | None
    limit_nano: int | None
    at_ns: Count


class Quota(Row):
    """What a tenant, or one of its users, may have, and has of it; None: as much as there is."""

    etag: Tag = None
    tenant: str
    user: str | None = None
    devices_milli: Count | None = None
    device_seconds: Count | None = None
    window_seconds: Count | None = None
    on_exhausted: str = "wait"
    priority_max: int | None = None
    weight: Count = 1
    parked_bytes: Count | None = None
    on_parked_full: str = "stay"
    origin: Literal["operator", "owner"] = "operator"
    held_milli: Count = 0
    parked_bytes_held: Count = 0
    used_device_seconds: float = 0.0


class ShareRow(Row):
    """A tenant's weight in the fair share, and what it used, which counts less the longer ago it was."""

    tenant: str
    weight: Count
    held_milli: Count
    decayed_device_seconds: float


class Model(Row):
    """A model of devices, and the tenants that may have it; None: all."""

    etag: Tag = None
    model: str
    devices: Count
    free: Count
    closed: Count
    tenants: tuple[str, ...] | None = None

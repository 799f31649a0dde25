"""What HTTP callers send in bodies, checked field by field; unknown fields are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from forebay_service.bodies import fault_found, first_fault
from forebay_service.languages import CATALOGUES
from forebay_service.people.addresses import Address
from forebay_wire.texts import LABEL_CHARS_MAX, LINES, NAME_CHARS_MAX, ONE_LINE, Label, Line, Name
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError, field_validator, model_validator
from pydantic.dataclasses import dataclass as validated

from forebay_billing.errors import InvalidRequest
from forebay_billing.model.types import PARKED, Span, UsageRecord
from forebay_billing.reads.usage import USAGE_DURATION_NS_MAX
from forebay_billing.rules.budgets import GRACE_SECONDS, GRACE_SECONDS_MAX, LIMIT_NANO_MAX, THRESHOLDS, THRESHOLDS_MAX
from forebay_billing.rules.holds import Heartbeat
from forebay_billing.rules.plans import Terms, Tier
from forebay_billing.rules.prices import TIME_NS_MAX
from forebay_billing.rules.rating import WHOLE_MILLI
from forebay_billing.tables.budgets import TARGET_CHARS_MAX
from forebay_billing.tables.invoices import LEGAL_NAME_CHARS_MAX, TEXT_CHARS_MAX
from forebay_billing.tables.notices import WORDS_CHARS_MAX

RECORDS_MAX = 1000
PAGE_RECORDS_MAX = 1000
PAGE_RECORDS = 100
DEVICES_MAX = 100_000
PARKED_BYTES_MAX = 2**60
ENERGY_MJ_MAX = 2**53
"""Of one record: a hundred times what a megawatt draws in a day."""
PERIOD_NS_MAX = 3600 * 10**9
"""Longest period of heartbeats."""
PROPOSED_MAX = 1000
"""The most prices, and plans, of a preview."""
NAMES_MAX = 200
"""Tenants that are told of at once."""
PRICE_LIST_BYTES_MAX = 256 * 1024
"""The longest price list, which is thousands of prices."""
TERMS_PARTS_MAX = 1000
"""The most that is read of what a plan lists; it may hold less."""

NO_NUL = r"^[^\x00]*$"
AskedLabel = Annotated[str, StringConstraints(max_length=LABEL_CHARS_MAX, pattern=NO_NUL)]
"""One to look for: there is usage of releases that took labels of several lines."""
Code = Annotated[str, StringConstraints(max_length=16, pattern=NO_NUL)]
"""A currency; whether there is such a one is for the price book to say."""
ZONE_PATTERN = r"^[A-Za-z0-9_+-]{1,32}(/[A-Za-z0-9_+-]{1,32}){0,2}$"
_NAME: TypeAdapter[str] = TypeAdapter(Name)
Target = Annotated[str, StringConstraints(min_length=3, max_length=TARGET_CHARS_MAX, pattern=r"^[^\x00-\x20\x7f]+$")]
TimeNs = Annotated[int, Field(ge=0, le=TIME_NS_MAX)]


_CHECKED = ConfigDict(extra="forbid", strict=True)


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, **_CHECKED)


@validated(frozen=True, config=_CHECKED)
class SpanBody(Span):
    """``span`` of a usage record."""

    id: Name
    kind: Literal["cell", "process"]
    label: Label
    cell: TimeNs | None = None
    cell_id: Name | None = None
    first_line: Line | None = None


@validated(frozen=True, eq=False, config=_CHECKED)
class UsageBody(UsageRecord):
    """One usage record: it is made as the core has it, since no body comes as often."""

    source: Name
    id: Name
    tenant: Name
    user: Name
    session: Name
    lease: Name
    span: SpanBody
    flavor: Name
    device_model: Name
    devices: Annotated[int, Field(ge=1, le=DEVICES_MAX)]
    started_at_ns: TimeNs
    duration_ns: Annotated[int, Field(ge=0, le=USAGE_DURATION_NS_MAX)]
    close_reason: Name
    share_milli: Annotated[int, Field(ge=1, le=WHOLE_MILLI)] = WHOLE_MILLI
    parked_bytes: Annotated[int, Field(ge=1, le=PARKED_BYTES_MAX)] | None = None
    energy_mj: Annotated[int, Field(ge=0, le=ENERGY_MJ_MAX)] | None = None

    @model_validator(mode="after")
    def _parked_or_leased(self) -> Self:
        if (self.flavor == PARKED) != (self.parked_bytes is not None):
            raise ValueError(f"a record of flavor {PARKED!r} has parked_bytes, and no other has")
        return self


class UsageBatchBody(_Body):
    """``POST api/usage``."""

    records: Annotated[list[UsageBody], Field(max_length=RECORDS_MAX)]


class LeaseBody(_Body):
    """An open lease: the usage record that it makes if it closes now."""

    record: Name
    lease: Name
    tenant: Name
    user: Name
    session: Name
    span: SpanBody
    flavor: Name
    device_model: Name
    devices: Annotated[int, Field(ge=1, le=DEVICES_MAX)]
    share_milli: Annotated[int, Field(ge=1, le=WHOLE_MILLI)]
    started_at_ns: TimeNs
    duration_ns: Annotated[int, Field(ge=0, le=USAGE_DURATION_NS_MAX)]

    def lease_of(self, source: str) -> UsageRecord:
        """The record that it makes if it closes now."""
        fields = {name: getattr(self, name) for name in type(self).model_fields if name not in ("span", "record")}
        return UsageRecord(source=source, id=self.record, span=self.span, close_reason="open", **fields)


class HeartbeatBody(_Body):
    """``POST api/heartbeats``."""

    source: Name
    sent_at_ns: TimeNs
    period_ns: Annotated[int, Field(gt=0, le=PERIOD_NS_MAX)]
    """Until the next heartbeat."""
    leases: Annotated[list[LeaseBody], Field(max_length=RECORDS_MAX)]

    def heartbeat(self) -> Heartbeat:
        """The same as the core has it; what is said twice of a lease counts once."""
        leases = {body.record: body.lease_of(self.source) for body in self.leases}
        return Heartbeat(self.source, self.period_ns, tuple(leases.values()))


class _HourlyBody(_Body):
    """Whatever has a price per hour. What comes from a release that kept prices per second is told so, in one sentence."""

    @model_validator(mode="before")
    @classmethod
    def _per_hour(cls, values: Any) -> Any:
        for name in cls.model_fields:
            former = name.replace("_per_hour", "_per_second")
            if former != name and isinstance(values, Mapping) and former in values:
                raise ValueError(f"prices are kept per hour: instead of {former} send {name}, which is 3600 times as much")
        return values


class PriceBody(_HourlyBody):
    """``PUT api/prices/{flavor}``; the price book checks the values."""

    price_nano_per_hour: int
    currency: Code
    valid_from_ns: int | None = None
    new: bool = False
    """Whether this is the first price of a flavor that the book does not hold."""


class ParkedPriceBody(_Body):
    """``PUT api/parked-prices/{currency}``; the price book checks the values."""

    price_nano_per_gib_hour: int
    valid_from_ns: int | None = None


class SurchargeBody(_HourlyBody):
    """``PUT api/surcharges/{model}``; the price book checks the values."""

    surcharge_nano_per_hour: int
    currency: Code
    valid_from_ns: int | None = None


class TierBody(_Body):
    """``tiers`` of a plan."""

    from_nano: int
    discount_bps: int


class TermsBody(_Body):
    """What a plan says; :func:`forebay_billing.rules.plans.check` checks the values."""

    currency: Code
    discount_bps: int = 0
    free_nano: int = 0
    free_seconds: Annotated[dict[Name, int], Field(max_length=TERMS_PARTS_MAX)] = {}
    tiers: Annotated[tuple[TierBody, ...], Field(max_length=TERMS_PARTS_MAX)] = ()
    commitment_nano: int = 0

    def terms(self) -> Terms:
        """The same as the core has it."""
        return Terms(
            currency=self.currency,
            discount_bps=self.discount_bps,
            free_nano=self.free_nano,
            free_seconds=tuple(sorted(self.free_seconds.items())),
            tiers=tuple(Tier(tier.from_nano, tier.discount_bps) for tier in self.tiers),
            commitment_nano=self.commitment_nano,
        )


class PlanBody(TermsBody):
    """``PUT api/plans/{tenant}``."""

    valid_from: str
    new: bool = False
    """Whether nothing was recorded for the tenant yet."""


class ProposedPriceBody(_HourlyBody):
    """``prices`` of a preview."""

    flavor: Name
    currency: Code
    price_nano_per_hour: int


class ProposedSurchargeBody(_HourlyBody):
    """``surcharges`` of a preview."""

    model: Name
    currency: Code
    surcharge_nano_per_hour: int


class PreviewBody(_Body):
    """``POST api/preview``."""

    month: str | None = None
    tenant: Name | None = None
    prices: Annotated[tuple[ProposedPriceBody, ...], Field(max_length=PROPOSED_MAX)] = ()
    surcharges: Annotated[tuple[ProposedSurchargeBody, ...], Field(max_length=PROPOSED_MAX)] = ()
    price_list: Annotated[str, StringConstraints(max_length=PRICE_LIST_BYTES_MAX)] | None = None
    plans: Annotated[dict[Name, TermsBody], Field(max_length=PROPOSED_MAX)] = {}


class CorrectionBody(_Body):
    """``POST api/corrections``."""

    source: Name
    id: Name
    reason: Annotated[str, StringConstraints(min_length=1, max_length=500), LINES]


class ContactBody(_Body):
    """``PUT api/payments/contacts/{tenant}``."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=150), ONE_LINE]
    email: Address | None = None


class PortalBody(_Body):
    """``POST api/payments/portal``; a tenant's admin may leave the tenant out."""

    tenant: Name | None = None


class DeadLetterBody(_Body):
    """``POST api/payments/outbox/{id}``."""

    action: Literal["retry", "skip"]
    reason: Annotated[str, StringConstraints(min_length=1, max_length=500), LINES]


Reason = Annotated[str, StringConstraints(min_length=1, max_length=TEXT_CHARS_MAX), LINES]
AmountMinor = Annotated[int, Field(ge=1, le=10**18)]


class ProfileBody(_Body):
    """``PUT api/profiles/{tenant}``; what is left out stays as it is. An operator alone gives the last three."""

    legal_name: Annotated[str, StringConstraints(min_length=1, max_length=LEGAL_NAME_CHARS_MAX), ONE_LINE] = ""
    address: Annotated[str, StringConstraints(max_length=TEXT_CHARS_MAX), LINES] = ""
    tax_id: Annotated[str, StringConstraints(max_length=NAME_CHARS_MAX), ONE_LINE] = ""
    email: Address | None = None
    tax_label: Annotated[str, StringConstraints(max_length=NAME_CHARS_MAX), ONE_LINE] = ""
    tax_bps: int = 0
    currency: str | None = None


class FinaliseBody(_Body):
    """``POST api/invoices``."""

    tenant: Name
    month: str


class CreditNoteBody(_Body):
    """``POST api/invoices/{number}/credit-notes``."""

    amount_minor: AmountMinor
    reason: Reason


class SettlementBody(_Body):
    """``POST api/invoices/{number}/payments``. ``reference`` names the payment: the same one is not written down twice."""

    kind: Literal["payment", "refund"] = "payment"
    amount_minor: AmountMinor
    method: Name
    reference: Reason


class VoidBody(_Body):
    """``POST api/invoices/{number}/void``."""

    reason: Reason


class CreditBody(_Body):
    """``POST api/credits``; the journal checks the values."""

    tenant: Name
    kind: Literal["prepaid", "promotional"]
    name: Name
    amount_minor: int
    currency: str | None = None
    priority: int = 50
    effective_at_ns: int | None = None
    expires_at_ns: int | None = None
    new: bool = False
    """Whether nothing was recorded for the tenant yet."""


class CreditRefundBody(_Body):
    """``POST api/credits/{id}/refund``; all that is left where no amount is given."""

    amount_minor: AmountMinor | None = None
    reason: Reason


class BudgetBody(_Body):
    """``PUT api/budgets``; an owner may leave the tenant out."""

    tenant: Name | None = None
    user: Name | None = None
    notebook: Annotated[AskedLabel, Field(min_length=1)] | None = None
    currency: str | None = None
    window: Literal["month", "total"] = "month"
    limit_nano: Annotated[int, Field(ge=0, le=LIMIT_NANO_MAX)]
    thresholds: Annotated[list[int], Field(default_factory=lambda: list(THRESHOLDS), max_length=THRESHOLDS_MAX)]
    on_limit: Literal["notify", "refuse", "drain"] = "notify"
    grace_seconds: Annotated[int, Field(ge=0, le=GRACE_SECONDS_MAX)] = GRACE_SECONDS
    new: bool = False
    """Whether nothing was recorded for the tenant yet."""


class ChannelBody(_Body):
    """``POST api/alerts/channels``; without a tenant an owner's own, or the operators' for all tenants."""

    tenant: Name | None = None
    kind: Literal["webhook", "email", "slack"]
    target: Target


class RecipientBody(_Body):
    """``POST api/reports/recipients``; without a tenant an owner's own."""

    tenant: Name | None = None
    target: Target


class OutgoingMailBody(_Body):
    """``POST api/letters``."""

    to: Target
    subject: Annotated[str, StringConstraints(min_length=1, max_length=200), ONE_LINE]
    text: Annotated[str, StringConstraints(min_length=1, max_length=5000), LINES]


class NoticeBody(_Body):
    """``POST api/notices``."""

    kind: Literal["ended", "failed", "waits", "budget"]
    notebook: Annotated[AskedLabel, Field(min_length=1)]
    cell: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    first_line: Annotated[str, StringConstraints(max_length=WORDS_CHARS_MAX, pattern=NO_NUL)] | None = None
    seconds: Annotated[float, Field(ge=0, le=10**9)]
    why: Annotated[str, StringConstraints(max_length=WORDS_CHARS_MAX, pattern=NO_NUL)] | None = None


class CauseBody(_Body):
    """``cause`` of a job's notice: a code, and what its sentence names."""

    code: Annotated[str, StringConstraints(pattern=r"^[a-z_]{1,32}$")]
    values: dict[Annotated[str, StringConstraints(pattern=r"^[a-z_]{1,32}$")], Annotated[int, Field(ge=-255, le=10**9)] | None] = {}


class JobNoticeBody(_Body):
    """``POST api/notices/jobs``; ``notify`` is what the job was submitted with, None: as its user prefers. A ``key`` is heard once."""

    key: Name
    tenant: Name
    user: Name
    job: TimeNs
    kind: Literal["ended", "failed", "budget", "retried"]
    label: Annotated[AskedLabel, Field(min_length=1)]
    seconds: Annotated[float, Field(ge=0, le=10**9)]
    why: Annotated[str, StringConstraints(max_length=WORDS_CHARS_MAX, pattern=NO_NUL)] | None = None
    cause: CauseBody | None = None
    notify: Literal["none", "failures", "all"] | None = None


class PreferencesBody(_Body):
    """``PATCH api/notices/preferences``; of what is null nothing is chosen, and what is not named stays."""

    language: str | None = None
    jobs: Literal["none", "failures", "all"] | None = None

    @field_validator("language")
    @classmethod
    def _known(cls, language: str | None) -> str | None:
        if language is not None and language not in CATALOGUES:
            raise ValueError(f"there are no texts in {language[:16]!r}; there are {', '.join(CATALOGUES)}")
        return language


class NoticeChannelBody(_Body):
    """``POST api/notices/channels``."""

    kind: Literal["email", "webhook", "slack"]
    target: Target


class NoticeCodeBody(_Body):
    """``POST api/notices/channels/{channel}``."""

    code: Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=NO_NUL)]


class ChannelActionBody(_Body):
    """``POST api/alerts/channels/{id}``."""

    action: Literal["retry"]


def name_of(text: str, what: str) -> str:
    """A name in a path. Raises InvalidRequest for one that no record can have."""
    try:
        return _NAME.validate_python(text)
    except ValidationError as error:
        raise InvalidRequest(first_fault(error, what), fault_found(error)) from None

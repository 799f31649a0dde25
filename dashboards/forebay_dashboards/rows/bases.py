"""The bases of rows: what all have in common, and the properties of some. ``pool.py`` and ``billing.py`` have their fields."""

from __future__ import annotations

from typing import Annotated, Literal

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
Over = Literal["day", "week", "month"]


class Row(BaseModel):
    """Base of all rows: immutable. Answers are read leniently: a field that is new there must not take a page down."""

    model_config = ConfigDict(extra="ignore", frozen=True)


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


class FlavorBase(Row):
    """A size of virtual device."""

    equivalents: tuple[Equivalent, ...] = ()

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


class OwnedBase(Row):
    """A row that belongs to a user of a tenant."""

    tenant: str
    user: str

    @property
    def owner(self) -> Owner:
        return Owner(self.tenant, self.user)


class LeaseBase(OwnedBase):
    """An open lease."""

    lease: str

    @property
    def key(self) -> str:
        return self.lease


class SessionBase(OwnedBase):
    """A process's virtual device."""

    session: str

    @property
    def key(self) -> str:
        return self.session


class DeviceBase(Row):
    """A physical device, which belongs to nobody."""

    device: str

    @property
    def key(self) -> str:
        return self.device

    @property
    def owner(self) -> Owner:
        return Owner(None, None)


class NodeBase(Row):
    """A host of devices, which belongs to nobody."""

    node: str

    @property
    def key(self) -> str:
        return self.node

    @property
    def owner(self) -> Owner:
        return Owner(None, None)


class AuditEntryBase(Row):
    """Who changed what; of what was refused ``after`` has the message."""

    before: dict[str, object] | None = None
    after: dict[str, object]

    @property
    def differing(self) -> tuple[dict[str, object], dict[str, object]]:
        """What was, and is, different; but for when and by whom it was made, which the entry tells itself."""
        was, told = self.before or {}, ("changed_at_ns", "changed_by", "set_at_ns", "set_by")
        before = {name: value for name, value in was.items() if self.after.get(name) != value and name not in told}
        return before, {name: value for name, value in self.after.items() if was.get(name) != value and name not in told}


class UsageRecordBase(Row):
    """A stretch of a lease with its cost, or of tensors that were kept off devices."""

    duration_ns: int
    cost_nano: int

    @property
    def is_nothing(self) -> bool:
        """Whether it took no time and cost nothing, as tensors do that were parked and brought back at once where that is free."""
        return not self.duration_ns and not self.cost_nano


class BudgetRowBase(Row):
    """A budget and how it stands. Amounts that are None are the tenant's, and not for this reader."""

    tenant: str
    user: str | None = None
    notebook: str | None = None

    @property
    def of(self) -> str:
        """Whose it is, and of which notebook."""
        whose = self.tenant if self.user is None else self.user
        return whose if self.notebook is None else Text("%(notebook)s of %(user)s", notebook=self.notebook, user=whose)


class JobBase(Row):
    """A program that runs unattended."""

    state: str

    @property
    def cancellable(self) -> bool:
        return self.state in ("queued", "starting", "running")

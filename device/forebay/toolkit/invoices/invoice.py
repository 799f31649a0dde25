"""An invoice, or the draft of one, as billing gives it in JSON: what of it is checked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from forebay.errors import ForebayError

_Amount = Annotated[str, Field(pattern=r"^-?[0-9]+(\.[0-9]+)?$")]
_Month = Annotated[str, Field(pattern=r"^[0-9]{4}-(0[1-9]|1[0-2])$")]
FILE_BYTES_MAX = 64 * 2**20


class UnreadableInvoice(ForebayError):
    """A file that holds no invoice."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")


class UsageLine(_Part):
    """What a line of leases is of."""

    user: str
    flavor: str
    price_version: int
    price_nano_per_hour: int
    surcharge_nano_per_hour: int
    late: bool
    leases: int
    duration_ns: int


class ParkedLine(_Part):
    """What a line of parked memory is of."""

    user: str
    price_version: int
    correction: bool


class Line(_Part):
    """One line. ``amount`` is rounded, ``cost_exact`` has eighteen decimals."""

    key: str
    kind: str
    label: str
    amount: _Amount
    amount_minor: int
    cost_exact: _Amount
    started_at_ns: int
    ended_at_ns: int
    parked: ParkedLine | None
    usage: UsageLine | None


class Profile(_Part):
    """Whom it is made out to."""

    tax_label: str
    tax_bps: int


class Invoice(_Part):
    """All of it that is checked. A draft has neither number nor profile."""

    number: str | None = None
    tenant: str
    month: _Month
    currency: str
    net: _Amount
    credit: _Amount
    tax: _Amount
    total: _Amount
    total_minor: int
    lines: list[Line]
    profile: Profile | None = None

    @property
    def name(self) -> str:
        """For people."""
        return self.number or f"the draft of {self.month}"

    def place(self, position: int) -> str:
        """Where a line stands, for people."""
        return f"{self.name}, line {position + 1} ({self.lines[position].label})"


_INVOICES = TypeAdapter(list[Invoice])


def read(path: Path) -> list[Invoice]:
    """The invoices of a file: one, or a list of drafts. Raises UnreadableInvoice."""
    try:
        with path.open("rb") as file:
            text = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise UnreadableInvoice(f"{path} cannot be read: {error.strerror}.") from None
    if len(text) > FILE_BYTES_MAX:
        raise UnreadableInvoice(f"{path} is longer than any invoice: {FILE_BYTES_MAX} bytes are read at most.")
    try:
        return _INVOICES.validate_json(text if text.lstrip()[:1] == b"[" else b"[%s]" % text)
    except ValidationError as error:
        found = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in found["loc"][1:]) or "the file"
        raise UnreadableInvoice(f"{path} is no invoice as billing gives it in JSON: {where}: {found['msg']}.") from None

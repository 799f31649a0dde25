"""What a record proves: the leases of its user and the versions of their prices, each signed by the pool; and what is wrong with it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from typing import TypeAlias, TypeVar

from forebay_wire.decoding import MessageError, decode
from forebay_wire.message_parts import ClosedReceipt, LeaseReceipt, OpenedReceipt, PriceReceipt, Receipt, SurchargeReceipt
from pydantic import TypeAdapter

from forebay.service.record import BEGINNING, Record, RecordLine
from forebay.toolkit.invoices.findings import Finding, RecordFault
from forebay.toolkit.invoices.money import NANO
from forebay.toolkit.invoices.months import month_of
from forebay.toolkit.invoices.signatures import verifier_of

_RECEIPT: TypeAdapter[Receipt] = TypeAdapter(Receipt)
CLOCK_NS = 1 * NANO
"""By so much a pool's clock may be set back between two leases of a session."""
FACTS = ("pool", "tenant", "user", "session", "number", "flavor", "model", "devices", "share_milli")

L = TypeVar("L", bound=LeaseReceipt)
PriceVersion: TypeAlias = PriceReceipt | SurchargeReceipt


class Evidence:
    """What all lines of a record say that the pool signed."""

    def __init__(self, record: Record) -> None:
        self.key = record.key
        self.user = ""
        self.opened: dict[str, OpenedReceipt] = {}
        self.closed: dict[str, ClosedReceipt] = {}
        self.versions: dict[tuple[str, str, str, int], PriceVersion] = {}
        """By kind, name, currency and version."""
        self.findings: list[Finding] = []
        self.lines = 0
        self._read(record)
        self._check_leases()

    def _read(self, record: Record) -> None:
        signed, previous = verifier_of(self.key), BEGINNING
        for line in record.lines():
            self.lines += 1
            if line.parts is None:
                self._find("unreadable", line, "is no line of a record")
            else:
                before, signature, text = line.parts
                if before != previous:
                    self._find("chain", line, "does not follow the line before it: lines were changed, dropped, added or put elsewhere")
                if signed(signature, text):
                    self._take(line, text)
                else:
                    self._find("signature", line, f"was not signed with the pool's key {self.key[:16]}…")
            previous = line.hash

    def _take(self, line: RecordLine, text: str) -> None:
        try:
            receipt = decode(_RECEIPT, text, later=True)
        except MessageError as error:
            self._find("unreadable", line, f"is a receipt that this release cannot read ({error})")
            return
        if isinstance(receipt, PriceReceipt | SurchargeReceipt):
            self._take_version(line, receipt)
            return
        self.user = self.user or receipt.user
        if receipt.user != self.user:
            self._find("another_user", line, f"is a receipt of {receipt.user}, and the record is of {self.user}")
        elif isinstance(receipt, OpenedReceipt):
            self._take_lease(line, self.opened, receipt)
        else:
            self._take_lease(line, self.closed, receipt)

    def _take_version(self, line: RecordLine, receipt: PriceVersion) -> None:
        known = self.versions.setdefault(key_of(receipt), receipt)
        if known != receipt:
            name = receipt.flavor if isinstance(receipt, PriceReceipt) else receipt.model
            told = f"{known.nano_per_hour} nano-units an hour from {known.valid_from_ns} on"
            self._find("price_conflict", line, f"says of version {receipt.version} of {name} something else than before, which was {told}")

    def _take_lease(self, line: RecordLine, known: dict[str, L], receipt: L) -> None:
        before = known.setdefault(receipt.lease, receipt)
        if before is not receipt:
            if before == receipt:
                self._find("repeated", line, f"repeats an earlier receipt of lease {receipt.lease}")
            else:
                self._find("contradiction", line, f"contradicts an earlier receipt of lease {receipt.lease}")

    def _check_leases(self) -> None:
        sessions: dict[str, dict[int, LeaseReceipt]] = defaultdict(dict)
        for lease in [*self.opened.values(), *self.closed.values()]:
            sessions[lease.session][lease.number] = lease
        for name, opened in self.opened.items():
            closed = self.closed.get(name)
            if closed is None:
                self._tell("open", f"lease {name}", f"Its end is not in the record. {_fetch(opened)}")
            elif any(getattr(opened, fact) != getattr(closed, fact) for fact in FACTS) or closed.started_at_ns < opened.started_at_ns:
                self._tell("contradiction", f"lease {name}", "Its opening receipt says something else than its closing one.")
        for session, leases in sessions.items():
            missing = sorted(set(range(1, max(leases) + 1)) - leases.keys())
            if missing:
                numbers = ", ".join(map(str, missing[:10])) + ("…" if len(missing) > 10 else "")
                text = f"Its leases number {numbers} have no receipts. {_fetch(leases[min(leases)])}"
                self._tell("missing", f"session {session}", text)
            self._check_overlaps(session, [lease for _, lease in sorted(leases.items()) if isinstance(lease, ClosedReceipt)])

    def _check_overlaps(self, session: str, leases: Iterable[ClosedReceipt]) -> None:
        for one, other in pairwise(leases):
            if one.started_at_ns + one.duration_ns > other.started_at_ns + CLOCK_NS:
                self._tell("overlap", f"session {session}", f"Its leases {one.number} and {other.number} were held at the same time.")

    def _find(self, fault: RecordFault, line: RecordLine, what: str) -> None:
        self._tell(fault, line.place, f"It {what}.")

    def _tell(self, fault: RecordFault, place: str, text: str) -> None:
        self.findings.append(Finding(fault, place, text))


def _fetch(lease: LeaseReceipt) -> str:
    return f"`forebay bill fetch {month_of(lease.started_at_ns)}` asks the pool for what is missing."


def key_of(version: PriceVersion) -> tuple[str, str, str, int]:
    """What it is a version of, and its number."""
    return version.kind, version.flavor if isinstance(version, PriceReceipt) else version.model, version.currency, version.version

"""Two months of leases: receipts of them as a pool signs them, in records as clients keep them, and invoices as real billing makes them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forebay.service.record import Record
from forebay_billing.model.months import Month
from forebay_billing.model.types import Span, UsageRecord
from forebay_billing.settings import Settings
from forebay_pool.model.metering import HOUR_NS, segments
from forebay_pool.model.types import UsageRecord as Metered
from forebay_pool.views.receipts import Receipts
from forebay_wire import messages as wire
from forebay_wire.message_parts import ClosedReceipt, OpenedReceipt, PriceReceipt, SignedReceipt, SurchargeReceipt
from running_billing import CALLERS, NOVEMBER, Clock, Running

OCTOBER, DECEMBER = Month(2026, 10), Month(2026, 12)
SEGMENT_NS = 300 * 10**9
USERS = ("ada", "ben", "cyd")
KEY = bytes(range(32))
DAY_NS = 24 * HOUR_NS
PRICES = {
    "small": [(2_990_000_001, 0), (3_490_000_003, NOVEMBER.start_ns + 9 * DAY_NS + 1), (1, NOVEMBER.start_ns + 20 * DAY_NS + HOUR_NS // 3)],
    "large": [(48_000_000_000, 0), (48_000_000_000, NOVEMBER.start_ns), (51_000_000_000, NOVEMBER.start_ns)],
    "free": [(0, 0)],
}
"""Nano-units an hour and from when on: one changes in the middle of hours, one twice at once, one is nothing."""
SURCHARGES = {"gpu": [(1_002, OCTOBER.start_ns + DAY_NS), (777, NOVEMBER.start_ns + 15 * DAY_NS + 12_345)], "tpu": []}
SIZES = {"small": ("gpu", 1, 250), "large": ("gpu", 3, 1000), "free": ("tpu", 1, 1000)}
EDGES = [NOVEMBER.start_ns, DECEMBER.start_ns, *(since for versions in PRICES.values() for _, since in versions if since)]
"""Moments at which leases begin and end exactly, or around which they are held."""


@dataclass(frozen=True)
class Lease:
    """What a pool measured."""

    user: str
    session: str
    number: int
    flavor: str
    started_at_ns: int
    duration_ns: int

    @property
    def name(self) -> str:
        return f"{self.session}.{self.number}"


def leases_of(chance: random.Random, user: str, count: int) -> Iterator[Lease]:
    """One after the other in a few sessions: of no time, of one nanosecond, over hours and edges, up to them and from them on."""
    at_ns = OCTOBER.start_ns + chance.randrange(DAY_NS)
    edges = sorted(EDGES)
    session, number = f"{user}-{chance.getrandbits(32):08x}", 0
    for _ in range(count):
        number += 1
        flavor = chance.choice(list(SIZES))
        kind = chance.choice(["none", "one", "short", "short", "short", "hours", "edge", "to edge", "from edge"])
        ahead = [edge for edge in edges if edge > at_ns]
        duration_ns = {"none": 0, "one": 1, "hours": chance.randrange(5 * HOUR_NS)}.get(kind, chance.randrange(200 * 10**9))
        if ahead and kind.endswith("edge") and chance.random() < 0.5:
            back_ns = chance.randrange(1, HOUR_NS)
            started = {"edge": ahead[0] - back_ns, "to edge": ahead[0] - back_ns, "from edge": ahead[0]}[kind]
            at_ns = max(at_ns, started)
            duration_ns = {"edge": 2 * back_ns, "to edge": ahead[0] - at_ns, "from edge": duration_ns}[kind]
        yield Lease(user, session, number, flavor, at_ns, duration_ns)
        at_ns += duration_ns + chance.randrange(2 * DAY_NS // max(1, count // 40))
        if chance.random() < 0.2:
            session, number = f"{user}-{chance.getrandbits(32):08x}", 0


def usage_of(lease: Lease) -> list[UsageRecord]:
    """As the pool meters it, segment by segment."""
    model, devices, share_milli = SIZES[lease.flavor]
    span = wire.Span(id="span", kind="process", label="python train.py")
    whole = Metered(
        id=f"{lease.name}/1", tenant="acme", user=lease.user, session=lease.session, lease=lease.name, span=span, flavor=lease.flavor,
        device_model=model, devices=devices, started_at_unix_ns=lease.started_at_ns, duration_ns=lease.duration_ns,
        close_reason="drained", share_milli=share_milli,
    )  # fmt: skip
    return [
        UsageRecord(
            source="pool", id=one.id, tenant="acme", user=lease.user, session=lease.session, lease=lease.name,
            span=Span("span", "process", "python train.py", None), flavor=lease.flavor, device_model=model, devices=devices,
            started_at_ns=one.started_at_unix_ns, duration_ns=one.duration_ns, close_reason=one.close_reason, share_milli=share_milli,
        )
        for one in segments(whole, 1, 0, SEGMENT_NS)
    ]  # fmt: skip


class Signer:
    """Signs as the pool does."""

    def __init__(self, key: bytes = KEY) -> None:
        self._receipts = Receipts(key, "pool")
        self.key = self._receipts.key

    def prices(self) -> list[SignedReceipt]:
        found: list[PriceReceipt | SurchargeReceipt] = []
        for flavor, versions in PRICES.items():
            for number, (nano, since_ns) in enumerate(versions, 1):
                found.append(PriceReceipt(flavor=flavor, currency="USD", version=number, nano_per_hour=nano, valid_from_ns=since_ns))
        for model, versions in SURCHARGES.items():
            for number, (nano, since_ns) in enumerate(versions, 1):
                found.append(SurchargeReceipt(model=model, currency="USD", version=number, nano_per_hour=nano, valid_from_ns=since_ns))
        return [self._receipts.sign(one) for one in found]

    def lease(self, lease: Lease) -> tuple[SignedReceipt, SignedReceipt]:
        """Its beginning and its end."""
        model, devices, share_milli = SIZES[lease.flavor]
        facts: dict[str, Any] = {
            "pool": "pool", "tenant": "acme", "user": lease.user, "session": lease.session, "lease": lease.name, "number": lease.number,
            "flavor": lease.flavor, "model": model, "devices": devices, "share_milli": share_milli, "started_at_ns": lease.started_at_ns,
        }  # fmt: skip
        opened = OpenedReceipt(**facts, currency="USD", price_version=1, surcharge_version=0)
        closed = ClosedReceipt(**facts, duration_ns=lease.duration_ns, reason="drained")
        return self._receipts.sign(opened), self._receipts.sign(closed)


@dataclass(frozen=True)
class World:
    """What everybody has of the two months."""

    invoices: Mapping[str, dict[str, Any]]
    """By month."""
    records: Mapping[str, Record]
    """By user."""
    leases: Mapping[str, list[Lease]]
    signer: Signer


def kept(folder: Path, leases: list[Lease], signer: Signer) -> Record:
    """A record of these leases."""
    record = Record(folder)
    record.pin(signer.key)
    record.append(signer.prices())
    for lease in leases:
        for receipt in signer.lease(lease):
            record.append([receipt])
    return record


@contextmanager
def running(folder: Path) -> Iterator[Running]:
    """Billing with the prices above, whose clock stands months later."""
    folder.mkdir(parents=True, exist_ok=True)
    clock = Clock()
    clock.now_ns = OCTOBER.start_ns
    service = Running(Settings(database_url=f"sqlite:///{folder}/billing.sqlite3", port=0, tokens=tuple(CALLERS.values())), clock)
    try:
        for flavor, versions in PRICES.items():
            for number, (nano, since_ns) in enumerate(versions):
                body: dict[str, Any] = {"price_nano_per_hour": nano, "currency": "USD", "valid_from_ns": since_ns, "new": not number}
                assert service.set_price(flavor, **body).status_code == 200
        for model, surcharges in SURCHARGES.items():
            for nano, since_ns in surcharges:
                assert service.set_surcharge(model, nano, valid_from_ns=since_ns).status_code == 200
        profile = {"legal_name": "Acme", "tax_label": "VAT", "tax_bps": 1_900}
        assert service.request("operator", "PUT", "/api/profiles/acme", json=profile).status_code == 200
        clock.now_ns = DECEMBER.start_ns + 120 * DAY_NS
        yield service
    finally:
        service.stop()


def post(service: Running, leases: list[Lease]) -> None:
    records = [record for lease in leases for record in usage_of(lease)]
    for start in range(0, len(records), 500):
        answer = service.post_usage(*records[start : start + 500])
        assert answer.status_code == 200, answer.text


def finalised(service: Running, month: str) -> dict[str, Any]:
    """The invoice of a month."""
    answer = service.request("operator", "POST", "/api/invoices", json={"tenant": "acme", "month": month})
    assert answer.status_code == 200, answer.text
    (made,) = service.get("acme-owner", "/api/invoices", tenant="acme", month=month).json()
    found: dict[str, Any] = service.get("acme-owner", f"/api/invoices/{made['number']}").json()
    return found


def make(folder: Path, seed: int, count: int = 60) -> World:
    """So many leases of each user."""
    chance, signer = random.Random(seed), Signer()
    leases = {user: list(leases_of(chance, user, count)) for user in USERS}
    with running(folder) as service:
        post(service, [lease for of in leases.values() for lease in of])
        invoices = {month: finalised(service, month) for month in ("2026-10", "2026-11")}
    records = {user: kept(folder / "records" / user, of, signer) for user, of in leases.items()}
    return World(invoices, records, leases, signer)

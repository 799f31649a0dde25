"""What clients are given to check their bills by: receipts of leases and of prices, signed with the pool's key."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from forebay_wire import messages as wire
from forebay_wire.message_parts import (
    RECEIPT_CONTEXT,
    ClosedReceipt,
    OpenedReceipt,
    PriceReceipt,
    Receipt,
    SignedReceipt,
    SurchargeReceipt,
)
from typing_extensions import TypedDict

from forebay_pool.model.types import Lease

PriceVersion: TypeAlias = PriceReceipt | SurchargeReceipt
UNKNOWN_VERSION = 0
"""Versions count from 1."""


class SignedReceiptRow(TypedDict):
    text: str
    """The receipt's JSON, byte for byte as it was signed."""
    signature: str


class ReceiptPage(TypedDict):
    key: str
    """The public key, in hex."""
    receipts: list[SignedReceiptRow]
    next: str | None
    """What to ask for as `after`; none: that was all."""


class ReceiptKeyRow(TypedDict):
    key: str
    """Ed25519 (RFC 8032), 32 bytes in hex."""


class Receipts:
    """Makes receipts and signs them. The same receipt has the same signature at any time, from any replica."""

    def __init__(self, key: bytes, pool: str) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(key)
        self.key = self._key.public_key().public_bytes_raw().hex()
        self.pool = pool
        self._versions: dict[tuple[str, str, str], list[PriceVersion]] = {}
        """By kind, name and currency, in the order in which they come into force."""
        self._signed: dict[PriceVersion, SignedReceipt] = {}

    def learn(self, versions: Iterable[PriceVersion]) -> None:
        """All versions of all prices, as billing has them now."""
        found: dict[tuple[str, str, str], list[PriceVersion]] = defaultdict(list)
        for version in sorted(versions, key=lambda one: (one.valid_from_ns, one.version)):
            found[_key_of(version)].append(version)
        self._versions = dict(found)

    def of_lease(self, lease: Lease, closed: bool, currency: str, told: set[PriceVersion]) -> wire.Receipts:
        """A lease that was opened, or is closed, after the versions of its prices that ``told`` lacks; they are added to it."""
        receipt = self.closed(lease) if closed else self._opened(lease, currency)
        until_ns = lease.opened_unix_ns + (lease.duration_ns if closed else 0)
        since = self._since(lease, currency, lease.opened_unix_ns, until_ns)
        new = [version for version in since if version not in told]
        told.update(new)
        return wire.Receipts(key=self.key, receipts=(*map(self.price, new), self.sign(receipt)))

    def prices(self, currency: str, flavors: Collection[str], models: Collection[str]) -> list[SignedReceipt]:
        """All versions of what these flavors and models cost in a currency."""
        named = [*(("price", flavor) for flavor in sorted(flavors)), *(("surcharge", model) for model in sorted(models))]
        return [self.price(one) for kind, name in named for one in self._versions.get((kind, name, currency), ())]

    def price(self, version: PriceVersion) -> SignedReceipt:
        """One version, which is signed once."""
        if version not in self._signed:
            self._signed[version] = self.sign(version)
        return self._signed[version]

    def closed(self, lease: Lease) -> ClosedReceipt:
        """What a lease that is over is billed as."""
        return ClosedReceipt(**_facts(lease, self.pool), duration_ns=lease.duration_ns, reason=lease.ending)

    def sign(self, receipt: Receipt) -> SignedReceipt:
        """The receipt with the pool's signature."""
        text = receipt.model_dump_json()
        return SignedReceipt(text=text, signature=self._key.sign(RECEIPT_CONTEXT + text.encode()).hex())

    def _opened(self, lease: Lease, currency: str) -> OpenedReceipt:
        flavors, models = (_in_force(one, lease.opened_unix_ns) for one in self._of(lease, currency))
        return OpenedReceipt(**_facts(lease, self.pool), currency=currency, price_version=flavors, surcharge_version=models)

    def _since(self, lease: Lease, currency: str, since_ns: int, until_ns: int) -> Iterator[PriceVersion]:
        """What was in force at some time from ``since_ns`` to ``until_ns``, both included."""
        for versions in self._of(lease, currency):
            before = [one for one in versions if one.valid_from_ns <= since_ns]
            yield from (*before[-1:], *(one for one in versions if since_ns < one.valid_from_ns <= until_ns))

    def _of(self, lease: Lease, currency: str) -> tuple[Sequence[PriceVersion], Sequence[PriceVersion]]:
        names = ("price", lease.flavor.name), ("surcharge", lease.device.model)
        flavors, models = (self._versions.get((kind, name, currency), ()) for kind, name in names)
        return flavors, models


def row_of(signed: SignedReceipt) -> SignedReceiptRow:
    """As it is answered over HTTP."""
    return {"text": signed.text, "signature": signed.signature}


def _facts(lease: Lease, pool: str) -> dict[str, Any]:
    """What all receipts of a lease say."""
    session = lease.session
    return {
        "pool": pool,
        "tenant": session.tenant,
        "user": session.user,
        "session": session.id,
        "lease": lease.id,
        "number": lease.epoch,
        "flavor": lease.flavor.name,
        "model": lease.device.model,
        "devices": len(lease.place.devices),
        "share_milli": lease.place.share_milli,
        "started_at_ns": lease.opened_unix_ns,
    }


def _key_of(version: PriceVersion) -> tuple[str, str, str]:
    return version.kind, version.flavor if isinstance(version, PriceReceipt) else version.model, version.currency


def _in_force(versions: Sequence[PriceVersion], time_ns: int) -> int:
    return next((one.version for one in reversed(versions) if one.valid_from_ns <= time_ns), UNKNOWN_VERSION)

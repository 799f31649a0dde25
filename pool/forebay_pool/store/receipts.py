"""The key that receipts are signed with, and the leases that are over, as the usage records have them."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

from sqlalchemy import ColumnElement, insert, select

from forebay_pool.model.types import GOES_ON
from forebay_pool.store.database import Store
from forebay_pool.store.tables import RECEIPT_KEY, SEGMENTS
from forebay_pool.store.timeline import read_usage

KEY_BYTES = 32


@dataclass(frozen=True)
class ClosedLease:
    """A lease that is over, as it was metered."""

    lease: str
    session: str
    tenant: str
    user: str
    flavor: str
    model: str
    devices: int
    share_milli: int
    started_at_ns: int
    duration_ns: int
    reason: str


def receipt_key(store: Store) -> bytes:
    """The private key (Ed25519, RFC 8032) of all pools on this database; made by the first that leads on it. Raises SQLAlchemyError."""
    with store.writing() as connection:
        kept = connection.execute(select(RECEIPT_KEY.c.private_key)).scalar_one_or_none()
        if kept is None:
            kept = secrets.token_hex(KEY_BYTES)
            connection.execute(insert(RECEIPT_KEY).values(id=1, private_key=kept))
    return bytes.fromhex(kept)


def closed_leases(
    store: Store, tenant: str, user: str, since_ns: int, until_ns: int, after: str, limit: int
) -> tuple[list[ClosedLease], str | None]:
    """The user's leases that were held in that time and are over, by name, from the one after ``after`` on; at most so many of those that
    were held, and the name of the last where there are more. Raises StoreUnavailable.
    """
    segment = SEGMENTS.c
    own = (segment.tenant == tenant, segment.user == user, segment.parked_bytes.is_(None), segment.lease > after)
    within = (segment.started_at_unix_ns >= since_ns, segment.started_at_unix_ns < until_ns)
    held = select(segment.lease).where(*own, *within).distinct().order_by(segment.lease).limit(limit + 1)
    names = [row.lease for row in read_usage(store, held)]
    asked, more = names[:limit], len(names) > limit
    return list(_closed(store, segment.lease.in_(asked))), asked[-1] if more else None


def _closed(store: Store, wanted: ColumnElement[bool]) -> Iterator[ClosedLease]:
    rows = read_usage(store, select(SEGMENTS).where(wanted).order_by(SEGMENTS.c.lease, SEGMENTS.c.started_at_unix_ns))
    for name, found in groupby(rows, attrgetter("lease")):
        parts = list(found)
        endings = [one.close_reason for one in parts if one.close_reason != GOES_ON]
        if endings:
            first, duration_ns = parts[0], sum(one.duration_ns for one in parts)
            facts = (first.session, first.tenant, first.user, first.flavor, first.device_model, first.devices, first.share_milli)
            yield ClosedLease(name, *facts, first.started_at_unix_ns, duration_ns, endings[-1])

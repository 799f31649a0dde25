"""What may be parked: the quota of a tenant or a user may bound the bytes of tensors that are held off devices.

Nothing is lost silently. A session that may not be parked stays on its device, and requests that need the room go elsewhere or wait. If the
quota says so, the session ends instead, and its client is told why. A device that is being emptied parks all of its residents.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from forebay_pool.model.causes import Cause
from forebay_pool.model.types import Seat, Session, Worker
from forebay_pool.placement.fleet import Fleet
from forebay_pool.placement.room import by_use, residents
from forebay_pool.queue.accounts import Account, Accounts

EvictionOutcome = Literal["park", "stay", "end"]

Serving = Mapping[str, Mapping[str, Worker]]
"""By tenant, the workers that have its sessions' tensors, or had them until now."""


class Eviction(NamedTuple):
    """The residents that leave a device so that room is made there; ``enough`` says whether they make enough of it."""

    parked: list[Worker]
    ended: list[Worker]
    enough: bool


def parked_bytes(account: Account, serving: Serving) -> int:
    """Bytes of the account's sessions that are off devices, or on their way off."""
    own = [worker for worker in serving.get(account.tenant, {}).values() if _counts_for(account, worker.session or worker.keeps)]
    return sum(worker.memory_bytes if worker.parking else worker.parked_bytes or 0 for worker in own)


def _counts_for(account: Account, session: Session | None) -> bool:
    return session is not None and session.tenant == account.tenant and account.user in (None, session.user)


def fullness(worker: Worker, accounts: Accounts, serving: Serving, chosen: Iterable[Worker] = ()) -> Account | None:
    """The account whose bound would be exceeded if the worker's session were parked after those ``chosen``; None if no bound is."""
    session = worker.session
    for account in () if session is None else accounts.both(session):
        most = account.quota.parked_bytes
        if most is not None:
            coming = sum(one.memory_bytes for one in (*chosen, worker) if _counts_for(account, one.session))
            if parked_bytes(account, serving) + coming > most:
                return account
    return None


def eviction_outcome(worker: Worker, fleet: Fleet, accounts: Accounts, chosen: Iterable[Worker] = ()) -> EvictionOutcome:
    """What happens to the session whose tensors rest on the worker's devices, if its room is needed."""
    bounded = accounts.bound_parking and not any(seat.empties for seat in fleet.seats_under(worker))
    full = fullness(worker, accounts, fleet.serving, chosen) if bounded else None
    if full is None:
        return "park"
    waits = worker.session is not None and worker.session.request is not None
    return "stay" if waits else full.quota.on_parked_full


def eviction(seat: Seat, surplus_bytes: int, fleet: Fleet, accounts: Accounts, besides: Worker | None = None) -> Eviction:
    """The residents that leave so that ``surplus_bytes`` are freed: the least recently used first, those who would end after all others.

    Of those who are parked, whoever need not go after all stays, beginning with the dearest to move.
    """
    here = by_use(worker for worker in residents(seat) if worker is not besides)
    parked: list[Worker] = []
    ends: list[Worker] = []
    for worker in here:
        if surplus_bytes <= 0:
            break
        what = eviction_outcome(worker, fleet, accounts, parked)
        if what == "park":
            surplus_bytes -= worker.part_bytes
            parked.append(worker)
        elif what == "end":
            ends.append(worker)
    ended: list[Worker] = []
    for worker in ends:
        if surplus_bytes > 0:
            surplus_bytes -= worker.part_bytes
            ended.append(worker)
    for worker in sorted(parked, key=lambda worker: -worker.part_bytes):
        if surplus_bytes + worker.part_bytes <= 0:
            surplus_bytes += worker.part_bytes
            parked.remove(worker)
    return Eviction(parked, ended, surplus_bytes <= 0)


def why_ended(worker: Worker, account: Account) -> Cause:
    """What the process is told whose session ended because it could not be parked."""
    sizes = {"held_bytes": worker.memory_bytes, "parked_bytes": account.quota.parked_bytes or 0}
    return Cause("parked_full", account.name, **sizes)

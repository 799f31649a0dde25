"""The queue's HTTP endpoints: who waits and why, who may hold how much, and taking a lease back."""

from __future__ import annotations

import logging
from dataclasses import asdict, replace
from typing import Annotated, Literal, Self

from forebay_service.errors import Forbidden
from forebay_service.identity import BILLING, COMPUTE, OPERATE, SERVICE, TENANT, Identity
from forebay_service.people.names import LOGIN_RULE, TENANT_RULE, is_login, is_tenant
from pydantic import BaseModel, ConfigDict, Field, model_validator

from forebay_pool.errors import RequestRefused
from forebay_pool.http.handler import Api, owns, sees_all
from forebay_pool.machine.base.eviction import eviction_outcome
from forebay_pool.model.causes import Cause
from forebay_pool.model.events import LeaseRevoked, QuotaSet, SessionMoved, SessionParked
from forebay_pool.model.policies import Author
from forebay_pool.model.types import PRIORITY_MAX, Quota, Worker
from forebay_pool.placement.room import residents
from forebay_pool.queue.accounts import NO_QUOTA, Account
from forebay_pool.views.rows import queue_row, quota_row, share_row

DEVICES_MILLI_MAX = 10**9
DEVICE_SECONDS_MAX = 10**12
WINDOW_SECONDS_MAX = 366 * 86_400
WEIGHT_MAX = 1_000
QUOTA_READERS = (SERVICE, OPERATE, TENANT, BILLING)
"""Who reads quotas: of any tenant, or of the own one."""

log = logging.getLogger(__name__)


class QuotaBody(BaseModel):
    """What ``PUT api/quotas/{tenant}`` and ``PUT api/quotas/{tenant}/{user}`` take; what is left out has no bound."""

    model_config = ConfigDict(extra="forbid", strict=True)

    devices_milli: Annotated[int, Field(ge=0, le=DEVICES_MILLI_MAX)] | None = None
    device_seconds: Annotated[int, Field(ge=0, le=DEVICE_SECONDS_MAX)] | None = None
    window_seconds: Annotated[int, Field(ge=1, le=WINDOW_SECONDS_MAX)] | None = None
    on_exhausted: Literal["wait", "revoke"] = "wait"
    priority_max: Annotated[int, Field(ge=-PRIORITY_MAX, le=PRIORITY_MAX)] | None = None
    weight: Annotated[int, Field(ge=1, le=WEIGHT_MAX)] = 1
    parked_bytes: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    on_parked_full: Literal["stay", "end"] = "stay"

    @model_validator(mode="after")
    def _a_window_and_what_it_holds(self) -> Self:
        if (self.device_seconds is None) != (self.window_seconds is None):
            raise ValueError("device_seconds and window_seconds go together")
        return self

    def quota(self, author: Author) -> Quota:
        """What is asked for, in whose name; what bounds nothing is nobody's."""
        asked = Quota(**self.model_dump())
        return asked if asked == NO_QUOTA else replace(asked, origin=author)


class Quotas(Api):
    """``GET api/quotas``: those that are set; a tenant's admin sees its own."""

    async def get(self) -> None:
        identity = await self.bearer(*QUOTA_READERS)
        accounts, now_ns = self.shell.machine.accounts, self.shell.clock_ns()
        shown = [one for one in accounts if one.quota != NO_QUOTA and (sees_all(identity) or one.tenant == identity.tenant)]
        self.write_json([quota_row(account, now_ns, self.shell.machine.fleet) for account in shown])


class QuotaItem(Api):
    """``GET`` and ``PUT api/quotas/{tenant}`` and ``api/quotas/{tenant}/{user}``, with a tag of what is set, which a change may expect."""

    def _answer(self, account: Account) -> None:
        self.write_tagged(quota_row(account, self.shell.clock_ns(), self.shell.machine.fleet))

    async def get(self, tenant: str, user: str | None = None) -> None:
        identity = await self.bearer(*QUOTA_READERS)
        if not sees_all(identity) and tenant != identity.tenant:
            raise Forbidden(f"{identity.name} may not see what another tenant is held to.")
        account = self.shell.machine.accounts.find(tenant, user) or Account(tenant, user, 1)
        self._answer(account)

    async def put(self, tenant: str, user: str | None = None) -> None:
        identity = await self.bearer(OPERATE, *([] if user is None else [TENANT]))
        if not is_tenant(tenant):
            raise RequestRefused(400, "invalid", f"There is no tenant {tenant!a}: {TENANT_RULE}.")
        if user is not None and not is_login(user):
            raise RequestRefused(400, "invalid", f"There is no login {user!a}: {LOGIN_RULE}.")
        author = _author(identity, tenant)
        quota, expected = self.body(QuotaBody).quota(author), self.expected()
        await self.context.write(lambda: self.context.store.set_quota(tenant, user, quota, identity.name, expected, author))
        self.shell.apply(QuotaSet(tenant, user, quota))
        fields = {"action": "quota_set", "tenant": tenant, "of_user": user, "user": identity.name, "quota": asdict(quota)}
        log.info("quota of %s set by %s: %s", f"{user} of {tenant}" if user else tenant, identity.name, quota, extra=fields)
        self._answer(self.shell.machine.accounts.of(tenant, user))


def _author(identity: Identity, tenant: str) -> Author:
    """In whose name the bearer sets a quota of the tenant. Raises Forbidden."""
    if identity.may(OPERATE):
        return "operator"
    if tenant != identity.tenant:
        raise Forbidden(f"{identity.name} may not set what another tenant is held to.")
    return "owner"


class Shares(Api):
    """``GET api/shares``: tenants that hold something, used something lately, or have another weight than others."""

    async def get(self) -> None:
        await self.bearer(SERVICE, OPERATE)
        now_ns = self.shell.clock_ns()
        rows = [share_row(account, now_ns) for account in self.shell.machine.accounts if account.user is None]
        self.write_json([row for row in rows if row["held_milli"] or row["decayed_device_seconds"] >= 1 or row["weight"] != 1])


class Queue(Api):
    """``GET api/queue``: who waits, by position; a user sees the own requests."""

    async def get(self) -> None:
        identity = await self.bearer(COMPUTE, SERVICE, OPERATE)
        sessions = self.shell.machine.sessions.values()
        rows = [queue_row(s) for s in sessions if s.request is not None and (sees_all(identity) or owns(identity, s))]
        self.write_json(sorted(rows, key=lambda row: (row["position"], row["since_ns"])))


class Revocation(Api):
    """``POST api/sessions/{id}/revoke``: takes the session's lease back, with grace."""

    async def post(self, name: str) -> None:
        identity = await self.bearer(OPERATE)
        session = self.shell.machine.sessions.get(name)
        if session is None:
            raise RequestRefused(404, "no_session", "There is no such session.")
        lease = session.lease
        if lease is None or lease.state != "open":
            raise RequestRefused(409, "no_lease", "This session holds no open lease.")
        await self.append_audit(identity, "session.revoke", session, {"lease": lease.id})
        self.shell.apply(LeaseRevoked(name, Cause("operator_takes", operator=identity.name)))
        fields = {"action": "lease_revoked", "session": name, "lease": lease.id, "tenant": session.tenant, "user": identity.name}
        log.info("lease %s revoked by %s", lease.id, identity.name, extra=fields)
        self.set_status(202)
        self.write_json({"lease": lease.id, "seconds": self.shell.machine.limits.revoke_grace_seconds})


class Move(Api):
    """``POST api/sessions/{id}/move``: the session goes on on another device, in the middle of its lease or with its next one."""

    async def post(self, name: str) -> None:
        identity = await self.bearer(OPERATE)
        session = self.shell.machine.sessions.get(name)
        if session is None:
            raise RequestRefused(404, "no_session", "There is no such session.")
        if session.worker is None or not session.worker.opened:
            raise RequestRefused(409, "no_tensors", "This session has nothing on a device.")
        device = session.worker.device.id
        await self.append_audit(identity, "session.move", session, {"from": device})
        self.shell.apply(SessionMoved(name))
        fields = {"action": "session_moving", "session": name, "device": device, "tenant": session.tenant, "user": identity.name}
        log.info("session %s is moved away from %s by %s", name, device, identity.name, extra=fields)
        self.set_status(202)
        self.write_json({"session": name, "from": device})


class Parking(Api):
    """``POST api/sessions/{id}/park``: the tensors of a session that rests leave its device, as if another needed the room."""

    async def post(self, name: str) -> None:
        identity = await self.bearer(OPERATE)
        session = self.shell.machine.sessions.get(name)
        if session is None:
            raise RequestRefused(404, "no_session", "There is no such session.")
        worker = self._at_rest(session.worker)
        after = {"device": worker.device.id, "bytes": worker.memory_bytes}
        await self.append_audit(identity, "session.park", session, after)
        self.shell.apply(SessionParked(name))
        fields = {"action": "session_parking", "session": name, "tenant": session.tenant, "user": identity.name, **after}
        log.info("session %s is parked by %s", name, identity.name, extra=fields)
        self.set_status(202)
        self.write_json({"session": name, **after})

    def _at_rest(self, worker: Worker | None) -> Worker:
        """The worker, if its session may be parked. Raises RequestRefused."""
        machine = self.shell.machine
        seat = None if worker is None else machine.fleet.seats[worker.device.id]
        if worker is None or seat is None or worker not in residents(seat):
            raise RequestRefused(409, "not_resident", "This session does not rest on a device: it computes, or has nothing there.")
        if eviction_outcome(worker, machine.fleet, machine.accounts) != "park":
            raise RequestRefused(409, "parking_full", "A quota bounds what may be parked for this session, and is used up.")
        return worker

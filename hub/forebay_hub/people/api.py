"""What the hub's API has beside JupyterHub's own: who belongs to a tenant, invitations to it, and who changed what of them.

A tenant's owner may ask of the own tenant, who pays for it sees its people, an operator may all. Refusals have the shape of our services'
(``docs/reference/http.md``), so that pages read them as theirs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Literal, TypeVar

from forebay_service import audit
from forebay_service.bodies import body_of, query_of
from forebay_service.errors import Forbidden
from forebay_service.identity import BILLING, OPERATE, SERVICE, TENANT, group_of
from forebay_service.people.addresses import Address
from pydantic import BaseModel, ConfigDict, Field

from forebay_hub.people import invitations
from forebay_hub.people.members import everybody, members_of, operators, set_member
from forebay_hub.people.tables import AUDIT
from forebay_hub.refusals import RefusingApi
from forebay_hub.tenants import Decision

T = TypeVar("T")
B = TypeVar("B", bound=BaseModel)

class MemberBody(BaseModel):
    """``PUT …/members/{name}``."""

    model_config = ConfigDict(extra="forbid", strict=True)

    role: Literal["owner", "billing", "member"]


class InvitationBody(BaseModel):
    """``POST …/invitations``. The address says whom the link is for; the hub sends nothing."""

    model_config = ConfigDict(extra="forbid", strict=True)

    role: Literal["owner", "billing", "member"] = "member"
    address: Address | None = None
    days: Annotated[int, Field(ge=1, le=invitations.DAYS_MAX)] = 7


class PeopleApi(RefusingApi):
    """Base of all of them: who may, one transaction, one shape of refusals."""

    def check_may(self, tenant: str, *scopes: str) -> str:
        """The name of who asks. Raises Forbidden unless they hold one of the scopes of their own tenant, and it is this; or operate."""
        if self.current_user is None:
            raise Forbidden("Send a token of JupyterHub in the header 'Authorization: token …'.")
        name: str = self.current_user.name
        holds = any(f"{scope}!group={group_of(tenant)}" in self.expanded_scopes for scope in scopes)
        belongs = any(group.name == group_of(tenant) for group in getattr(self.current_user, "groups", ()))
        if not ((holds and belongs) or OPERATE in self.expanded_scopes):
            raise Forbidden(f"{name} needs the scope {' or '.join(scopes)} of the tenant {tenant}.")
        return name

    def body(self, model: type[B]) -> B:
        """The JSON body. Raises Invalid."""
        return body_of(model, self.request.body)

    def change(self, work: Callable[[int], T]) -> T:
        """Does it at the present time (Unix, ns), wholly or not at all."""
        try:
            done = work(time.time_ns())
            self.db.commit()
        except BaseException:
            self.db.rollback()
            raise
        return done


class Members(PeopleApi):
    """``GET api/forebay/tenants/{tenant}/members``."""

    def get(self, tenant: str) -> None:
        self.check_may(tenant, TENANT, BILLING)
        self.finish({"members": [{"name": name, "role": role} for name, role in members_of(self.db, tenant).items()]})


class Member(PeopleApi):
    """``PUT`` and ``DELETE api/forebay/tenants/{tenant}/members/{name}``."""

    def put(self, tenant: str, name: str) -> None:
        who, body = self.check_may(tenant, TENANT), self.body(MemberBody)
        self.change(lambda now_ns: set_member(self.db, Decision(tenant, name, body.role), who, now_ns))
        self.finish({"name": name, "role": body.role})

    async def delete(self, tenant: str, name: str) -> None:
        who = self.check_may(tenant, TENANT)
        self.change(lambda now_ns: set_member(self.db, Decision(tenant, name, None), who, now_ns))
        await self._stop_servers(name)
        self.finish({"name": name, "removed": True})

    async def _stop_servers(self, name: str) -> None:
        """What still runs would be paid for by a tenant that the person left; one that is starting is refused its devices anyway."""
        user = self.find_user(name)
        running = [server for server, spawner in user.spawners.items() if spawner.active and not spawner.pending]
        await asyncio.gather(*(self.stop_single_user(user, server) for server in running))


class Invitations(PeopleApi):
    """``GET`` and ``POST api/forebay/tenants/{tenant}/invitations``."""

    def get(self, tenant: str) -> None:
        self.check_may(tenant, TENANT)
        self.finish({"invitations": [asdict(one) for one in invitations.open_of(self.db.connection(), tenant, time.time_ns())]})

    def post(self, tenant: str) -> None:
        who, body = self.check_may(tenant, TENANT), self.body(InvitationBody)
        members_of(self.db, tenant)
        made, token = self.change(
            lambda now_ns: invitations.make(self.db.connection(), tenant, body.role, body.address, body.days, who, now_ns)
        )
        self.set_status(201)
        self.finish({**asdict(made), "token": token, "path": f"{self.hub.base_url}join?code={token}"})


class Invitation(PeopleApi):
    """``DELETE api/forebay/tenants/{tenant}/invitations/{id}``."""

    def delete(self, tenant: str, id: str) -> None:
        who = self.check_may(tenant, TENANT)
        self.change(lambda now_ns: invitations.revoke(self.db.connection(), tenant, int(id), who, now_ns))
        self.finish({"id": int(id), "removed": True})


class People(PeopleApi):
    """``GET api/forebay/people``: everybody who belongs to a tenant, and as what; for our services, which end what people leave behind."""

    def get(self) -> None:
        if SERVICE not in self.expanded_scopes and OPERATE not in self.expanded_scopes:
            raise Forbidden(f"It needs the scope {SERVICE} to see who belongs to which tenant.")
        self.finish({"people": [asdict(one) for one in everybody(self.db)], "operators": operators(self.db)})


class Audit(PeopleApi):
    """``GET api/forebay/audit``: who changed what of members and invitations, newest first; for operators."""

    def get(self) -> None:
        if OPERATE not in self.expanded_scopes:
            raise Forbidden(f"It needs the scope {OPERATE} to see who changed what.")
        asked = query_of(audit.AuditQuery, {name: values[-1].decode() for name, values in self.request.query_arguments.items()})
        found = audit.entries(self.db.connection(), AUDIT, AUDIT.c.at_ns, asked.wanted, asked.limit + 1, asked.cursor)
        self.finish(audit.page_of(found, asked.limit))


ROUTES = (
    (r"/api/forebay/tenants/([^/]+)/members", Members),
    (r"/api/forebay/tenants/([^/]+)/members/([^/]+)", Member),
    (r"/api/forebay/tenants/([^/]+)/invitations", Invitations),
    (r"/api/forebay/tenants/([^/]+)/invitations/([0-9]{1,9})", Invitation),
    (r"/api/forebay/people", People),
    (r"/api/forebay/audit", Audit),
)

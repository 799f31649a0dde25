"""The endpoints of sessions and their leases, and of the flavor that a user's sessions begin with."""

from __future__ import annotations

import logging

from forebay_service.errors import NotFound
from forebay_service.identity import COMPUTE, OPERATE, SERVICE
from pydantic import BaseModel, ConfigDict, Field

from forebay_pool.errors import RequestRefused
from forebay_pool.http.handler import Api, owns, sees_all
from forebay_pool.model.causes import Cause
from forebay_pool.model.events import SessionDismissed
from forebay_pool.views.rows import lease_row, session_row

log = logging.getLogger(__name__)


class ChoiceBody(BaseModel):
    """What ``PUT api/choice`` takes."""

    model_config = ConfigDict(extra="forbid")

    flavor: str = Field(min_length=1, max_length=128)


class Leases(Api):
    """``GET api/leases``."""

    async def get(self) -> None:
        await self.bearer(SERVICE, OPERATE)
        now_ns = self.shell.clock_ns()
        self.write_json([lease_row(s.lease, now_ns) for s in self.shell.machine.sessions.values() if s.lease is not None])


class Sessions(Api):
    """``GET api/sessions``."""

    async def get(self) -> None:
        identity = await self.bearer(COMPUTE, SERVICE, OPERATE)
        sessions = self.shell.machine.sessions.values()
        self.write_json([session_row(session) for session in sessions if sees_all(identity) or owns(identity, session)])


class SessionItem(Api):
    """``DELETE api/sessions/{id}``. A session of somebody else is told apart from none by operators alone."""

    async def delete(self, name: str) -> None:
        identity = await self.bearer(COMPUTE, OPERATE)
        session = self.shell.machine.sessions.get(name)
        if session is None or not (identity.may(OPERATE) or owns(identity, session)):
            raise RequestRefused(404, "no_session", "There is no such session among those you may end.")
        mine = owns(identity, session)
        if not mine:
            await self.append_audit(identity, "session.end", session, {"ended": True})
        cause = Cause("ended_by_user") if mine else Cause("ended_by_operator", operator=identity.name)
        self.shell.apply(SessionDismissed(name, "released" if mine else "revoked", cause))
        fields = {"action": "session_dismissed", "session": name, "tenant": session.tenant, "user": identity.name}
        log.info("session %s ended by %s", name, identity.name, extra=fields)
        self.set_status(204)


class WorkerDoor(Api):
    """``GET api/doors/{tenant}/{user}/{worker}``: for the edge, which tells it to nobody."""

    async def get(self, tenant: str, user: str, name: str) -> None:
        await self.bearer(SERVICE)
        worker = self.shell.machine.fleet.workers.get(name)
        session = None if worker is None else worker.session
        is_theirs = session is not None and session.client.outside and (session.tenant, session.user) == (tenant, user)
        if worker is None or not is_theirs or not worker.door[0]:
            raise NotFound("No worker of this name serves a session of theirs from outside.")
        self.write_json({"address": worker.door[0], "certificate": worker.door[1]})


class Choice(Api):
    """``GET`` and ``PUT api/choice``."""

    async def _key(self) -> tuple[str, str]:
        """Whose choice it is: a user's of a tenant. Raises RequestRefused."""
        identity = await self.bearer(COMPUTE)
        if identity.tenant is None:
            raise RequestRefused(403, "no_tenant", f"{identity.name} belongs to no tenant; ask an operator to add you to one.")
        return identity.tenant, identity.name

    async def get(self) -> None:
        key = await self._key()
        self.write_json({"flavor": self.context.choices.get(key, self.context.settings.default_flavor)})

    async def put(self) -> None:
        key = await self._key()
        name = self.body(ChoiceBody).flavor
        fleet = self.shell.machine.fleet
        if name not in fleet.flavors:
            raise RequestRefused(400, "unknown_flavor", f"There is no flavor {name!r}; there are {', '.join(fleet.flavors)}.")
        why_not = fleet.why_not(fleet.flavors[name])
        if why_not is not None:
            raise RequestRefused(409, "not_servable", why_not)
        await self.context.write(lambda: self.context.store.set_choice(*key, name))
        self.context.choices[key] = name
        self.write_json({"flavor": name})

"""The base of all endpoints, and what they need of the service."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from forebay_service.handler import JsonHandler, NotFoundHandler
from forebay_service.identity import OPERATE, SERVICE, TENANT, Authenticator, Identity

from forebay_pool.errors import RequestRefused
from forebay_pool.jobs.dispatcher import Dispatcher
from forebay_pool.model.types import Session
from forebay_pool.settings import Settings
from forebay_pool.shell import Shell
from forebay_pool.store.audit import AuditEntry
from forebay_pool.store.database import Store
from forebay_pool.store.writer import Writer
from forebay_pool.views.rows import FlavorRow, ModelRow, QuotaRow

T = TypeVar("T")

BODY_SECONDS_MAX = 30.0
"""A body that takes longer to arrive is waited for no more."""
IDLE_SECONDS_MAX = 180.0
"""A connection on which no whole head of a request arrives for so long is closed; longer than proxies keep one that is idle."""


@dataclass(frozen=True)
class Context:
    """What endpoints and links need of the service."""

    settings: Settings
    authenticator: Authenticator
    shell: Shell
    store: Store
    writer: Writer
    epoch: int
    """The epoch of this pool's leadership."""
    choices: dict[tuple[str, str], str]
    """The flavor that a user of a tenant chose."""
    refresh_prices: Callable[[], Awaitable[None]]
    """Asks billing for prices; where it does not answer, those known stay."""
    count_outbox: Callable[[], Awaitable[None]]
    """Looks at what the outbox holds, for the metrics."""
    billing_trouble: Callable[[], str | None]
    """Why billing did not take the last heartbeat; None where it did, or nobody bills."""
    dispatcher: Dispatcher | None
    """Of jobs; None where no JupyterHub would run them."""

    async def write(self, job: Callable[[], T]) -> T:
        """Makes a write on the writer's thread. Raises StoreUnavailable."""
        return await asyncio.wrap_future(self.writer.call(job))


class Api(JsonHandler):
    """Base of all endpoints."""

    service = "pool"
    context: Context

    def initialize(self, context: Context) -> None:
        super().initialize(context)
        self.shell = context.shell

    async def append_audit(self, identity: Identity, action: str, session: Session, after: dict[str, Any]) -> None:
        """Before it is done: what an operator does to somebody's session. Raises StoreUnavailable."""
        before = {"tenant": session.tenant, "user": session.user, "flavor": session.flavor, "state": session.state}
        await self.context.write(lambda: self.context.store.append_audit(AuditEntry(identity.name, action, session.id, before, after)))

    def write_tagged(self, row: FlavorRow | ModelRow | QuotaRow) -> None:
        """A row that is read alone, with the tag of what is set in it."""
        self.write_json(row, row["etag"])


class NotFound(Api, NotFoundHandler):
    """Everything that is no endpoint."""


def sees_all(identity: Identity) -> bool:
    return identity.may(SERVICE) or identity.may(OPERATE)


class Owned(Protocol):
    """What belongs to a user of a tenant."""

    @property
    def tenant(self) -> str: ...
    @property
    def user(self) -> str: ...


def owns(identity: Identity, of: Owned) -> bool:
    """Whether it is the bearer's own: same user, and same tenant."""
    return identity.kind == "user" and of.user == identity.name and of.tenant == identity.tenant


def oversees(identity: Identity, of: Owned) -> bool:
    """Whether the bearer may see and stop what others have: an owner what is the tenant's, an operator all."""
    return identity.may(OPERATE) or (identity.may(TENANT) and of.tenant == identity.tenant)


def whose(identity: Identity, everybody: bool) -> tuple[str | None, str | None]:
    """The tenant and the user whose things are listed; None: all of them. Raises RequestRefused."""
    if not everybody:
        return identity.tenant or "", identity.name
    if identity.may(OPERATE):
        return None, None
    if identity.may(TENANT) and identity.tenant is not None:
        return identity.tenant, None
    raise RequestRefused(403, "forbidden", "What everybody has is listed for the tenant's owners and for operators.")

"""The base of all endpoints, and what they need of the service."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from forebay_service.handler import JsonHandler, NotFoundHandler
from forebay_service.identity import OPERATE, SERVICE, Authenticator, Identity

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


def owns(identity: Identity, session: Session) -> bool:
    """Whether the session is the bearer's own: same user, and same tenant."""
    return identity.kind == "user" and session.user == identity.name and session.tenant == identity.tenant

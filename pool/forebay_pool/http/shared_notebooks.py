"""The endpoints of notebooks that people share within their tenant, to be read."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Annotated

from forebay_service.errors import TooLarge
from forebay_service.identity import COMPUTE, OPERATE, TENANT, Identity
from forebay_wire.texts import Name
from pydantic import BaseModel, ConfigDict, Field

from forebay_pool.errors import RequestRefused
from forebay_pool.http.handler import Api, oversees, owns, whose
from forebay_pool.store.audit import AuditEntry
from forebay_pool.store.shared_notebooks import SharedNotebook, SharedNotebookStore, packed
from forebay_pool.views.shared_notebooks import shared_notebook_row

PAGE_BYTES_MAX = 8 * 2**20
"""Of a page in UTF-8."""
BODY_BYTES_MAX = 2 * PAGE_BYTES_MAX + 2**16
"""Hangul in JSON may have twice as many bytes as in UTF-8."""
DAYS = 30
DAYS_MAX = 90
DAY_NS = 86_400 * 10**9
KEY_CHARACTERS_MAX = 64
OPENS_NOTHING = "This link opens nothing for you: the notebook is shared in another tenant, no longer, or was taken back."

log = logging.getLogger(__name__)


class SharedNotebookBody(BaseModel):
    """What ``POST api/shared-notebooks`` takes: the notebook as one HTML page, and for how many days it may be read."""

    model_config = ConfigDict(extra="forbid")

    name: Name
    page: Annotated[str, Field(min_length=1)]
    days: Annotated[int, Field(ge=1, le=DAYS_MAX)] = DAYS


class SharedNotebookQuery(BaseModel):
    """``everybody``: of the tenant, for its owners, or of all, for operators."""

    model_config = ConfigDict(extra="forbid")

    everybody: bool = False


class KeyQuery(BaseModel):
    """``key`` is that of the link; who shares the notebook needs none."""

    model_config = ConfigDict(extra="forbid")

    key: Annotated[str, Field(max_length=KEY_CHARACTERS_MAX)] = ""


class SharedNotebookApi(Api):
    """What all of them share. Why one cannot be opened is for nobody to learn by trying."""

    @property
    def store(self) -> SharedNotebookStore:
        return SharedNotebookStore(self.context.store, self.context.settings.shared_notebooks_per_user_max)

    async def find(self, number: str) -> SharedNotebook | None:
        """One that has not expired. Raises StoreUnavailable."""
        known = number.isascii() and number.isdigit() and len(number) < 19
        return await asyncio.to_thread(self.store.find, int(number), time.time_ns()) if known else None

    async def opened(self, number: str) -> SharedNotebook:
        """What the bearer shares, or has the link of, and whose tenant is the bearer's. Raises RequestRefused."""
        identity = await self.bearer(COMPUTE)
        key = self.query(KeyQuery).key
        found = await self.find(number)
        if found is None or identity.tenant != found.tenant or not await self._may_open(identity, found, key):
            raise nothing(OPENS_NOTHING)
        return found

    async def _may_open(self, identity: Identity, found: SharedNotebook, key: str) -> bool:
        return owns(identity, found) or await asyncio.to_thread(self.store.opens, found.id, key)


class SharedNotebooks(SharedNotebookApi):
    """``GET`` and ``POST api/shared-notebooks``."""

    body_bytes_max = BODY_BYTES_MAX

    async def get(self) -> None:
        identity = await self.bearer(COMPUTE, TENANT, OPERATE)
        tenant, user = whose(identity, self.query(SharedNotebookQuery).everybody)
        self.write_json([shared_notebook_row(one) for one in await asyncio.to_thread(self.store.shared, tenant, user, time.time_ns())])

    async def post(self) -> None:
        identity = await self.bearer(COMPUTE)
        if identity.kind != "user" or identity.tenant is None:
            raise RequestRefused(403, "no_tenant", f"{identity.name} belongs to no tenant within which a notebook could be shared.")
        body, tenant, store, now_ns = self.body(SharedNotebookBody), identity.tenant, self.store, time.time_ns()
        if len(body.page.encode()) > PAGE_BYTES_MAX:
            raise TooLarge(f"The page is longer than {PAGE_BYTES_MAX} bytes; clear outputs that are large, and share it again.")
        page, expires_ns = await asyncio.to_thread(packed, body.page), now_ns + body.days * DAY_NS
        made, key = await self.context.write(lambda: store.add(tenant, identity.name, body.name, page, now_ns, expires_ns))
        fields = {"action": "notebook_shared", "shared": made.id, "tenant": tenant, "user": identity.name}
        log.info("%s shares a notebook", identity.name, extra=fields)
        self.set_status(201)
        self.write_json({**shared_notebook_row(made), "key": key})


class SharedNotebookItem(SharedNotebookApi):
    """``GET`` and ``DELETE api/shared-notebooks/{shared}``."""

    async def get(self, number: str) -> None:
        self.write_json(shared_notebook_row(await self.opened(number)))

    async def delete(self, number: str) -> None:
        identity = await self.bearer(COMPUTE, TENANT, OPERATE)
        found, store = await self.find(number), self.store
        if found is None or not (owns(identity, found) or oversees(identity, found)):
            raise nothing(f"There is no shared notebook {number} among those you may take back.")
        subject, before = f"{found.tenant}/{found.user}/notebook #{found.id}", {"name": found.name}
        deed = AuditEntry(identity.name, "notebook.unshare", subject, before, {"removed": True})
        await self.context.write(lambda: store.remove(found.id, None if owns(identity, found) else deed))
        fields = {"action": "notebook_unshared", "shared": found.id, "tenant": found.tenant, "user": identity.name}
        log.info("shared notebook %d is taken back by %s", found.id, identity.name, extra=fields)
        self.set_status(204)


class NotebookPage(SharedNotebookApi):
    """``GET api/shared-notebooks/{shared}/page``."""

    async def get(self, number: str) -> None:
        page = await asyncio.to_thread(self.store.page, (await self.opened(number)).id)
        if page is None:
            raise nothing(OPENS_NOTHING)
        self.write_json({"page": page})


def nothing(sentence: str) -> RequestRefused:
    """The refusal of what is not there for the bearer."""
    return RequestRefused(404, "no_shared_notebook", sentence)

"""Notebooks that people share within their tenant, in the database: pages to be read, each until it expires or is taken back.

The key in a link has 256 bits of chance, and only its SHA-256 is kept: who reads the database can open nothing by a link.
"""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from forebay_service.processes.leadership import reason
from sqlalchemy import delete, func, insert, select
from sqlalchemy.exc import SQLAlchemyError

from forebay_pool.errors import StoreUnavailable, TooManyShared
from forebay_pool.store.audit import AuditEntry
from forebay_pool.store.database import Store
from forebay_pool.store.tables import SHARED_NOTEBOOKS

KEY_BYTES = 32
_OF = SHARED_NOTEBOOKS.c
_FACTS = (_OF.id, _OF.tenant, _OF.user, _OF.name, _OF.made_ns, _OF.expires_ns)
"""All but the page, which may be long."""


@dataclass(frozen=True, slots=True)
class SharedNotebook:
    """Who shares it, under which name and for how long (Unix, ns). Its page is read alone."""

    id: int
    tenant: str
    user: str
    name: str
    made_ns: int
    expires_ns: int


class SharedNotebookStore:
    """Plain synchronous calls, each one transaction; those that write are made on the writer's thread."""

    def __init__(self, store: Store, per_user_max: int) -> None:
        self._store = store
        self._per_user_max = per_user_max

    def add(self, tenant: str, user: str, name: str, page: bytes, now_ns: int, expires_ns: int) -> tuple[SharedNotebook, str]:
        """A new one, and the key of its link, which is told here alone; ``page`` is :func:`packed`. What has expired is forgotten.

        Raises TooManyShared.
        """
        key = secrets.token_urlsafe(KEY_BYTES)
        facts = {"tenant": tenant, "user": user, "name": name, "made_ns": now_ns, "expires_ns": expires_ns}
        with self._store.writing() as connection:
            connection.execute(delete(SHARED_NOTEBOOKS).where(_OF.expires_ns <= now_ns))
            there = connection.execute(select(func.count()).where(_OF.tenant == tenant, _OF.user == user)).scalar_one()
            if there >= self._per_user_max:
                raise TooManyShared(f"{user} shares {there} notebooks, and no more are taken; take one back first.")
            new = insert(SHARED_NOTEBOOKS).values(digest=_digest(key), page=page, **facts)
            number = connection.execute(new.returning(_OF.id)).scalar_one()
        return SharedNotebook(number, tenant, user, name, now_ns, expires_ns), key

    def shared(self, tenant: str | None, user: str | None, now_ns: int) -> list[SharedNotebook]:
        """Those that can be opened, the newest first; None: of all tenants, or all users. Raises StoreUnavailable."""
        query = select(*_FACTS).where(_OF.expires_ns > now_ns).order_by(_OF.id.desc())
        for column, value in ((_OF.tenant, tenant), (_OF.user, user)):
            query = query if value is None else query.where(column == value)
        return [SharedNotebook(*row) for row in self._read(query)]

    def find(self, number: int, now_ns: int) -> SharedNotebook | None:
        """One that has not expired. Raises StoreUnavailable."""
        found = self._read(select(*_FACTS).where(_OF.id == number, _OF.expires_ns > now_ns))
        return SharedNotebook(*found[0]) if found else None

    def opens(self, number: int, key: str) -> bool:
        """Whether it is the key of its link. Raises StoreUnavailable."""
        return bool(self._read(select(_OF.id).where(_OF.id == number, _OF.digest == _digest(key))))

    def page(self, number: int) -> str | None:
        """The HTML; None where it was taken back. Raises StoreUnavailable."""
        found = self._read(select(_OF.page).where(_OF.id == number))
        return zlib.decompress(found[0].page).decode() if found else None

    def remove(self, number: int, deed: AuditEntry | None = None) -> None:
        """Its link opens nothing any more, and the page is gone."""
        with self._store.writing(deed) as connection:
            connection.execute(delete(SHARED_NOTEBOOKS).where(_OF.id == number))

    def _read(self, query: Any) -> Sequence[Any]:
        try:
            with self._store.engine.connect() as connection:
                return connection.execute(query).all()
        except SQLAlchemyError as error:
            raise StoreUnavailable(f"shared notebooks cannot be read: {reason(error)}") from error


def packed(page: str) -> bytes:
    """A page as it is kept."""
    return zlib.compress(page.encode())


def _digest(key: str) -> str:
    return sha256(key.encode()).hexdigest()

"""A change that is sent twice happens once: the answer is kept with the change, under the caller's key."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import insert, select

from forebay_billing.errors import KeyReused
from forebay_billing.ledger.books import Books
from forebay_billing.tables import schema

T = TypeVar("T")


@dataclass(frozen=True)
class Key:
    """What a caller named a request; ``digest`` is of its method, path and body."""

    caller: str
    key: str
    digest: bytes


@dataclass(frozen=True)
class Done(Generic[T]):
    """A change's answer as JSON; ``result`` is None where an earlier request had done it."""

    answer: str
    result: T | None


def once(books: Books, key: Key | None, work: Callable[[Books], T], document: Callable[[T], Any], now_ns: int) -> Done[T]:
    """Does ``work`` unless it was done under ``key``; its refusals are not kept. Raises KeyReused for a key of another request."""
    if key is None:
        result = work(books)
        return Done(json.dumps(document(result)), result)
    kept = schema.idempotency.c
    row = books.connection.execute(select(schema.idempotency).where(kept.caller == key.caller, kept.key == key.key)).one_or_none()
    if row is not None:
        if bytes(row.digest) != key.digest:
            raise KeyReused(f"The idempotency key {key.key!r:.80} was used for another request; take a new one for each change.")
        return Done(row.answer, None)
    result = work(books)
    answer = json.dumps(document(result))
    values = {"caller": key.caller, "key": key.key, "digest": key.digest, "answer": answer, "at_ns": now_ns}
    books.connection.execute(insert(schema.idempotency), [values])
    return Done(answer, result)

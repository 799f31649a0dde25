"""How every call of the client is made: which service, what is sent, and the type of what it answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, Literal, TypeVar
from urllib.parse import quote, urlencode

from pydantic import TypeAdapter, ValidationError

from forebay.client.errors import refused
from forebay.errors import NotConfigured, PoolRefused
from forebay.service import Service

T = TypeVar("T")
Media = Literal["html", "pdf", "csv", "focus"]
"""What a document may be instead of a row: a page, a sheet to print, its lines as a table, or as a table in FOCUS's columns."""


class Calls:
    """The two services, and calls to them. What only has a default is not sent, so that the service's own counts."""

    def __init__(self, pool: Service, billing: Service | None) -> None:
        self._pool = pool
        self._billing = billing

    @property
    def _books(self) -> Service:
        if self._billing is None:
            raise NotConfigured(f"Billing's address cannot be told from {self._pool.url}; give Client(billing_url=…).")
        return self._billing

    def _read(self, kind: type[T], service: Service, path: str, **query: object) -> T:
        """What ``GET path`` answers. Raises Refused, PoolUnreachable."""
        with refusals():
            found: T = _typed(kind, service, service.get(path + _query(query)))
            return found

    def _change(
        self, kind: type[T], service: Service, method: str, path: str, body: Mapping[str, object] | None, etag: str | None = None
    ) -> T:
        """What a change answers; with an ``etag`` it is done only while that stands. Raises Refused, PoolUnreachable."""
        sent = None if body is None else {name: value for name, value in body.items() if value is not None}
        with refusals():
            found: T = _typed(kind, service, service.send(method, path, sent, {} if etag is None else {"If-Match": etag}))
            return found

    def _file(self, service: Service, path: str, **query: object) -> bytes:
        """What ``GET path`` answers, as it is. Raises Refused, PoolUnreachable."""
        with refusals():
            return service.get_bytes(path + _query(query))


def segment(name: object) -> str:
    """A part of a path."""
    return quote(str(name), safe="")


def _query(given: Mapping[str, object]) -> str:
    kept = {name: "1" if value is True else value for name, value in given.items() if value is not None and value is not False}
    return "?" + urlencode(kept, doseq=True) if kept else ""


@contextmanager
def refusals() -> Iterator[None]:
    try:
        yield
    except PoolRefused as error:
        raise refused(error) from None


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _typed(kind: Any, service: Service, answer: object) -> Any:
    try:
        return _adapter(kind).validate_python(answer)
    except ValidationError as error:
        raise service.misread(error) from None

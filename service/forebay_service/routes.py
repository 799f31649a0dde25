"""One table of routes a service: Tornado's rules, the OpenAPI description and the reference page are made of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from tornado.web import RequestHandler

from forebay_service.errors import Conflict, Forbidden, Invalid, PreconditionFailed, TooLarge, Unauthorized, Unavailable
from forebay_service.identity import BILLING, COMPUTE, OPERATE, TENANT

JSON = "application/json"
SWITCHING = 101
"""What a WebSocket begins with."""
AUDIENCES = {
    "tenants": "For people with a token of theirs: members, a tenant's owner, who pays for it. The Python client has them all.",
    "operators": "For those who run the installation, and for our services.",
    "services": "For programs alone: our services among themselves, and Stripe.",
    "links": "WebSockets of programs with a virtual device, and of workers; and what runners of jobs say.",
    "everybody": "Without a token.",
}
"""Whom an operation is for: the tags of the OpenAPI documents."""
ANY_PATH = ":path"
"""What the name of a parameter ends with that may hold slashes."""


@dataclass(frozen=True)
class Route:
    """One method of one path, who answers it, and what it takes and gives."""

    method: str
    path: str
    """Relative to the service's base path, parameters in braces: ``api/nodes/{node}``, ``api/devices/{device:path}``."""
    handler: type[RequestHandler]
    summary: str
    answer: Any = None
    """The type of the answer; None: no content."""
    body: Any = None
    """The type of the body; None: none is read."""
    query: type[BaseModel] | None = None
    """What may stand behind the question mark."""
    scopes: tuple[str, ...] | None = ()
    """Any one of these is needed; (): any token does; None: no token is needed."""
    who: str = ""
    """Who may, where scopes alone do not say it."""
    refusals: tuple[int, ...] = ()
    """Statuses beside those that follow from the rest."""
    status: int = 200
    media: tuple[str, ...] = (JSON,)
    """What the answer may be; a type is described for JSON, all else is text or bytes."""
    body_media: str = JSON
    tagged: bool = False
    """Whether the answer has an ``ETag``."""
    conditional: bool = False
    """Whether it heeds ``If-Match`` and ``If-None-Match`` (RFC 9110, section 13.1)."""
    link: bool = False
    """Whether it is a part of how a program of ours speaks to its service, which no client does."""
    idempotent: bool = False
    """Whether it heeds an ``Idempotency-Key``."""

    @property
    def audience(self) -> str:
        """The key of ``AUDIENCES`` that it stands under: the least that is needed decides."""
        if self.status == SWITCHING or self.link:
            return "links"
        if self.scopes is None:
            return "services" if self.who else "everybody"
        if not self.scopes or {COMPUTE, TENANT, BILLING} & set(self.scopes):
            return "tenants"
        return "operators" if OPERATE in self.scopes else "services"

    @property
    def parameters(self) -> list[str]:
        """The names of what stands in the path."""
        return re.findall(r"{(\w+)(?::path)?}", self.path)

    @property
    def shown(self) -> str:
        """The path as people read it, and as OpenAPI has it."""
        return self.path.replace(ANY_PATH, "")

    @property
    def pattern(self) -> str:
        """The path as Tornado matches it."""
        return re.sub(r"{\w+}", "([^/]+)", re.sub(r"{\w+:path}", "(.+)", self.path))

    @property
    def statuses(self) -> list[int]:
        """Every refusal. What follows from a token, from scopes, from a body and from a path with parameters need not be listed."""
        found = {*self.refusals}
        if self.scopes is not None:
            found |= {Unauthorized.status, Unavailable.status, *((Forbidden.status,) if self.scopes or self.who else ())}
        if self.body is not None or self.query is not None or self.parameters:
            found.add(Invalid.status)
        if self.body is not None:
            found.add(TooLarge.status)
        if self.conditional:
            found |= {Invalid.status, PreconditionFailed.status}
        if self.idempotent:
            found |= {Invalid.status, Conflict.status}
        return sorted(found)


def rules(routes: Sequence[Route], base_path: str, given: dict[str, Any]) -> list[tuple[str, type[RequestHandler], dict[str, Any]]]:
    """Tornado's rules: one for each path, in the order of the table. ``given`` goes to each handler."""
    return [(re.escape(base_path) + pattern, handler, given) for pattern, handler in handlers(routes).items()]


def handlers(routes: Iterable[Route]) -> dict[str, type[RequestHandler]]:
    """Who answers each path. Raises ValueError where two would."""
    found: dict[str, type[RequestHandler]] = {}
    for route in routes:
        if found.setdefault(route.pattern, route.handler) is not route.handler:
            raise ValueError(f"{route.path} has two handlers: {found[route.pattern].__name__} and {route.handler.__name__}")
    return found

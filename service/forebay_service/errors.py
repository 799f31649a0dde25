"""What keeps a service from starting, and what every HTTP service refuses: one status and one code for each kind of refusal.

A service's own kinds build on them.

The codes are held against the table of ``docs/reference/http.md`` by a test.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

OTHER_RELEASE = "The database of {service} is of another release ({error}): start that one, or put back a copy from before the upgrade."
"""What a service says of a schema that it does not know."""


class SettingsError(Exception):
    """The settings, or what they name (an address, a file, a database), do not allow a start; the message says what to change."""


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong: ``code`` names it, and is pydantic's own where pydantic found it."""

    code: str
    field: str | None = None
    """Where it is, parts with dots between them; None where it is not one field's."""
    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """What stands in its sentence: numbers, texts, and lists of texts."""

    @property
    def row(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"code": self.code, "field": self.field, "values": dict(self.values)}


class RequestError(Exception):
    """A failure of the service, and the base of all refusals: ``str(error)`` is one sentence for the caller."""

    status: int = 500
    code: str = "internal"

    def __init__(self, message: str = "", fault: Fault | None = None) -> None:
        super().__init__(message)
        self.fault = fault
        """What is wrong in what was sent, for programs; goes into JSON beside the sentence."""


class Invalid(RequestError):
    """A body, an argument, a header or an address that cannot be used; the message says which part."""

    status = 400
    code = "invalid"


class Unauthorized(RequestError):
    """No token, or one that is unknown, expired or revoked."""

    status = 401
    code = "unauthorized"


class Forbidden(RequestError):
    """The token's scopes do not reach so far, or its user cannot be served."""

    status = 403
    code = "forbidden"


class NotFound(RequestError):
    """Nothing is at this address, or nothing that the bearer may know of."""

    status = 404
    code = "not_found"


class MethodNotAllowed(RequestError):
    """The address exists, but not for this method."""

    status = 405
    code = "method_not_allowed"


class Conflict(RequestError):
    """It cannot be done in the present state; the message says why."""

    status = 409
    code = "conflict"


class PreconditionFailed(RequestError):
    """What stands is not what ``If-Match`` or ``If-None-Match`` expect: somebody changed it meanwhile. Nothing was done."""

    status = 412
    code = "precondition_failed"


class TooLarge(RequestError):
    """A body longer than the service reads."""

    status = 413
    code = "too_large"


class UpgradeRequired(RequestError):
    """The address is a WebSocket, and the request opens none."""

    status = 426
    code = "upgrade_required"


class TooManyRequests(RequestError):
    """Too many requests of the same user, or address, wait for their turn. Nothing was done; try again."""

    status = 429
    code = "too_many_requests"


class Unavailable(RequestError):
    """The database or JupyterHub cannot be asked right now, or a limit is reached. Nothing was done; try again."""

    status = 503
    code = "unavailable"

"""What a service refuses, by what the caller can do about it. Where nobody answers it is ``PoolUnreachable``, as in all of ``forebay``."""

from __future__ import annotations

from forebay.errors import PoolRefused


class Refused(PoolRefused):
    """The service answered, and will not do it: ``str(error)`` is its sentence, ``code`` its word for programs, ``status`` HTTP's.

    ``fault`` says which part of what was sent is wrong, as ``{"code", "field", "values"}``; None where it is not that.
    """


class Invalid(Refused):
    """What was sent cannot be used."""


class Unauthorized(Refused):
    """The token is unknown, expired or revoked."""


class Forbidden(Refused):
    """The token does not reach so far."""


class NotFound(Refused):
    """There is no such thing, or none that the bearer may know of."""


class Conflict(Refused):
    """Not in the present state; the message says why."""


class PreconditionFailed(Refused):
    """Somebody changed it meanwhile, so what stands is not of the ``etag`` that was given. Nothing was done."""


class TooManyRequests(Refused):
    """Too many requests of this user wait for an answer already; try again later."""


class ServiceFailed(Refused):
    """The service failed, or cannot be asked right now; try again later."""


BY_STATUS: dict[int, type[Refused]] = {
    400: Invalid,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    412: PreconditionFailed,
    413: Invalid,
    422: Invalid,
    429: TooManyRequests,
}
FAILURES_FROM = 500


def refused(error: PoolRefused) -> Refused:
    """The same refusal as one of the classes here."""
    status = error.status or 0
    kind = ServiceFailed if status >= FAILURES_FROM else BY_STATUS.get(status, Refused)
    return kind(str(error), error.code, error.cause, error.status, error.fault)

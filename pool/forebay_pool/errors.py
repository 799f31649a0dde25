"""What can go wrong in the pool. Each message says what happened, with which values, and what to do next."""

from __future__ import annotations

from forebay_service.errors import Conflict, Fault, Invalid, PreconditionFailed, RequestError, Unavailable


class PoolError(Exception):
    """Base of the pool's own errors."""


class InvariantBroken(PoolError):
    """The state machine found itself in a state that must never be; the message ends with the object's story."""


class StoreUnavailable(PoolError, Unavailable):
    """The database cannot be written at present; the caller may try again."""


class ChangedMeanwhile(PoolError, PreconditionFailed):
    """What was to be changed is not as whoever asked for it expects."""


class JobConflict(PoolError, Conflict):
    """A job is not in a state for this, or there are too many of them."""


class TooManyShared(PoolError, Conflict):
    """Who shares so many notebooks shares no more before one is taken back, or expires."""


class FilesRefused(PoolError, Conflict):
    """Files of a job that are not taken, or not there."""


class HubUnavailable(PoolError):
    """JupyterHub did not answer, or cannot do now what it was asked; it is asked again."""


class HubRefused(PoolError):
    """JupyterHub will not start a server for this user."""


class ScheduleUnreadable(PoolError, Invalid):
    """No schedule; the message says what is wrong with it."""


class BillingUnavailable(PoolError):
    """Billing did not take what it was sent; it will be sent again."""


class BillingRefused(PoolError):
    """Billing says that what it was sent is wrong; it helps to send it again only once somebody has acted."""


class RequestRefused(PoolError, RequestError):
    """An HTTP request that cannot be served: ``status``, a ``code`` word, a sentence for the caller, and its fault for programs."""

    def __init__(self, status: int, code: str, message: str, fault: Fault | None = None) -> None:
        super().__init__(message, fault)
        self.status = status
        self.code = code


class Deposed(PoolError):
    """Another pool leads on this database by now: what this one decides no longer counts."""


def one_line(text: object) -> str:
    """What an error says, with the line breaks that libraries put into it taken out."""
    return " ".join(str(text).split())

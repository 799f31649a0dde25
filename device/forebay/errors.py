"""What can go wrong between user code and its virtual device. Every message is a sentence for the user that says what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forebay_wire.messages import Cause


class ForebayError(RuntimeError):
    """Base of all errors of this package. A RuntimeError, as PyTorch's own device errors are."""

    cause: Cause | None = None
    """What a service gave as the reason, to be said in another language; the message is its English."""


class NotConfigured(ForebayError):
    """No service is configured, or its address cannot be read."""


class PoolUnreachable(ForebayError):
    """Nobody answers at FOREBAY_URL, or what answers is not a pool."""


class PoolRefused(ForebayError):
    """The pool answered, and will not do it. ``code`` is the machine-readable reason."""

    def __init__(self, message: str, code: str = "", cause: Cause | None = None, status: int | None = None, fault: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.cause = cause
        self.status = status
        """HTTP's, where it was refused so."""
        self.fault = fault
        """Of the answer: what is wrong in what was sent, as ``{code, field, values}``."""


class SessionEnded(ForebayError):
    """The session is over, and its tensors are gone with it."""

    def __init__(self, message: str, cause: Cause | None = None) -> None:
        super().__init__(message)
        self.cause = cause


class NotServable(ForebayError):
    """A flavor that nothing here can serve was chosen."""

    def __init__(self, message: str, cause: Cause | None = None) -> None:
        super().__init__(message)
        self.cause = cause


class ForkedProcess(ForebayError):
    """A forked child wants to use the virtual device of its parent."""


class BranchFailed(ForebayError):
    """The function of a branch raised an error, or its process ended."""

    def __init__(self, message: str, results: dict[int, Any] | None = None) -> None:
        super().__init__(message)
        self.results = results or {}
        """What the others returned, by their places."""


class CommandBroken(ForebayError):
    """A command of another package cannot be loaded; every other command works."""

    def __init__(self, command: str, package: str, reason: Exception) -> None:
        what = f"{type(reason).__name__}: {reason}".removesuffix(".")
        super().__init__(f"The command {command} comes from the package {package}, which does not load ({what}); install it again.")


class NotOnVirtualDevice(ForebayError):
    """A function of ``torch.cuda`` has no meaning on a virtual device."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} is not available on a Forebay virtual device: {reason}")
        self.name = name

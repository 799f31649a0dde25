"""Why a server does not start; each message is a sentence for the user."""

from __future__ import annotations

from forebay_service.languages import Text


class SpawnRefused(Exception):
    """Base of the refusals. ``reason`` is the label in JupyterHub's spawn metrics, ``status`` the HTTP status.

    ``text`` is for the user; as a string the error is English, for logs.
    """

    reason = "forebay"
    status = 400

    def __init__(self, text: Text) -> None:
        super().__init__(str(text))
        self.text = text


class FlavorRefused(SpawnRefused):
    """The flavor is unknown, or cannot be served here."""

    reason = "flavor"


class ProfileRefused(SpawnRefused):
    """The profile of a server's pod is unknown."""

    reason = "profile"


class ServerRefused(SpawnRefused):
    """A server with a name that is no job's."""

    reason = "name"


class TenantMissing(SpawnRefused):
    """The user belongs to no tenant, so nobody would pay."""

    reason = "tenant"
    status = 403


class PoolUnavailable(SpawnRefused):
    """The pool cannot be asked for flavors."""

    reason = "pool"
    status = 503

    def __init__(self, detail: Text) -> None:
        super().__init__(
            Text(
                "The pool that lends devices cannot be asked right now (%(detail)s). Try again in a minute, or tell an operator.",
                detail=detail,
            )
        )


class GpuRequested(SpawnRefused):
    """The server's pod would hold a GPU of its own."""

    reason = "gpu"
    status = 500

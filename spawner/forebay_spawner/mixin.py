"""What makes any JupyterHub spawner one of ours: no GPU, a flavor that is asked for and checked, and the pool's address."""

from __future__ import annotations

import json
from typing import Any

from forebay_hub.identity import IdentityRefused, tenant_of
from jupyterhub.spawner import SpawnException
from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest
from traitlets import Unicode, default
from traitlets.config import Configurable

from forebay_spawner.environment import virtual_device
from forebay_spawner.errors import PoolUnavailable, SpawnRefused, TenantMissing
from forebay_spawner.flavors import OPTION, Offer, admit, preferred, read_offers, requested
from forebay_spawner.form import render_notice, render_offers

CONNECT_TIMEOUT_SECONDS = 2.0
REQUEST_TIMEOUT_SECONDS = 5.0


class VirtualGpuMixin(Configurable):  # type: ignore[misc]  # traitlets is not followed
    """Goes before a JupyterHub spawner in the bases of a class."""

    user: Any
    user_options: dict[str, Any]
    api_token: str
    log: Any

    pool_url = Unicode(
        config=True,
        help="""Where servers and this spawner reach the pool, with a slash at its end.

        On one machine: http://127.0.0.1:8003/services/pool/. The servers must be able to open it too:
        their devices' session link goes there.
        """,
    )

    pool_token = Unicode(
        config=True,
        help="""JupyterHub token that this spawner presents when it asks the pool for its flavors.

        It needs no scope. If it is wrong, the spawn page says that the pool refused it.
        """,
    )

    default_flavor = Unicode(
        "dev.4gb",
        config=True,
        help="""Flavor of servers whose user has never chosen one, and did not now.

        If it cannot be served here, the first flavor that can takes its place.
        """,
    )

    @default("options_form")  # type: ignore[untyped-decorator]  # traitlets is not followed
    def _default_options_form(self) -> Any:
        return type(self).flavor_form

    @default("options_from_form")  # type: ignore[untyped-decorator]  # traitlets is not followed
    def _default_options_from_form(self) -> Any:
        return _options_from_form

    @default("apply_user_options")  # type: ignore[untyped-decorator]  # traitlets is not followed
    def _default_apply_user_options(self) -> Any:
        return _leave_to_start

    async def flavor_form(self) -> str:
        """The choice of a flavor, or one sentence that says why there is none."""
        try:
            offers = await self.ask_offers()
            return render_offers(offers, preferred(offers, requested(self.user_options), self.default_flavor))
        except SpawnRefused as error:
            return render_notice(str(error))

    async def start(self) -> Any:
        """Refuses what the form would not have offered (requests to the API never see it), then starts the server."""
        try:
            flavor = await self._admit()
            await self._choose(flavor)
            self.user_options = {**self.user_options, OPTION: flavor}
            self.log.info("action=spawn user=%s tenant=%s flavor=%s", self.user.name, self._tenant(), flavor)
            return await super().start()
        except SpawnRefused as error:
            raise SpawnException(str(error), reason=error.reason, status_code=error.status) from None

    def get_env(self) -> dict[str, str]:
        """The server's environment; nothing that an operator sets can show it a GPU."""
        environment: dict[str, str] = super().get_env()
        return {**environment, **virtual_device(self.pool_url, self.api_token)}

    async def ask_offers(self) -> list[Offer]:
        """The pool's flavors. Raises PoolUnavailable."""
        return read_offers(await self._ask_pool("api/flavors", self.pool_token))

    async def _choose(self, flavor: str) -> None:
        """Makes it the user's choice at the pool, where `forebay flavor set` changes it while the server runs."""
        await self._ask_pool("api/choice", self.api_token, method="PUT", body=json.dumps({"flavor": flavor}))

    async def _ask_pool(self, path: str, token: str, **request: Any) -> bytes:
        """The body of the pool's answer. Raises PoolUnavailable."""
        asked = HTTPRequest(
            self.pool_url + path,
            headers={"Authorization": f"token {token}"},
            connect_timeout=CONNECT_TIMEOUT_SECONDS,
            request_timeout=REQUEST_TIMEOUT_SECONDS,
            **request,
        )
        try:
            body: bytes = (await AsyncHTTPClient().fetch(asked)).body
        except HTTPClientError as error:
            raise PoolUnavailable(f"it answered {error.code} {error.message}") from None
        except OSError as error:
            raise PoolUnavailable(error.strerror or str(error)) from None
        return body

    async def _admit(self) -> str:
        try:
            tenant = self._tenant()
        except IdentityRefused as refusal:
            raise TenantMissing(str(refusal)) from None
        if tenant is None:
            raise TenantMissing(f"{self.user.name} belongs to no tenant that would pay for a device; ask an operator to add it to one.")
        offers = await self.ask_offers()
        flavor = requested(self.user_options) or preferred(offers, None, self.default_flavor) or self.default_flavor
        return admit(offers, flavor).name

    def _tenant(self) -> str | None:
        return tenant_of(self.user.name, (group.name for group in self.user.groups))


def _leave_to_start(_spawner: object, _options: object) -> None:
    """User options are applied in ``start``, which can refuse them with a reason."""


def _options_from_form(form: dict[str, list[str]]) -> dict[str, Any]:
    """User options from the submitted form, where every field is a list."""
    chosen = form.get(OPTION, [])
    return {OPTION: chosen[0]} if chosen else {}

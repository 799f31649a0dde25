"""What makes any JupyterHub spawner one of ours: no GPU, a flavor that is asked for and checked, and the pool's address."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from typing import Any

from forebay_service.identity import COMPUTE, OPERATOR_ROLE, IdentityRefused, reason_of, tenant_of
from forebay_service.languages import COOKIE, SOURCE, Text, as_sent, language_of, reading
from jupyterhub.spawner import SpawnException
from pydantic import ValidationError
from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest
from traitlets import Any as AnyTrait
from traitlets import List, Unicode, default
from traitlets.config import Configurable

from forebay_spawner.budgets import Budget, read_budgets
from forebay_spawner.environment import virtual_device
from forebay_spawner.errors import PoolUnavailable, ServerRefused, SpawnRefused, TenantMissing
from forebay_spawner.flavors import OPTION, Offer, admit, preferred, read_choice, read_offers, requested
from forebay_spawner.form import render_notice, render_offers
from forebay_spawner.steps import Steps

CONNECT_TIMEOUT_SECONDS = 2.0
REQUEST_TIMEOUT_SECONDS = 5.0
HANDED_OVER = 20
"""The progress at which the spawner below takes over."""
JOB_SERVER = re.compile(r"job-[0-9]{1,18}")
"""The names that the pool gives servers of jobs."""
JOB_RUNNER = ("-I", "-m", "forebay.toolkit.jobs")
"""Nothing of the user's home is imported before the program is."""
ENVIRONMENTS = ("-I", "-m", "forebay.toolkit.environments")
"""What servers begin with: the user's environments of packages are made, and shown to Jupyter."""
ASKING_SECONDS = 60
"""How long the token is good with which the spawn page asks on behalf of its visitor."""


class VirtualGpuMixin(Configurable):  # type: ignore[misc]  # traitlets is not followed
    """Goes before a JupyterHub spawner in the bases of a class."""

    user: Any
    user_options: dict[str, Any]
    name: str
    """Of the server; empty for the notebook server."""
    api_token: str
    handler: Any
    """JupyterHub's, of the request that shows the spawn page or starts the server; None otherwise."""
    log: Any

    pool_url = Unicode(
        config=True,
        help="""Where servers and this spawner reach the pool, with a slash at its end.

        On one machine: http://127.0.0.1:8003/services/pool/. The servers must be able to open it too:
        their devices' session link goes there.
        """,
    )

    billing_url = Unicode(
        config=True,
        help="""Where this spawner and its servers ask billing what is left of a user's budget, with a slash at its end.

        On one machine: http://127.0.0.1:8004/services/billing/. Empty: the spawn page says nothing of budgets, and notebooks look for
        billing beside the pool.
        """,
    )

    authority = Unicode(
        config=True,
        help="""PEM file of the authorities whose certificates pool and billing show to this spawner; empty: those that the system knows.

        Servers trust what their own system trusts.
        """,
    )

    job_cmd = List(
        Unicode(),
        config=True,
        help="""What runs a job, in a server of its own that the pool asks for: Python of the notebooks' environment.""",
    )

    steps = AnyTrait(help="The steps of the present start.")

    @default("steps")  # type: ignore[untyped-decorator]  # traitlets is not followed
    def _default_steps(self) -> Steps:
        return Steps()

    @default("job_cmd")  # type: ignore[untyped-decorator]  # traitlets is not followed
    def _default_job_cmd(self) -> list[str]:
        return ["python", *ENVIRONMENTS, "python", *JOB_RUNNER]

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
        language = self._language()
        try:
            self._payer()
            token = self._visitors_token()
            offers, choice, budgets = await asyncio.gather(self._ask_offers(token), self._ask_choice(token), self._ask_budgets(token))
            with reading(language):
                return render_offers(offers, preferred(offers, choice), budgets)
        except SpawnRefused as error:
            with reading(language):
                return render_notice(error.text)

    async def start(self) -> Any:
        """Refuses what the form would not have offered (requests to the API never see it), then starts the server."""
        if self.steps.over:
            self.steps = Steps()
        try:
            return await self._start_server()
        except SpawnRefused as error:
            told = error.text.said(self._language())
            raise SpawnException(told, reason=error.reason, log_message=str(error), status_code=error.status) from None
        finally:
            self.steps.end()

    async def _start_server(self) -> Any:
        tenant, language = self._payer(), self._language()
        if self.name:
            return await self._start_job(tenant)
        self.steps.tell(5, Text("The pool is asked what it can serve.").said(language))
        flavor = await self._admit()
        await self._choose(flavor)
        self.user_options = {**self.user_options, OPTION: flavor}
        step = Text("The virtual device will be %(flavor)s. It costs nothing until a cell computes.", flavor=flavor)
        self.steps.tell(HANDED_OVER, step.said(language))
        fields = {"action": "spawn", "user": self.user.name, "tenant": tenant, "flavor": flavor}
        self.log.info("%s of %s gets a notebook with %s", self.user.name, tenant, flavor, extra=fields)
        started = await super().start()
        self.steps.tell(80, Text("The notebook server runs; JupyterLab loads.").said(language))
        return started

    async def _start_job(self, tenant: str) -> Any:
        """The runner asks the pool for the job, and ends at once where there is none: so whoever asks for this gets nothing by it."""
        if JOB_SERVER.fullmatch(self.name) is None:
            raise ServerRefused(Text("Each person has one notebook server here; servers with names are those of jobs."))
        fields = {"action": "spawn_job", "user": self.user.name, "tenant": tenant, "server": self.name}
        self.log.info("%s of %s gets a server for %s", self.user.name, tenant, self.name, extra=fields)
        return await super().start()

    def get_args(self) -> list[str]:
        """Those of the notebook server; a job's runner takes none."""
        return [] if self.name else super().get_args()

    def clear_state(self) -> None:
        """The next start's steps are its own."""
        super().clear_state()
        self.steps = Steps()

    async def progress(self) -> AsyncIterator[dict[str, Any]]:
        """Our own steps, and between them what the spawner below tells."""
        below = super().progress()
        async for step in self.steps.follow():
            yield step
            if step["progress"] == HANDED_OVER:
                async for event in below:
                    yield event

    def _language(self) -> str:
        """Of who asks for the page or the start; English where JupyterHub starts a server by itself."""
        if self.handler is None:
            return SOURCE
        return language_of(self.handler.get_cookie(COOKIE), self.handler.request.headers.get("Accept-Language", ""))

    def get_env(self) -> dict[str, str]:
        """The server's environment; nothing that an operator sets can show it a GPU."""
        environment: dict[str, str] = super().get_env()
        return {**environment, **virtual_device(self.pool_url, self.api_token, self.billing_url)}

    async def _ask_offers(self, token: str) -> list[Offer]:
        """The pool's flavors. Raises PoolUnavailable."""
        return read_offers(await self._ask_pool("api/flavors", token))

    async def _ask_choice(self, token: str) -> str:
        """The user's last choice, wherever it was made, or the pool's default. Raises PoolUnavailable."""
        return read_choice(await self._ask_pool("api/choice", token))

    async def _ask_budgets(self, token: str) -> Sequence[Budget] | None:
        """What limits the user; None where billing does not answer, which keeps nobody from starting, and is said."""
        if not self.billing_url:
            return ()
        try:
            return read_budgets(await self._ask(f"{self.billing_url}api/budgets", token))
        except (HTTPClientError, OSError, ValidationError) as error:
            fields = {"action": "budgets_unread", "user": self.user.name}
            self.log.warning("budgets of %s could not be read: %r", self.user.name, str(error), extra=fields)
            return None

    def _visitors_token(self) -> str:
        """For asking in the user's name, which shows what this user may see; it is good for a moment. Raises TenantMissing."""
        try:
            token: str = self.user.new_api_token(note="Forebay's spawn page", expires_in=ASKING_SECONDS, scopes=[f"{COMPUTE}!user"])
        except ValueError as refusal:  # where the roles of a tenant's members were taken away
            message = Text("%(name)s may not hold devices (%(problem)s); tell an operator.", name=self.user.name, problem=str(refusal))
            raise TenantMissing(message) from None
        return token

    async def _choose(self, flavor: str) -> None:
        """Makes it the user's choice at the pool, where `forebay flavor set` changes it while the server runs."""
        await self._ask_pool("api/choice", self.api_token, method="PUT", body=json.dumps({"flavor": flavor}))

    async def _ask_pool(self, path: str, token: str, **request: Any) -> bytes:
        """The body of the pool's answer. Raises PoolUnavailable."""
        try:
            return await self._ask(self.pool_url + path, token, **request)
        except HTTPClientError as error:
            raise PoolUnavailable(Text("it answered %(answer)s", answer=f"{error.code} {error.message}")) from None
        except OSError as error:
            raise PoolUnavailable(as_sent(error.strerror or str(error))) from None

    async def _ask(self, url: str, token: str, **request: Any) -> bytes:
        asked = HTTPRequest(
            url,
            headers={"Authorization": f"token {token}"},
            connect_timeout=CONNECT_TIMEOUT_SECONDS,
            request_timeout=REQUEST_TIMEOUT_SECONDS,
            ca_certs=self.authority or None,
            **request,
        )
        body: bytes = (await AsyncHTTPClient().fetch(asked)).body
        return body

    async def _admit(self) -> str:
        offers, choice = await asyncio.gather(self._ask_offers(self.api_token), self._ask_choice(self.api_token))
        return admit(offers, requested(self.user_options) or preferred(offers, choice) or choice).name

    def _payer(self) -> str:
        """The user's tenant. Raises TenantMissing."""
        try:
            tenant = tenant_of(self.user.name, (group.name for group in self.user.groups))
        except IdentityRefused as refusal:
            raise TenantMissing(reason_of(refusal)) from None
        if tenant is None and any(role.name == OPERATOR_ROLE for role in getattr(self.user, "roles", ())):
            raise TenantMissing(
                Text("You run this installation and belong to no tenant, so nobody would pay for a device. Your pages are the dashboards.")
            )
        if tenant is None:
            name = self.user.name
            raise TenantMissing(
                Text("%(name)s belongs to no tenant that would pay for a device; ask an operator to add it to one.", name=name)
            )
        return tenant


def _leave_to_start(_spawner: object, _options: object) -> None:
    """User options are applied in ``start``, which can refuse them with a reason."""


def _options_from_form(form: dict[str, list[str]]) -> dict[str, Any]:
    """User options from the submitted form, where every field is a list."""
    chosen = form.get(OPTION, [])
    return {OPTION: chosen[0]} if chosen else {}

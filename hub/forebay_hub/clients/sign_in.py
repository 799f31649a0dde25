"""``forebay login``: the page on which a signed-in person confirms a client's code, and what the client asks meanwhile.

After RFC 8628; refusals have the shape of our services (``docs/reference/http.md``), with that document's codes.
"""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Annotated, Any

from forebay_service.bodies import body_of
from forebay_service.errors import Forbidden, RequestError, TooManyRequests
from forebay_service.identity import COMPUTE, IdentityRefused, tenant_of
from forebay_service.languages import COOKIE, Text, language_of, reading
from jupyterhub import orm
from jupyterhub.handlers import BaseHandler
from jupyterhub.utils import url_path_join
from pydantic import BaseModel, ConfigDict, Field
from tornado.web import authenticated

from forebay_hub.clients.codes import CODE_SECONDS, POLL_SECONDS, Asker, Codes, TooManyCodes, TooSoon, Unknown, Waiting, written
from forebay_hub.people.rate_limit import RateLimit
from forebay_hub.refusals import RefusingApi

log = logging.getLogger(__name__)

CODES = Codes(time.monotonic)
BEGINNINGS = RateLimit(10, 60.0, time.monotonic)
"""Clients that begin, by address."""
TRIES = RateLimit(20, 60.0, time.monotonic)
"""Codes that are looked at, by address."""
TOKEN_DAYS = 30
"""After that somebody signs in again."""
NOTE = "forebay login"
"""What a client's token is called in the hub's list of tokens begins with this."""
TEXTS = {
    "title": Text("Sign in a client"),
    "ask": Text("Type the code that `forebay login` shows."),
    "code": Text("Code"),
    "go_on": Text("Go on"),
    "who": Text("A client asks to compute in your name:"),
    "host": Text("Its host says that it is called"),
    "address": Text("It asks from the address"),
    "since": Text("Since"),
    "elsewhere": Text("This browser is at another address. Confirm only if you started `forebay login` there yourself."),
    "warning": Text(
        "Confirm only if you have just started `forebay login` yourself, and it shows this code. Whoever sent you this code or a link "
        "to this page would compute at your cost."
    ),
    "confirm": Text("Confirm"),
    "refuse": Text("Refuse"),
    "confirmed": Text("The client is signed in. You can close this page; your list of tokens in the hub has it, and can revoke it."),
    "refused": Text("The client is not signed in."),
    "unknown": Text("There is no such code. It may have been used, or be older than 10 minutes: start `forebay login` again."),
    "too_often": Text("Too many tries. Wait a minute."),
    "nowhere": Text("You belong to no tenant, so nothing can be computed in your name; ask an operator to add you to one."),
    "home": Text("To the start page"),
}


class BeginBody(BaseModel):
    """``POST …/logins``: what the client's host calls itself."""

    model_config = ConfigDict(extra="forbid", strict=True)

    host: Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[!-~]+$")]


class PollBody(BaseModel):
    """``POST …/logins/token``."""

    model_config = ConfigDict(extra="forbid", strict=True)

    device_code: Annotated[str, Field(max_length=100)]


class SignInRefused(RequestError):
    """The client gets no token, or none yet; the codes are RFC 8628's, section 3.5."""

    status = HTTPStatus.BAD_REQUEST

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Logins(RefusingApi):
    """``POST api/forebay/logins``: a client begins; for everybody."""

    def post(self) -> None:
        address = self.request.remote_ip or ""
        if not BEGINNINGS.takes(address):
            raise TooManyRequests("Too many clients sign in from this address; try again in a minute.")
        asker = Asker(body_of(BeginBody, self.request.body).host, address, time.time())
        try:
            device_code, waiting = CODES.begin(asker)
        except TooManyCodes:
            raise TooManyRequests("Too many clients wait to be signed in; try again in a few minutes.") from None
        code, page = written(waiting.user_code), f"{self.hub.base_url}client"
        self.finish(
            {
                "device_code": device_code,
                "user_code": code,
                "verification_path": page,
                "verification_path_complete": f"{page}?code={code}",
                "expires_in": CODE_SECONDS,
                "interval": POLL_SECONDS,
            }
        )


class LoginToken(RefusingApi):
    """``POST api/forebay/logins/token``: the client asks for its token. ``DELETE``: it gives back the one that it shows."""

    def post(self) -> None:
        try:
            waiting = CODES.ask(body_of(PollBody, self.request.body).device_code)
        except TooSoon:
            raise SignInRefused("slow_down", f"Ask once in {POLL_SECONDS} seconds.") from None
        except Unknown:
            raise SignInRefused("expired_token", "The code was not confirmed in time; start again.") from None
        if waiting.state == "pending":
            raise SignInRefused("authorization_pending", "Nobody has confirmed the code yet.")
        if waiting.state == "refused":
            raise SignInRefused("access_denied", "Somebody refused the code in the browser.")
        self.finish(self._signed_in(waiting))

    def _signed_in(self, waiting: Waiting) -> dict[str, Any]:
        user = orm.User.find(self.db, waiting.user)
        if user is None or not _computes(user):
            raise SignInRefused("access_denied", "Whoever confirmed the code may not compute any more.")
        seconds = TOKEN_DAYS * 86_400
        note = f"{NOTE} on {waiting.asker.host}"
        token = orm.APIToken.new(user=user, scopes=[f"{COMPUTE}!user"], note=note, expires_in=seconds)
        log.info("a client is signed in", extra={"action": "client_signed_in", "who": user.name, "address": waiting.asker.address})
        pool = url_path_join(self.settings["base_url"], "services/pool/")
        return {"token": token, "user": user.name, "expires_at": int(time.time()) + seconds, "pool_path": pool}

    def delete(self) -> None:
        token = self.get_token()
        if token is None or not (token.note or "").startswith(NOTE):
            raise Forbidden("Only a token of `forebay login` gives itself back; others are revoked on the hub's page of tokens.")
        user = token.user.name
        self.db.delete(token)
        self.db.commit()
        log.info("a client is signed out", extra={"action": "client_signed_out", "who": user})
        self.set_status(HTTPStatus.NO_CONTENT)


class ConfirmPage(BaseHandler):  # type: ignore[misc] # jupyterhub has no type information
    """``GET`` and ``POST client``: somebody who is signed in confirms the code that a client shows."""

    @authenticated
    async def get(self) -> None:
        typed = self.get_query_argument("code", "")
        if typed:
            self._show_asker(typed)
        else:
            self._finish("ask")

    @authenticated
    async def post(self) -> None:
        if not self._may_try():
            return
        try:
            confirmed = self.get_body_argument("decision", "") == "confirm"
            waiting = CODES.decide(self.get_body_argument("code", ""), self.current_user.name, confirmed)
        except Unknown:
            self._finish("unknown", HTTPStatus.NOT_FOUND)
            return
        fields = {"who": self.current_user.name, "address": waiting.asker.address}
        log.info("a client is decided about", extra={"action": f"client_{waiting.state}", **fields})
        self._finish("confirmed" if confirmed else "refused")

    def _may_try(self) -> bool:
        """Whether this address may look at another code, for somebody who computes; else the page says why not."""
        if not TRIES.takes(self.request.remote_ip or ""):
            self._finish("too_often", HTTPStatus.TOO_MANY_REQUESTS)
            return False
        if not _computes(self.current_user):
            self._finish("nowhere", HTTPStatus.FORBIDDEN)
            return False
        return True

    def _show_asker(self, typed: str) -> None:
        if not self._may_try():
            return
        try:
            waiting = CODES.shown(typed)
        except Unknown:
            self._finish("unknown", HTTPStatus.NOT_FOUND)
            return
        since = f"{datetime.fromtimestamp(waiting.asker.at, UTC):%Y-%m-%d %H:%M:%S} UTC"
        elsewhere = waiting.asker.address != (self.request.remote_ip or "")
        self._finish("decide", asker=waiting.asker, since=since, elsewhere=elsewhere, user_code=written(waiting.user_code))

    def _finish(self, what: str, status: HTTPStatus = HTTPStatus.OK, **values: Any) -> None:
        self.set_status(status)
        language = language_of(self.get_cookie(COOKIE), self.request.headers.get("Accept-Language", ""))
        self.set_header("Vary", "Cookie, Accept-Language")
        self.set_header("Cache-Control", "no-store")
        with reading(language):
            path = f"{self.hub.base_url}client"
            self.finish(self.render_template("client.html", sync=True, language=language, text=TEXTS, path=path, what=what, **values))


def _computes(user: Any) -> bool:
    """Whether anything can be computed in the name of this user: they belong to one tenant."""
    try:
        return tenant_of(user.name, [group.name for group in user.groups]) is not None
    except IdentityRefused:
        return False


ROUTES = (
    (r"/api/forebay/logins", Logins),
    (r"/api/forebay/logins/token", LoginToken),
    (r"/client", ConfirmPage),
)

"""The page that an invitation leads to: who is signed in joins; who has no login yet makes one, where logins are ours.

The token comes in the link once, and then stands in a cookie: it is in no address that a log keeps or another page is told.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

from forebay_service.errors import NotFound, RequestError
from forebay_service.languages import COOKIE, Text, as_sent, language_of, reading
from forebay_service.people.names import RESERVED, login_of
from jupyterhub import orm
from jupyterhub.handlers import BaseHandler
from jupyterhub.utils import maybe_future

from forebay_hub.errors import LoginTaken
from forebay_hub.logins import LoginsAuthenticator, check_password
from forebay_hub.people.invitations import Invitation, find, take
from forebay_hub.people.members import join, may_invite
from forebay_hub.people.rate_limit import RateLimit
from forebay_hub.tenants import Decision

log = logging.getLogger(__name__)

INVITATION_COOKIE = "forebay-invitation"
COOKIE_DAYS = 1
TRIES_PER_MINUTE = 20
RATE_LIMIT = RateLimit(TRIES_PER_MINUTE, 60.0, time.monotonic)
JOINS = {
    "owner": Text("You join as an owner: you invite people, set budgets, and see all usage and bills."),
    "billing": Text("You join as who sees and pays the bills, and may compute too."),
    "member": Text("You join as a member: you compute, and see your own usage."),
}
NAME_TAKEN = Text("Somebody has this name already; choose another.")
TEXTS = {
    "title": Text("Invitation"),
    "join": Text("Join"),
    "account": Text("I have a login"),
    "sign_in": Text("Sign in and join"),
    "new": Text("I have no login yet"),
    "name": Text("Name"),
    "name_hint": Text("letters, digits and “. _ - + @”, such as an e-mail address; your notebooks and usage stand under it"),
    "password": Text("Password"),
    "password_hint": Text("at least 12 characters"),
    "again": Text("Password, once more"),
    "make": Text("Make the login and join"),
    "home": Text("To the start page"),
    "sign_out": Text("Sign out"),
}


class JoinPage(BaseHandler):  # type: ignore[misc] # jupyterhub has no type information
    """``GET`` and ``POST join``."""

    async def get(self) -> None:
        token = self.get_query_argument("code", "")
        if token:
            settings = {"expires_days": COOKIE_DAYS, "path": self._path, "httponly": True, "samesite": "Lax"}
            self.set_secure_cookie(INVITATION_COOKIE, token, secure=self.request.protocol == "https", **settings)
            self.redirect(self._path)
            return
        try:
            self._show(self._invitation())
        except RequestError as error:
            self._show_refused(error)

    async def post(self) -> None:
        try:
            invitation = self._invitation()
            if self.current_user is None:
                await self._join_as_new(invitation)
            else:
                self._join(invitation, self.current_user.name)
        except _Faulty as error:
            self.set_status(HTTPStatus.BAD_REQUEST)
            self._show(invitation, error.problems)
        except RequestError as error:
            self._show_refused(error)
        else:
            self.clear_cookie(INVITATION_COOKIE, path=self._path)
            self.redirect(self.get_next_url(self.current_user))

    @property
    def _path(self) -> str:
        return f"{self.hub.base_url}join"

    def _invitation(self) -> Invitation:
        """The one that the visitor came with. Raises NotFound, RequestError."""
        if not RATE_LIMIT.takes(self.request.remote_ip or ""):
            raise _TooOften(Text("Too many tries. Wait a minute, and open the link again."))
        token = (self.get_secure_cookie(INVITATION_COOKIE, max_age_days=COOKIE_DAYS) or b"").decode()
        if not token:
            raise NotFound(Text("Open the link of your invitation; this page alone invites nobody."))
        return self._of_owner(find(self.db.connection(), token, time.time_ns()))

    def _of_owner(self, invitation: Invitation) -> Invitation:
        """The invitation, unless its maker may invite nobody now, whatever took the right away. Raises NotFound."""
        if not may_invite(self.db, invitation.made_by, invitation.tenant):
            raise NotFound(Text("Whoever made this invitation may invite nobody any more. Ask an owner of the tenant for another."))
        return invitation

    def _join(self, invitation: Invitation, login: str) -> None:
        """In one transaction. Raises RequestError."""
        try:
            now_ns = time.time_ns()
            take(self.db.connection(), self._of_owner(invitation), login, now_ns)
            join(self.db, Decision(invitation.tenant, login, invitation.role), now_ns)
            self.db.commit()
        except BaseException:
            self.db.rollback()
            raise
        fields = {"action": "member_joined", "who": login, "tenant": invitation.tenant, "invitation": invitation.id}
        log.info("an invitation is taken", extra=fields)

    async def _join_as_new(self, invitation: Invitation) -> None:
        """Makes the login first: whatever fails after it, nobody gets a name that is somebody's. Raises _Faulty, RequestError."""
        if not isinstance(self.authenticator, LoginsAuthenticator):
            raise NotFound(Text("Sign in first; this installation makes no logins."))
        typed, password, again = (self.get_body_argument(field, "", strip=field == "name") for field in ("name", "password", "again"))
        problems: dict[str, Text] = {}
        name = login_of(typed) or ""
        if typed.lower() in RESERVED:
            problems["name"] = Text("This is the name of a service; choose another.")
        elif not name:
            problems["name"] = Text(
                "A name has letters, digits and “. _ - + @”, begins with a letter or a digit, and has at most 128 of them."
            )
        elif orm.User.find(self.db, name) is not None:
            problems["name"] = NAME_TAKEN
        problem = check_password(password)
        if problem is not None:
            problems["password"] = problem
        elif password != again:
            problems["again"] = Text("The two passwords differ.")
        if problems:
            raise _Faulty(problems)
        try:
            self.authenticator.add_login(name, password)
        except LoginTaken:
            raise _Faulty({"name": NAME_TAKEN}) from None
        user = self.user_from_username(name)
        await maybe_future(self.authenticator.add_user(user))
        self._join(invitation, name)
        self.set_login_cookie(user)
        self._jupyterhub_user = user

    def _show(self, invitation: Invitation, problems: Mapping[str, Text] | None = None) -> None:
        sentence = Text("%(who)s invites you to the tenant %(tenant)s.", who=invitation.made_by, tenant=invitation.tenant)
        until = datetime.fromtimestamp(invitation.expires_at_ns // 10**9, UTC)
        values = {
            "invitation": invitation,
            "sentence": sentence,
            "role": JOINS[invitation.role],
            "until": Text("The invitation holds for one person, until %(time)s UTC.", time=f"{until:%Y-%m-%d %H:%M}"),
            "as_whom": None if self.current_user is None else Text("You are signed in as %(name)s.", name=self.current_user.name),
            "makes_logins": isinstance(self.authenticator, LoginsAuthenticator),
            "problems": problems or {},
            "typed": self.get_body_argument("name", ""),
            "sign_in_url": f"{self.settings['login_url']}?next={self._path}",
        }
        self._finish(values)

    def _show_refused(self, error: RequestError) -> None:
        self.set_status(error.status)
        said = error.args[0]
        self._finish({"invitation": None, "sentence": said if isinstance(said, Text) else as_sent(str(said))})

    def _finish(self, values: Mapping[str, Any]) -> None:
        language = language_of(self.get_cookie(COOKIE), self.request.headers.get("Accept-Language", ""))
        self.set_header("Vary", "Cookie, Accept-Language")
        self.set_header("Cache-Control", "no-store")
        with reading(language):
            self.finish(self.render_template("join.html", sync=True, language=language, text=TEXTS, path=self._path, **values))


class _TooOften(RequestError):
    """Whoever asks tried too often."""

    status = HTTPStatus.TOO_MANY_REQUESTS
    code = "too_often"


class _Faulty(Exception):
    """Fields of the form that hold what they must not, each with its sentence."""

    def __init__(self, problems: Mapping[str, Text]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


ROUTES = ((r"/join", JoinPage),)

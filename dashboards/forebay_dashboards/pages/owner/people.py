"""*Tenant*: who belongs to it and as what, invitations, and what each member is held to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from http import HTTPStatus
from urllib.parse import quote, urlsplit

from forebay_service.identity import TENANT
from forebay_service.languages import Text

from forebay_dashboards.access import View
from forebay_dashboards.errors import FormError, UpstreamRefused, UpstreamUnavailable
from forebay_dashboards.forms import invitation as invitation_forms
from forebay_dashboards.forms import quota as quota_forms
from forebay_dashboards.forms.etags import STALE, expecting, number_in, overtaken, stamp_of
from forebay_dashboards.forms.invitation import InvitationForm
from forebay_dashboards.forms.tenant_terms import QUOTA_FIELDS, TermForm, refused
from forebay_dashboards.http.handler import PageHandler, Problem, not_yours
from forebay_dashboards.rows.hub import MadeInvitation, Member
from forebay_dashboards.rows.pool import Quota
from forebay_dashboards.upstream.sections import Section, attempt

FIELD_CHARACTERS_MAX = 255

logger = logging.getLogger(__name__)


class PeopleDesk(PageHandler):
    """What both pages share: who may change people, and how a change is told."""

    view: View = "tenant"

    @property
    def tenant(self) -> str:
        """The visitor's own, which who may open the page has."""
        return self.visitor.tenant or ""

    @property
    def changes(self) -> bool:
        """Whether the visitor may change who belongs to the tenant; who pays for it only reads."""
        return self.visitor.may(TENANT)

    def check_changes(self) -> None:
        """Raises Problem."""
        if not self.changes:
            raise not_yours(Text("Who belongs to a tenant, and what they are held to, its owners change."))

    def tell(self, action: str, subject: str) -> None:
        """The log has who did what; the audit is the hub's and the pool's."""
        logger.info("people are changed", extra={"action": action, "who": self.visitor.name, "tenant": self.tenant, "subject": subject})

    def refuse(self, error: Exception) -> Text:
        """Sets the status of an answer that shows the form again; the sentence that stands in it."""
        if isinstance(error, UpstreamRefused):
            self.set_status(HTTPStatus(error.status))
        else:
            self.set_status(HTTPStatus.BAD_REQUEST if isinstance(error, FormError) else HTTPStatus.SERVICE_UNAVAILABLE)
        found: Text = error.text  # type: ignore[attr-defined] # all three have one
        return found


class PeoplePage(PeopleDesk):
    """``GET tenant/people`` lists people and invitations, ``POST`` invites, or revokes an invitation."""

    page = "tenant_people"

    async def get(self) -> None:
        await self._show()

    async def post(self) -> None:
        self.check_changes()
        if "revoke" in self.request.body_arguments:
            await self._revoke()
            return
        typed = {name: self.get_body_argument(name, "") for name in ("role", "address", "days")}
        form, body = invitation_forms.judge(typed)
        if form.problems:
            self.set_status(HTTPStatus.BAD_REQUEST)
            await self._show(form)
            return
        try:
            made = await self.services.people.invite(self.token, self.tenant, body)
        except (UpstreamRefused, UpstreamUnavailable) as error:
            await self._show(InvitationForm(form.values, {"form": self.refuse(error)}))
            return
        self.tell("owner_invited", made.role)
        link = self._link(made.path)
        await self._show(made=made, link=link, mailed=await self._mail(made, link))

    async def _revoke(self) -> None:
        try:
            number = number_in(self.get_body_argument("revoke"))
            await self.services.people.revoke_invitation(self.token, self.tenant, number)
        except (FormError, UpstreamRefused, UpstreamUnavailable) as error:
            await self._show(problem=self.refuse(error))
            return
        self.tell("owner_revoked_invitation", str(number))
        await self._show(saved=Text("The invitation is revoked: its link is of no more use."))

    def _link(self, path: str) -> str:
        """The address of a path of the hub, where browsers reach it: as is set, else as this one does."""
        came = urlsplit(self.request.headers.get("Origin") or f"{self.request.protocol}://{self.request.host}")
        return (self.services.settings.public_url or f"{came.scheme}://{came.netloc}").rstrip("/") + path

    async def _mail(self, made: MadeInvitation, link: str) -> Text | None:
        """What became of the mail; None where none was asked for. The link stands on the page whatever became of it."""
        if made.address is None:
            return None
        subject, text = invitation_forms.mail(made, self.visitor.name, self.tenant, link)
        try:
            said = (subject.said(self.language), text.said(self.language))
            await self.services.billing.send_mail(self.services.settings.hub_token, made.address, *said)
        except (UpstreamRefused, UpstreamUnavailable) as error:
            return Text("It could not be mailed: %(problem)s Copy the link, and send it yourself.", problem=error.text)
        return Text("It was mailed to %(address)s.", address=made.address)

    async def _show(
        self, form: InvitationForm | None = None, *, problem: Text | None = None, saved: Text | None = None,
        made: MadeInvitation | None = None, link: str = "", mailed: Text | None = None,
    ) -> None:  # fmt: skip
        hub, token, tenant = self.services.people, self.token, self.tenant
        members, quotas = await asyncio.gather(
            attempt(hub.members(token, tenant), Text("Members")), attempt(self.services.pool.quotas(token), Text("Limits of members"))
        )
        invitations = await attempt(hub.invitations(token, tenant), Text("Invitations")) if self.changes else Section(())
        limits = {one.user: one for one in quotas.content or () if one.user is not None and one.tenant == tenant}
        values = {"members": members, "quotas": quotas, "limits": limits, "invitations": invitations, "form": form or InvitationForm()}
        told = {"problem": problem, "saved": saved, "made": made, "link": link, "mailed": mailed}
        self.show("tenant_people.html", changes=self.changes, roles=invitation_forms.ROLES, **values, **told)


class MemberPage(PeopleDesk):
    """``GET tenant/people/{name}``: one member; ``POST`` sets the role or the limits, or removes the person."""

    page = "tenant_member"

    async def get(self, name: str) -> None:
        self.check_changes()
        await self._show(name)

    async def post(self, name: str) -> None:
        self.check_changes()
        if "role" in self.request.body_arguments:
            await self._set_role(name)
        elif "remove" in self.request.body_arguments:
            await self._remove(name)
        else:
            await self._set_limits(name)

    async def _set_role(self, name: str) -> None:
        role = self.get_body_argument("role")[:FIELD_CHARACTERS_MAX]
        try:
            await self.services.people.set_role(self.token, self.tenant, name, role)
        except (UpstreamRefused, UpstreamUnavailable) as error:
            await self._show(name, role=(role, self.refuse(error)))
            return
        self.tell("owner_set_role", name)
        await self._show(name, saved=Text("The role of %(name)s is saved. It counts from now on.", name=name))

    async def _remove(self, name: str) -> None:
        try:
            await self.services.people.remove_member(self.token, self.tenant, name)
        except (UpstreamRefused, UpstreamUnavailable) as error:
            await self._show(name, removal=self.refuse(error))
            return
        self.tell("owner_removed_member", name)
        self.redirect(f"{self.services.settings.prefix}tenant/people", status=HTTPStatus.SEE_OTHER)

    async def _set_limits(self, name: str) -> None:
        typed = {field: self.get_body_argument(field, "")[:FIELD_CHARACTERS_MAX] for field in QUOTA_FIELDS}
        stamp = self.get_body_argument("stamp", "")
        body, problems = quota_forms.read_bounds(typed)
        form = TermForm("quota", typed, stamp, problems)
        if problems:
            self.set_status(HTTPStatus.BAD_REQUEST)
            await self._show(name, form)
            return
        try:
            await self.services.pool.set_quota(self.token, self.tenant, name, body, expecting(stamp))
        except (UpstreamRefused, UpstreamUnavailable) as error:
            said = self.refuse(error)
            await self._show(name, await self._renewed(name, form) if overtaken(error) else refused(form, said))
            return
        self.tell("owner_set_limits", name)
        await self._show(name, saved=Text("What %(name)s is held to is saved. It counts from now on.", name=name))

    async def _renewed(self, name: str, form: TermForm) -> TermForm:
        """What was typed, over what somebody else saved meanwhile: saved again, it is meant."""
        found = await attempt(self.services.pool.quota(self.token, self.tenant, name), Text("The quota"))
        stamp = "" if found.content is None else stamp_of(found.content.etag)
        return TermForm("quota", form.values, stamp, {"form": found.problem or STALE})

    async def _show(
        self, name: str, form: TermForm | None = None, *, role: tuple[str, Text | None] | None = None, removal: Text | None = None,
        saved: Text | None = None,
    ) -> None:  # fmt: skip
        members, quota = await asyncio.gather(
            attempt(self.services.people.members(self.token, self.tenant), Text("Members")),
            attempt(self.services.pool.quota(self.token, self.tenant, name), Text("Limits of members")),
        )
        member = self._member(name, members)
        if form is None and quota.content is not None:
            form = _filled(quota.content)
        chosen, fault = role or (member.role, None)
        values = {"quota": quota, "form": form, "chosen": chosen, "role_problem": fault, "removal": removal, "saved": saved}
        at = f"{self.services.settings.prefix}tenant/people/{quote(name, safe='')}"
        self.show("tenant_member.html", member=member, at=at, roles=invitation_forms.ROLES, **values)

    def _member(self, name: str, members: Section[tuple[Member, ...]]) -> Member:
        """Raises Problem."""
        if members.problem is not None:
            raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, Text("Not right now"), members.problem)
        for member in members.content or ():
            if member.name == name:
                return member
        sentence = Text("%(name)s does not belong to this tenant.", name=name[:64])
        raise Problem(HTTPStatus.NOT_FOUND, Text("No such member"), sentence)


def _filled(quota: Quota) -> TermForm:
    shown: Mapping[str, str] = quota_forms.typed(quota)
    return TermForm("quota", {name: shown[name] for name in QUOTA_FIELDS}, stamp_of(quota.etag))

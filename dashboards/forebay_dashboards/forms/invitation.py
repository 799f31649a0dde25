"""The form of an invitation, and the mail that brings its link. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from forebay_service.languages import Text
from forebay_service.people.addresses import is_address

from forebay_dashboards.rows.hub import MadeInvitation
from forebay_dashboards.text.times import moment

ROLES = ("member", "billing", "owner")
DAYS = ("1", "7", "30")
TYPED_CHARACTERS_MAX = 320


@dataclass(frozen=True)
class InvitationForm:
    """The fields, and a sentence for each that is wrong; under ``form`` what concerns no single one."""

    values: Mapping[str, str] = field(default_factory=lambda: {"role": "member", "address": "", "days": "7"})
    problems: Mapping[str, Text] = field(default_factory=dict)
    key: str = "invitation"


def judge(typed: Mapping[str, str]) -> tuple[InvitationForm, dict[str, Any]]:
    """The form, with what is wrong in it, and what it asks the hub for."""
    values = {name: typed.get(name, "").strip()[:TYPED_CHARACTERS_MAX] for name in ("role", "address", "days")}
    problems: dict[str, Text] = {}
    if values["role"] not in ROLES:
        problems["role"] = Text("Choose a role.")
    if values["days"] not in DAYS:
        problems["days"] = Text("Choose for how long the link holds.")
    if values["address"] and not is_address(values["address"]):
        problems["address"] = Text("Give one e-mail address, such as ann@example.com, or none.")
    body = {"role": values["role"], "address": values["address"] or None, "days": int(values["days"]) if "days" not in problems else 0}
    return InvitationForm(values, problems), body


def mail(made: MadeInvitation, who: str, tenant: str, link: str) -> tuple[Text, Text]:
    """The subject and the text of the mail."""
    until = f"{moment(made.expires_at_ns):%Y-%m-%d %H:%M}"
    subject = Text("%(who)s invites you to the tenant %(tenant)s", who=who, tenant=tenant)
    text = Text(
        "%(who)s invites you to the tenant %(tenant)s on Forebay, where notebooks have GPUs.\n\n"
        "Open this link to join; it holds for one person, until %(until)s UTC:\n%(link)s\n\n"
        "If you did not expect this, do nothing.\n",
        who=who,
        tenant=tenant,
        until=until,
        link=link,
    )
    return subject, text

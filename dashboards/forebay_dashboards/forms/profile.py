"""The form of whom invoices are made out to. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from forebay_service.languages import Text
from forebay_service.people.addresses import is_address

from forebay_dashboards.forms.etags import stamp_of
from forebay_dashboards.rows.billing import Profile

FIELDS = ("legal_name", "address", "tax_id", "email")


@dataclass(frozen=True)
class ProfileForm:
    """The fields, the tag of what they showed, and a sentence for each that is wrong; under ``form`` what concerns no single one."""

    values: Mapping[str, str]
    stamp: str
    problems: Mapping[str, Text] = field(default_factory=dict)
    key: str = "profile"


def filled(profile: Profile) -> ProfileForm:
    """With what holds."""
    return ProfileForm({name: getattr(profile, name) or "" for name in FIELDS}, stamp_of(profile.etag))


def judge(typed: Mapping[str, str], stamp: str) -> tuple[ProfileForm, dict[str, Any]]:
    """The form, with what is wrong in it, and what it asks for."""
    values = {name: typed[name].strip().replace("\r\n", "\n") for name in FIELDS}
    problems: dict[str, Text] = {}
    if not values["legal_name"]:
        problems["legal_name"] = Text("Say the name that stands on invoices.")
    if values["email"] and not is_address(values["email"]):
        problems["email"] = Text("Give one e-mail address, such as accounts@example.com, or none.")
    return ProfileForm(values, stamp, problems), {**values, "email": values["email"] or None}


def refused(form: ProfileForm, sentence: Text) -> ProfileForm:
    """With what billing said of it, beside the field that it names."""
    name, colon, _ = sentence.partition(":")
    return replace(form, problems={name if colon and name in form.values else "form": sentence})

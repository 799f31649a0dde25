"""Stamps of forms: the tag of what a form showed. Pool and billing compare it as they save: nobody undoes unseen what another did."""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus

from forebay_service.languages import Text

from forebay_dashboards.errors import FormError, UpstreamRefused

STAMP = re.compile(r"[\x21\x23-\x7e]{0,64}")
STALE = Text("Somebody changed this after the form was opened: what holds now stands above. Save again if you still mean what you typed.")
"""What whoever saves later is told."""
THERE = Text("There is one already: what holds now stands above. Save again if you still mean what you typed.")
"""What is told of a form that showed nothing of it."""


def stamp_of(tag: str | None) -> str:
    """A tag as a form holds it; empty where there is nothing."""
    return "" if tag is None else tag.strip('"')


def expecting(stamp: str) -> dict[str, str]:
    """The header of a change that is done only while what stands has the stamp; an empty one: while nothing does."""
    if not stamp:
        return {"If-None-Match": "*"}
    return {"If-Match": f'"{stamp}"' if STAMP.fullmatch(stamp) else '""'}


def stamp_for(whose: str, form: Mapping[str, str]) -> str:
    """The stamp of a form in which the name can be typed, if it was made for that name; else empty."""
    return form.get("stamp", "") if form.get("whose") == whose else ""


def number_in(text: str) -> int:
    """The number of what a button of a list stands for. Raises FormError."""
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise FormError(Text("Choose one from the list."))
    return int(text)


def overtaken(error: Exception) -> bool:
    """Whether something was refused because what stands is not what the form showed."""
    return isinstance(error, UpstreamRefused) and error.status == HTTPStatus.PRECONDITION_FAILED

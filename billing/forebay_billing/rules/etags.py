"""Changes that expect what they change to be as somebody read it: see :mod:`forebay_service.preconditions`."""

from __future__ import annotations

from forebay_service.preconditions import MISMATCH, Precondition

from forebay_billing.errors import PreconditionFailed


def check_expected(expected: Precondition, tag: str | None) -> None:
    """To be called in the transaction of the change; ``tag`` is of what stands, None where nothing does. Raises PreconditionFailed."""
    if not expected.holds(tag):
        raise PreconditionFailed(MISMATCH)


def version_tag(version: int) -> str:
    """The tag of something whose last version has this number."""
    return f'"{version}"'

"""E-mail addresses: one rule of what counts as an address, wherever somebody gives one.

An address is a single ``addr-spec`` (RFC 5322) of plain ASCII, without a name, quotes, comments or encoded words.
"""

from __future__ import annotations

from typing import Annotated

import email_validator
from email_validator import EmailNotValidError, validate_email
from pydantic import AfterValidator, StringConstraints

ADDRESS_CHARACTERS_MAX = 254
"""Of an envelope's path without its brackets (RFC 5321, 4.5.3.1.3)."""
ENCODED_WORD = "=?"
"""Begins an encoded word (RFC 2047), which a mail program replaces by what it decodes, such as a comma and another address."""

for _domain in ("local", "localhost", "test"):  # mail of one host or network has such domains; the library tells how to allow them
    email_validator.SPECIAL_USE_DOMAIN_NAMES.remove(_domain)


def address_of(text: str) -> str:
    """The one address that the text is, its domain in ASCII. Raises ValueError."""
    if ENCODED_WORD in text:
        raise ValueError("an address has no encoded words")
    try:
        found = validate_email(
            text, allow_smtputf8=False, check_deliverability=False, globally_deliverable=False, strict=True
        ).ascii_email
    except EmailNotValidError as error:
        raise ValueError(str(error)) from None
    if found is None:
        raise ValueError("an address is plain ASCII before its @")
    return found


def is_address(text: str) -> bool:
    """Whether the text is one address."""
    try:
        address_of(text)
    except ValueError:
        return False
    return True


Address = Annotated[str, StringConstraints(min_length=3, max_length=ADDRESS_CHARACTERS_MAX), AfterValidator(address_of)]
"""In bodies and settings."""

"""What a notebook says, in the reader's language: one catalogue a language, English where it has no entry."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping
from importlib.resources import files
from typing import TYPE_CHECKING

from forebay.errors import ForebayError, PoolRefused

if TYPE_CHECKING:
    from forebay_wire.messages import Cause, Explained

LANGUAGES = ("en", "ko")


def language_of(locale: str) -> str:
    """The catalogue for a locale such as ``ko_KR.UTF-8`` or ``ko-KR``."""
    name = locale.replace("-", "_").partition("_")[0].lower()
    return name if name in LANGUAGES else LANGUAGES[0]


def language_here(environment: Mapping[str, str] = os.environ) -> str:
    """That of the process."""
    return language_of(next((environment[name] for name in ("LC_ALL", "LC_MESSAGES", "LANG") if environment.get(name)), ""))


@functools.cache
def catalogue(language: str) -> dict[str, str]:
    """All texts of a language."""
    texts: dict[str, str] = json.loads((files(__name__) / f"{language}.json").read_text(encoding="utf-8"))
    return texts


class Texts:
    """The texts of one language, which may change while the process runs."""

    def __init__(self, language: str) -> None:
        self.language = language

    def __call__(self, key: str, **values: object) -> str:
        known = catalogue(self.language)
        return (known[key] if key in known else catalogue(LANGUAGES[0])[key]).format(**values)

    def reason(self, message: Explained) -> str:
        """What the pool gave as the reason."""
        return message.said(self.language)

    def cause(self, cause: Cause | None, sent: str | None) -> str | None:
        """A cause in a row of a service; as sent where there is none, or one that is not known here."""
        return (None if cause is None else cause.said(self.language)) or sent

    def error(self, error: ForebayError) -> str:
        """What a service refused, by its cause or its code; English where the error is this package's own."""
        said, known = self.cause(error.cause, None), catalogue(self.language)
        if said is None and isinstance(error, PoolRefused) and self.language != LANGUAGES[0]:
            said = known.get(f"refused_{error.code}")
        return said or str(error)

    def word(self, text: str) -> str:
        """A word of ours in this language; any other text as it is."""
        return catalogue(self.language).get(text, text)

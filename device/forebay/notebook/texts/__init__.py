"""What a notebook says, in the reader's language: one catalogue a language, English where it has no entry."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping
from importlib.resources import files

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

    def word(self, text: str) -> str:
        """A word of ours in this language; any other text as it is."""
        return catalogue(self.language).get(text, text)

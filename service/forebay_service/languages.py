"""The languages of the pages: English in the source, others by gettext catalogues, which are read from their ``.po`` files.

Texts that Python makes are :class:`Text`: strings that are English for logs and programs, and in the reader's language on a page.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import date
from functools import cache
from gettext import GNUTranslations, NullTranslations
from importlib import resources
from io import BytesIO
from typing import Any
from urllib.parse import urlsplit

from babel import Locale
from babel.dates import format_skeleton
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po
from markupsafe import Markup, escape

SOURCE = "en"
"""The language that texts are written in."""
COOKIE = "forebay_language"
"""Holds the visitor's explicit choice."""
COOKIE_SETTINGS: dict[str, Any] = {"path": "/", "max_age": 365 * 86400, "httponly": True, "samesite": "Lax"}
"""For the whole site: JupyterHub's pages read it as ours do."""
ACCEPTED_CHARACTERS_MAX = 1000
"""Characters that are read of a browser's ``Accept-Language``."""
NAMED_MAX = 3
"""A sentence names so many of several."""

_WEIGHT = re.compile(r"q=(1(?:\.0{0,3})?|0(?:\.[0-9]{0,3})?)")


class Catalogues(Mapping[str, NullTranslations]):
    """The catalogue of each language. It is read when it is first used: services that make no page need none."""

    def __init__(self) -> None:
        self._folder = resources.files("forebay_service").joinpath("locale")
        self._read: dict[str, NullTranslations] = {SOURCE: NullTranslations()}
        self._languages = (SOURCE, *sorted(entry.name for entry in self._folder.iterdir() if entry.is_dir()))

    def __getitem__(self, language: str) -> NullTranslations:
        if language not in self._read:
            if language not in self._languages:
                raise KeyError(language)
            self._read[language] = self._of(language)
        return self._read[language]

    def __iter__(self) -> Iterator[str]:
        return iter(self._languages)

    def __len__(self) -> int:
        return len(self._languages)

    def _of(self, language: str) -> NullTranslations:
        with self._folder.joinpath(language, "LC_MESSAGES", "forebay.po").open("rb") as file:
            catalogue = read_po(file, locale=language)
        compiled = BytesIO()
        write_mo(compiled, catalogue)
        compiled.seek(0)
        return GNUTranslations(compiled)


CATALOGUES = Catalogues()
NAMES = {language: Locale.parse(language).get_display_name() or language for language in CATALOGUES}
"""Each language as it calls itself."""

_reader: ContextVar[str] = ContextVar("language of the reader", default=SOURCE)


@contextmanager
def reading(language: str) -> Iterator[None]:
    """While it is open, pages are written in the language, which is one of CATALOGUES."""
    before = _reader.set(language)
    try:
        yield
    finally:
        _reader.reset(before)


def language_of(chosen: str | None, accepted: str) -> str:
    """The visitor's explicit choice, else what the browser would rather read (the header Accept-Language), else English."""
    if chosen is not None and chosen in CATALOGUES:
        return chosen
    ranked: list[tuple[float, str]] = []
    for part in accepted[:ACCEPTED_CHARACTERS_MAX].split(","):
        tag, *parameters = (word.strip().lower() for word in part.split(";"))
        weights = [float(match[1]) for word in parameters if (match := _WEIGHT.fullmatch(word))]
        ranked.append((weights[0] if weights else 1.0, tag.partition("-")[0]))
    wanted = [language for weight, language in sorted(ranked, key=lambda one: -one[0]) if weight > 0]
    return next((language for language in wanted if language in CATALOGUES), SOURCE)


def came_from(referrer: str, prefix: str, otherwise: str) -> str:
    """The page under ``prefix`` that a browser made its choice on, without the host. Pure."""
    parts = urlsplit(referrer)
    if not parts.path.startswith(prefix):
        return otherwise
    return parts.path + (f"?{parts.query}" if parts.query else "")


class Text(str):
    """A text for people, with ``%(name)s`` where values stand. As a string it is English; templates write it in the reader's language.

    A value may be a text itself. A sign of per cent is written twice.
    """

    _translate: Callable[[str], str]

    def __new__(cls, message: str, /, **values: object) -> Text:
        return cls.made(message % values, lambda language: CATALOGUES[language].gettext(message) % _in(language, values))

    @classmethod
    def made(cls, english: str, translate: Callable[[str], str]) -> Text:
        """A text that another way of translating makes, by language; the source's language is never asked for."""
        text = super().__new__(cls, english)
        text._translate = translate
        return text

    def said(self, language: str) -> str:
        """The text in one of CATALOGUES."""
        return str(self) if language == SOURCE else self._translate(language)

    def __html__(self) -> Markup:
        return escape(self.said(_reader.get()))


def plural(one: str, many: str, count: int, /, **values: object) -> Text:
    """The text that fits the count, which may stand in it as ``%(count)s``."""
    given = {"count": f"{count:,}", **values}
    english = (one if count == 1 else many) % given
    return Text.made(english, lambda language: CATALOGUES[language].ngettext(one, many, count) % _in(language, given))


def in_context(context: str, message: str, /) -> Text:
    """A word that means several things, and which of them."""
    return Text.made(message, lambda language: CATALOGUES[language].pgettext(context, message))


def as_sent(sentence: str, otherwise: Text | None = None) -> Text:
    """What a service says in English: other languages have what its code means, where it has one that we know."""
    return Text.made(sentence, lambda language: sentence if otherwise is None else otherwise.said(language))


def listed(texts: Iterable[Text]) -> Text:
    """Texts one after the other."""
    known = tuple(texts)
    return Text.made(", ".join(known), lambda language: ", ".join(text.said(language) for text in known))


def wait_of(seconds: float) -> Text:
    """How long a wait lasts as a person would say it, a part of a sentence; `forebay.waiting` has the same for notebooks and commands."""
    minutes = seconds / 60
    if seconds <= 5:
        return Text("a few seconds")
    if seconds <= 50:
        return Text("about %(count)s s", count=10 * math.ceil(seconds / 10))
    if minutes < 1.5:
        return Text("about a minute")
    if minutes < 57.5:
        count = math.floor(minutes + 0.5) if minutes < 12.5 else 5 * math.floor(minutes / 5 + 0.5)
        return Text("about %(count)s min", count=count)
    return Text("about an hour") if minutes < 90 else Text("about %(count)s h", count=math.floor(minutes / 60 + 0.5))


def either(names: Sequence[str]) -> Text:
    """``one or two or three``, and of more how many others there are."""
    found = as_sent(names[0] if names else "")
    for name in names[1:NAMED_MAX]:
        found = Text("%(one)s or %(other)s", one=found, other=name)
    if len(names) > NAMED_MAX:
        found = Text("%(one)s or %(other)s", one=found, other=plural("%(count)s other", "%(count)s others", len(names) - NAMED_MAX))
    return found


@cache
def month_name(first: date) -> Text:
    """A month and its year."""
    return Text.made(f"{first:%B %Y}", lambda language: format_skeleton("yMMMM", first, locale=language))


def now_gettext(message: str) -> str:
    """For templates: the message in the reader's language, its values yet to be put in."""
    return CATALOGUES[_reader.get()].gettext(message)


def now_ngettext(one: str, many: str, count: int) -> str:
    """As :func:`now_gettext`, for a count."""
    return CATALOGUES[_reader.get()].ngettext(one, many, count)


def now_pgettext(context: str, message: str) -> str:
    """As :func:`now_gettext`, for a word that means several things."""
    return CATALOGUES[_reader.get()].pgettext(context, message)


def now_said(text: str) -> str:
    """For templates that go on working with a text: what it says in the reader's language."""
    return text.said(_reader.get()) if isinstance(text, Text) else text


def now_language() -> str:
    """For templates: the language of the reader."""
    return _reader.get()


def _in(language: str, values: Mapping[str, object]) -> dict[str, object]:
    return {name: value.said(language) if isinstance(value, Text) else value for name, value in values.items()}

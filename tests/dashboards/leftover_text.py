"""Finds what a page says in Latin letters although its reader reads another script: texts of ours that were not translated."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser

SPOKEN = ("aria-label", "title", "placeholder", "alt", "data-label")
"""Attributes that a reader sees or hears."""
SILENT = ("script", "style", "textarea")
VOID = ("area", "base", "br", "col", "hr", "img", "input", "link", "meta", "rect", "source", "wbr")
NAMES = re.compile(
    r"(?<![A-Za-z])(?:Forebay|Stripe|JupyterHub|JupyterLab|YAML|CSV|PDF|FOCUS|UTC|USD|VAT|GiB|MiB|TiB|YYYY-MM|MI250|MI300X|A100|cuda:0|ms|ns|asc|desc)(?![A-Za-z])"
    r"|(?<![A-Za-z])(?:PyTorch|JAX|TensorFlow)(?![A-Za-z])"
    r"|forebay admin prices|forebay submit|forebay exec|\{\w+\}"
)
"""What is called the same in every language."""


class _Said(HTMLParser):
    """Collects the texts of a page, without those that are marked as being in another language."""

    def __init__(self, language: str) -> None:
        super().__init__()
        self.language = language
        self.texts: list[str] = []
        self._open: list[tuple[str, bool]] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        foreign = given.get("lang", self.language) != self.language
        quiet = foreign or tag in SILENT or (bool(self._open) and self._open[-1][1])
        if not quiet:
            self.texts += [value for name, value in attributes if name in SPOKEN and value]
            self.texts += json.loads(given.get("data-texts") or "{}").values()
        if tag not in VOID:
            self._open.append((tag, quiet))

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        if data.strip() and not (self._open and self._open[-1][1]):
            self.texts.append(data.strip())


def leftovers(page: str, data: Iterable[str], language: str = "ko") -> list[str]:
    """Texts of the page in which Latin words stand that are neither data nor names."""
    said = _Said(language)
    said.feed(page)
    known = sorted({re.escape(text) for text in data if re.search("[A-Za-z]", text)}, key=len, reverse=True)
    given = re.compile(rf"(?<![A-Za-z])(?:{'|'.join(known)})(?![A-Za-z])") if known else re.compile("(?!)")
    return [text for text in said.texts if re.search("[A-Za-z]{2,}", NAMES.sub(" ", given.sub(" ", text)))]


def named(answer: object, keys: frozenset[str] | None) -> Iterator[str]:
    """The strings in a JSON answer of a service that stand under these keys; None: all, and the keys themselves."""
    if isinstance(answer, dict):
        for key, value in answer.items():
            if keys is None:
                yield key
            if isinstance(value, str) and (keys is None or key in keys):
                yield value
            yield from named(value, keys)
    elif isinstance(answer, list):
        for value in answer:
            if keys is None and isinstance(value, str):
                yield value
            yield from named(value, keys)

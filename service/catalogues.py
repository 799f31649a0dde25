"""``python service/catalogues.py``: brings the catalogues of texts up to date with the source; new texts have an empty translation.

``python service/catalogues.py LANGUAGE`` begins the catalogue of another language.
"""

from __future__ import annotations

import sys
from pathlib import Path

from babel.messages.catalog import Catalog
from babel.messages.extract import extract_from_dir
from babel.messages.pofile import read_po, write_po

CHECKOUT = Path(__file__).resolve().parent.parent
FOLDER = CHECKOUT / "service" / "forebay_service" / "locale"
PACKAGES = (
    "billing/forebay_billing", "dashboards/forebay_dashboards", "hub/forebay_hub", "service/forebay_service", "spawner/forebay_spawner",
)  # fmt: skip
METHODS = [("**.py", "python"), ("**.html", "jinja2.ext:babel_extract")]
OPTIONS = {"**.html": {"newstyle_gettext": "true", "trim_blocks": "true", "lstrip_blocks": "true", "silent": "false"}}
KEYWORDS: dict[str, tuple[int | tuple[int, str], ...] | None] = {
    "_": None,
    "gettext": None,
    "ngettext": (1, 2),
    "pgettext": ((1, "c"), 2),
    "Text": None,
    "plural": (1, 2),
    "in_context": ((1, "c"), 2),
}
"""Where a text stands in a call of these."""
LINE_CHARACTERS_MAX = 140


def source() -> Catalog:
    """All texts of the source."""
    catalogue = Catalog(project="Forebay", fuzzy=False)
    for package in PACKAGES:
        for name, _line, message, comments, context in extract_from_dir(CHECKOUT / package, METHODS, OPTIONS, KEYWORDS):
            catalogue.add(message, None, [(f"{package}/{name}", 0)], auto_comments=comments, context=context)
    return catalogue


def path_of(language: str) -> Path:
    """The catalogue's file."""
    return FOLDER / language / "LC_MESSAGES" / "forebay.po"


def read(language: str) -> Catalog:
    """The catalogue as it is committed."""
    with path_of(language).open("rb") as file:
        return read_po(file, locale=language)


def write(catalogue: Catalog, language: str) -> None:
    """The catalogue, in an order that makes changes easy to read; where a text stands is told without lines."""
    path_of(language).parent.mkdir(parents=True, exist_ok=True)
    with path_of(language).open("wb") as file:
        write_po(file, catalogue, LINE_CHARACTERS_MAX, sort_by_file=True, ignore_obsolete=True, include_lineno=False, omit_header=False)


def main(languages: list[str]) -> None:
    """Writes the catalogues of these languages, or of all there are."""
    template = source()
    for language in languages or sorted(folder.name for folder in FOLDER.iterdir()):
        catalogue = read(language) if path_of(language).exists() else Catalog(locale=language, project="Forebay", fuzzy=False)
        catalogue.update(template, no_fuzzy_matching=True, update_creation_date=False)
        write(catalogue, language)
        missing = sum(1 for message in catalogue if message.id and not any(message.string if message.pluralizable else (message.string,)))
        print(f"{path_of(language).relative_to(CHECKOUT)}: {len(catalogue)} texts, {missing} without a translation")


if __name__ == "__main__":
    main(sys.argv[1:])

"""Every text of the source has its translation, and every translation its text."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "billing/forebay_billing", "dashboards/forebay_dashboards", "hub/forebay_hub", "service/forebay_service", "spawner/forebay_spawner",
)  # fmt: skip
LANGUAGES = sorted(folder.name for folder in (CHECKOUT / "service" / "forebay_service" / "locale").iterdir())
LITERALS = {"Text": 1, "plural": 2, "in_context": 2}
"""How many arguments of a call are texts of the catalogue."""

TEMPLATES = sorted((CHECKOUT / "dashboards" / "forebay_dashboards" / "templates").rglob("*.html"))
CODE = re.compile(r"\{#.*?#\}|\{% trans .*?\{% endtrans %\}|\{%.*?%\}|\{\{.*?\}\}", re.DOTALL)
TAG = re.compile(r"<[^>]*>", re.DOTALL)
SPOKEN = re.compile(r"\b(?:data-label|aria-label|placeholder|title|alt)=\"([^\"]*)\"")
APART = re.compile(r"[\w-]+=\"[^\"]*\"|[\w-]+='[^']*'|\S*/\S*")
"""Attributes that are a macro of their own, and parts of addresses."""
NAMES = {"Forebay", "CSV", "UTC", "USD", "MI", "nano", "C"}
"""The same in every language."""


def load() -> ModuleType:
    """The program that keeps catalogues up to date."""
    found = importlib.util.spec_from_file_location("catalogues", CHECKOUT / "service" / "catalogues.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def catalogues() -> ModuleType:
    return load()


def forms(texts: Any) -> tuple[str, ...]:
    return texts if isinstance(texts, tuple) else (texts,)


def keys(catalogue: Any) -> set[tuple[str | None, tuple[str, ...]]]:
    return {(message.context, forms(message.id)) for message in catalogue if message.id}


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_catalogue_holds_the_texts_of_the_source_and_no_others(catalogues: ModuleType, language: str) -> None:
    source, catalogue = keys(catalogues.source()), catalogues.read(language)
    assert len(source) > 400, "the source's texts were found"
    assert keys(catalogue) - source == set(), "remove these: python service/catalogues.py"
    assert source - keys(catalogue) == set(), "translate these: python service/catalogues.py"
    assert not catalogue.obsolete
    assert catalogue.locale is not None and str(catalogue.locale) == language


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_text_is_translated_with_the_same_values_and_markup(catalogues: ModuleType, language: str) -> None:
    wrong = []
    for message in catalogues.read(language):
        texts, translations = forms(message.id), forms(message.string)
        marks = [Counter(re.findall(r"%\(\w+\)s|<[^>]*>|%%", text)).keys() for text in (*texts, *translations)]
        odd = any("%" in re.sub(r"%\(\w+\)s|%%", "", text) for text in translations)
        if message.id and (message.fuzzy or odd or not all(translations) or any(mark != marks[0] for mark in marks)):
            wrong.append((message.id, message.string))
    assert wrong == []


@pytest.mark.parametrize("package", PACKAGES)
def test_texts_stand_in_the_call_where_they_can_be_found(package: str) -> None:
    hidden = []
    for path in sorted((CHECKOUT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in LITERALS:
                given = node.args[: LITERALS[node.func.id]]
                if not all(isinstance(argument, ast.Constant) and isinstance(argument.value, str) for argument in given):
                    hidden.append(f"{path.relative_to(CHECKOUT)}:{node.lineno}")
    assert hidden == []


def bare(template: str) -> list[str]:
    """What a template says in no language but its own."""
    plain = CODE.sub("", template)
    said = [*SPOKEN.findall(plain), *(APART.sub("", text) for text in TAG.split(plain))]
    return [text.strip() for text in said if set(re.findall(r"[A-Za-z]+", text)) - NAMES]


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_a_template_says_nothing_by_itself(template: Path) -> None:
    assert bare(template.read_text(encoding="utf-8")) == []


def test_what_a_template_says_by_itself_is_found() -> None:
    assert bare('<p class="faint">{{ _("Told") }} and {{ name }}</p>') == ["and"]
    assert bare('<input placeholder="why" value="kept">{% if a %}Nothing{% endif %}') == ["why", "Nothing"]
    assert bare('<p title="{{ _("Told") }}">{% trans a=b %}One <a href="x">two</a>{% endtrans %} Forebay</p>') == []

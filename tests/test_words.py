"""Words that the project has retired are in no new name of a module, class or function of product code.

STYLE: the field's word before a metaphor. The counts are those of names that are left; they only ever fall.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from native_sources import ROOT, classes, functions
from script_sources import scripts
from syntax_trees import tree_of

PACKAGES = ("wire", "device", "jax", "tf", "worker", "service", "pool", "billing", "hub", "spawner", "dashboards", "admin", "lab")
GENERATED = {"build", "node_modules", "lib", "labextension"}
RETIRED = {
    "again": "rerun, retry",
    "astray": "out_of_bounds",
    "barred": "rejected",
    "coming": "iteration, run",
    "keeper": "supervisor",
    "lately": "recent, activity",
    "leash": "parent_death",
    "letter": "outgoing_mail",
    "letters": "outgoing_mail",
    "look": "read, check; of pages: branding",
    "looks": "reads, checks",
    "pace": "rate_limit",
    "paces": "rate_limit",
    "roster": "links, memberships",
    "stray": "mismatch",
    "told": "reported, read",
}
LEFT = {
    "again": 14,
    "astray": 4,
    "barred": 1,
    "coming": 4,
    "keeper": 1,
    "lately": 1,
    "letter": 3,
    "look": 39,
    "looks": 3,
    "pace": 3,
    "stray": 1,
    "told": 27,
}
"""How many names still have each word."""


def parts_of(name: str) -> list[str]:
    """The words of a name, in small letters."""
    return [part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


def names_of_python(path: Path) -> Iterator[str]:
    yield path.stem
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name


def names_of_native(path: Path) -> Iterator[str]:
    yield path.stem
    yield from (found.name for found in classes(path))
    named = (re.search(r"(\w+)\s*\([^()]*(?:\([^()]*\)[^()]*)*\)[^()]*$", head) for head, _ in functions(path))
    yield from (match.group(1) for match in named if match)


def sources(*endings: str) -> list[Path]:
    found = [path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.suffix in endings]
    return [path for path in found if not GENERATED & set(path.parts) and not path.name.endswith(".d.ts")]


def names() -> Iterator[tuple[str, str]]:
    """Every name, with the file that has it."""
    for path in sources(".py"):
        yield from ((name, str(path.relative_to(ROOT))) for name in names_of_python(path))
    for path in sources(".h", ".cpp"):
        yield from ((name, str(path.relative_to(ROOT))) for name in names_of_native(path))
    for script in scripts(sources(".ts", ".tsx")):
        path = Path(script["file"])
        named = [path.stem, *(one["name"] for one in script["functions"]), *(one["name"] for one in script["classes"])]
        yield from ((name, str(path.relative_to(ROOT))) for name in named)


def test_retired_words_are_in_no_new_name() -> None:
    found: Counter[str] = Counter()
    where: dict[str, list[str]] = {word: [] for word in RETIRED}
    for name, path in names():
        for word in set(parts_of(name)) & RETIRED.keys():
            found[word] += 1
            where[word].append(f"{name} in {path}")
    more = {word: (RETIRED[word], where[word]) for word in RETIRED if found[word] > LEFT.get(word, 0)}
    assert not more, f"call these otherwise: {more}"


@pytest.mark.parametrize(
    ("name", "parts"),
    [("tells_astray", ["tells", "astray"]), ("PacesOfX2", ["paces", "of", "x"]), ("HTTPLetter", ["http", "letter"]), ("_look", ["look"])],
)
def test_a_name_is_split_into_its_words(name: str, parts: list[str]) -> None:
    assert parts_of(name) == parts

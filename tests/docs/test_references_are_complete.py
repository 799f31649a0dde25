"""What the code reads and answers is what the reference says; the settings of each service are held by its own tests."""

from __future__ import annotations

import argparse
import re
import runpy
import tomllib
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from forebay.toolkit.command import parser as forebay_parser
from forebay.toolkit.reference_models import catalogue
from forebay_pool.__main__ import main as pool_main
from forebay_service import errors
from forebay_worker.__main__ import parser as worker_parser

PACKAGES = ("wire", "device", "jax", "tf", "worker", "service", "pool", "billing", "hub", "spawner", "dashboards", "admin")
CHOSEN = {"torch", "tensorflow-cpu"}
"""What whoever sets up names: a build of PyTorch, and TensorFlow or none."""
SOURCES = (".py", ".cpp", ".h")
PREFIXES = ("FOREBAY_POOL_", "FOREBAY_BILLING_", "FOREBAY_DASHBOARDS_", "FOREBAY_EDGE_")


def options(command: argparse.ArgumentParser, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Each subcommand's words with each of its options and arguments."""
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, child in action.choices.items():
                yield (*path, name), ""
                yield from options(child, (*path, name))
        elif "--help" not in action.option_strings:
            yield from ((path, option) for option in action.option_strings)


def test_every_command_and_option_of_forebay_is_on_its_page(manual: Any) -> None:
    missing = []
    for path, option in options(forebay_parser()):
        page = manual.pages["docs/operators/commands.md" if path[:1] in (("admin",), ("node",)) else "docs/users/toolkit.md"]
        rows = [line for line in page.splitlines() if re.search(rf"`forebay {re.escape(' '.join(path))}", line)]
        if not any(option in row for row in rows):
            missing.append(f"forebay {' '.join(path)} {option}")
    assert not missing


def test_every_option_of_the_worker_and_the_pool_is_in_the_reference(manual: Any, capsys: Any) -> None:
    assert not [option for _, option in options(worker_parser()) if f"`{option}" not in manual.pages["docs/reference/worker.md"]]
    try:
        pool_main(["--help"])
    except SystemExit:
        pass
    told = set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) - {"--help"}
    assert "--embedded" in told
    assert not [option for option in told if option not in manual.pages["docs/reference/pool.md"]]


def test_the_page_of_variables_lists_exactly_those_that_are_read(manual: Any, checkout: Path, column: Callable[..., list[str]]) -> None:
    folders = [checkout / name for name in (*PACKAGES, "deploy")]
    files = [path for folder in folders for path in folder.rglob("*") if path.suffix in SOURCES and "build" not in path.parts]
    files.append(checkout / "Makefile")
    read = {name for path in files for name in re.findall(r"\bFOREBAY_[A-Z_]*[A-Z]\b", path.read_text(encoding="utf-8"))}
    own = {name for name in read if not name.startswith(PREFIXES) and f"{name}_" not in PREFIXES}
    listed = re.findall(r"`(FOREBAY_[A-Z_]+)`", "\n".join(column(manual.section("docs/reference/environment.md", "Variables"))))
    assert set(listed) == own
    assert len(listed) == len(set(listed))


def test_the_page_of_endpoints_is_made_of_the_tables_of_routes(manual: Any, checkout: Path) -> None:
    page_of = runpy.run_path(str(checkout / "docs" / "reference" / "endpoints.py"))["page_of"]
    written = manual.pages["docs/reference/http.md"]
    assert page_of(written) == written, "run .venv/bin/python docs/reference/endpoints.py"
    assert page_of(written.replace("`GET health`", "`GET wealth`")) == written


def test_endpoints_are_listed_on_the_page_that_is_made_and_on_no_other(manual: Any) -> None:
    listed = {name for name, text in manual.pages.items() if re.search(r"^\| `(GET|PUT|POST|DELETE) ", text, re.MULTILINE)}
    assert listed == {"docs/reference/http.md"}


def test_the_page_of_endpoints_lists_the_codes_that_all_services_have(manual: Any) -> None:
    rows = re.findall(r"\| (\d{3}) \| `(\w+)` \|", manual.section("docs/reference/http.md", "Refusals"))
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.RequestError)]
    assert [(int(status), code) for status, code in rows] == sorted((kind.status, kind.code) for kind in kinds)


def wanted(checkout: Path) -> set[str]:
    """The direct dependencies of ``requirements/*.in``."""
    lines = [line for path in (checkout / "requirements").glob("*.in") for line in path.read_text(encoding="utf-8").splitlines()]
    return {match[0].lower() for line in lines if (match := re.match(r"[\w-]+", line)) and not line.startswith("-")}


def test_every_direct_dependency_has_its_reason(manual: Any, checkout: Path, column: Callable[..., list[str]]) -> None:
    table = manual.section("docs/developers/dependencies.md", "Why each dependency is there")
    named = {name.strip() for cell in column(table) for name in cell.split(",")}
    assert named == wanted(checkout) | CHOSEN
    assert all(column(table, 1))


def test_what_a_package_asks_for_is_installed_by_set_up(checkout: Path) -> None:
    for package in PACKAGES:
        project = tomllib.loads((checkout / package / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        names = {re.split(r"[^\w-]", line)[0].lower() for line in project.get("dependencies", [])}
        assert {name for name in names if not name.startswith("forebay")} <= wanted(checkout) | CHOSEN, package


def test_every_optional_dependency_has_its_reason(checkout: Path) -> None:
    reasons = (checkout / "docs" / "developers" / "dependencies.md").read_text(encoding="utf-8")
    for package in PACKAGES:
        project = tomllib.loads((checkout / package / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        for line in chain.from_iterable(project.get("optional-dependencies", {}).values()):
            name = re.split(r"[^\w-]", line)[0]
            assert name in reasons, f"{package}: {line}"


def test_the_page_of_models_has_a_row_for_each_with_what_its_program_says(manual: Any, column: Callable[..., list[str]]) -> None:
    table = manual.section("docs/users/models.md", "The models")
    rows = list(zip(*(column(table, number) for number in range(6)), strict=True))
    expected = []
    for name, model in catalogue.models().items():
        program = model.program.read_text(encoding="utf-8")
        (batch,) = re.findall(r"Training\(__doc__, steps=\d+, batch=(\d+)\)", program)
        path = f"models/{model.program.relative_to(catalogue.FOLDER)}"
        expected.append((f"`{name}`", f"`{path}`", model.about.removesuffix("."), f"{model.memory_bytes >> 20} MiB", batch))
    assert [row[:5] for row in rows] == expected
    assert all(re.fullmatch(r"[\d,]+", row[5]) for row in rows)

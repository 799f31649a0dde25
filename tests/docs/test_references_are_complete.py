"""What the code reads and answers is what the reference says; the settings of each service are held by its own tests."""

from __future__ import annotations

import argparse
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from forebay.toolkit.command import parser as forebay_parser
from forebay_billing.service import ENDPOINTS
from forebay_pool.__main__ import main as pool_main
from forebay_pool.service import Service
from forebay_worker.__main__ import parser as worker_parser
from tornado.web import RequestHandler
from tornado.websocket import WebSocketHandler

PACKAGES = ("wire", "device", "worker", "service", "pool", "billing", "hub", "spawner", "dashboards", "admin")
SOURCES = (".py", ".cpp", ".h")
PREFIXES = ("FOREBAY_POOL_", "FOREBAY_BILLING_", "FOREBAY_DASHBOARDS_")
METHODS = ("GET", "PUT", "POST", "DELETE")


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
        page = manual.pages["docs/operators/commands.md" if path[:1] == ("admin",) else "docs/users/toolkit.md"]
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


def table_endpoints(manual: Any, service: str) -> set[tuple[str, str]]:
    """Method and path of each row of a service's table in docs/reference/http.md."""
    table = manual.pages["docs/reference/http.md"].partition(f"\n| {service} | who | what |\n")[2].partition("\n\n")[0]
    first = [re.split(r"(?<!\\)\|", line)[1] for line in table.splitlines()[1:]]
    named = [pair for cell in first for pair in re.findall(r"`(GET|PUT|POST|DELETE) ([^`?]+)(?:\?[^`]*)?`", cell)]
    return {(method, re.sub(r"\{\w+\}", "{}", path)) for method, path in named}


def code_endpoints(routes: Iterable[tuple[str, type[RequestHandler]]]) -> set[tuple[str, str]]:
    """Method and path of each route. A WebSocket is a GET."""
    found = set()
    for path, handler in routes:
        kinds = [kind for kind in handler.__mro__ if kind.__module__.startswith("forebay_")]
        answered = [method for method in METHODS if any(method.lower() in vars(kind) for kind in kinds)]
        if issubclass(handler, WebSocketHandler):
            answered = ["GET"]
        found |= {(method, path.replace("([^/]+)", "{}").replace("(.+)", "{}")) for method in answered}
    return found


def test_the_table_of_the_pool_lists_exactly_what_it_answers(manual: Any) -> None:
    assert table_endpoints(manual, "pool") == code_endpoints(Service.routes())


def test_the_table_of_billing_lists_exactly_what_it_answers(manual: Any) -> None:
    assert table_endpoints(manual, "billing") == code_endpoints(ENDPOINTS)


def wanted(checkout: Path) -> set[str]:
    """The direct dependencies of ``requirements/*.in``."""
    lines = [line for path in (checkout / "requirements").glob("*.in") for line in path.read_text(encoding="utf-8").splitlines()]
    return {match[0].lower() for line in lines if (match := re.match(r"[\w-]+", line)) and not line.startswith("-")}


def test_every_direct_dependency_has_its_reason(manual: Any, checkout: Path, column: Callable[..., list[str]]) -> None:
    table = manual.section("CONTRIBUTING.md", "Why each dependency is there")
    named = {name.strip() for cell in column(table) for name in cell.split(",")}
    assert named == wanted(checkout) | {"torch"}
    assert all(column(table, 1))


def test_what_a_package_asks_for_is_installed_by_set_up(checkout: Path) -> None:
    for package in PACKAGES:
        project = tomllib.loads((checkout / package / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        names = {re.split(r"[^\w-]", line)[0].lower() for line in project.get("dependencies", [])}
        assert {name for name in names if not name.startswith("forebay")} <= wanted(checkout) | {"torch"}, package


def test_every_optional_dependency_has_its_reason(checkout: Path) -> None:
    reasons = (checkout / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for package in PACKAGES:
        project = tomllib.loads((checkout / package / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        for line in chain.from_iterable(project.get("optional-dependencies", {}).values()):
            name = re.split(r"[^\w-]", line)[0]
            assert name in reasons, f"{package}: {line}"

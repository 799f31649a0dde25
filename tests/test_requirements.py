"""The pins of ``requirements`` are of what is wanted now: who adds a package runs ``requirements/lock.sh``. Nothing here asks an index."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

FOLDER = Path(__file__).resolve().parent.parent / "requirements"
LOCKS = ("dev", "server", "notebook", "release", "helm", "grafana")
"""What ``lock.sh`` makes."""
OF_DEV = ("server", "notebook")
"""Locks whose versions are those of ``dev.txt``: what is tested is what is installed."""


def wanted(name: str) -> list[Requirement]:
    """What ``NAME.in`` asks for, with what it takes in of others."""
    found = []
    for line in (FOLDER / f"{name}.in").read_text(encoding="utf-8").splitlines():
        text = line.partition("#")[0].strip()
        if text.startswith("-r "):
            found += wanted(text.removeprefix("-r ").removesuffix(".in").strip())
        elif text:
            found.append(Requirement(text))
    return found


def pinned(name: str) -> dict[str, str]:
    """The versions of ``NAME.txt`` by package."""
    lines = [Requirement(line) for line in (FOLDER / f"{name}.txt").read_text(encoding="utf-8").splitlines() if line.strip()]
    return {canonicalize_name(one.name): next(iter(one.specifier)).version for one in lines}


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_pins_all_that_is_wanted_at_a_version_that_is_wanted(name: str) -> None:
    pins, wants = pinned(name), {canonicalize_name(one.name): one for one in wanted(name)}
    missing = wants.keys() - pins.keys()
    assert not missing, f"run requirements/lock.sh: {name}.txt lacks {missing}"
    others = [f"{one} is {pins[package]}" for package, one in wants.items() if pins[package] not in one.specifier]
    assert not others, f"run requirements/lock.sh: in {name}.txt {others}"


@pytest.mark.parametrize("name", OF_DEV)
def test_what_is_installed_has_the_versions_that_are_tested(name: str) -> None:
    tested = pinned("dev")
    others = {package: version for package, version in pinned(name).items() if tested.get(package) != version}
    assert not others, f"run requirements/lock.sh: dev.txt has not {others}"


@pytest.mark.parametrize("name", LOCKS)
def test_what_is_excluded_is_in_no_lock(name: str) -> None:
    lines = [line for line in (FOLDER / "excluded.txt").read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    excluded = {canonicalize_name(Requirement(line).name) for line in lines}
    assert excluded
    assert not excluded & pinned(name).keys()

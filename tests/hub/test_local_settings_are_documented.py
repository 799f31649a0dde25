"""Every setting of ``deploy/local`` and of the Makefile is in ``docs/operators/local.md``."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from forebay_hub.logins import LoginsAuthenticator
from forebay_spawner.local import LocalVirtualGpuSpawner
from forebay_spawner.mixin import VirtualGpuMixin

CHECKOUT = Path(__file__).resolve().parents[2]
LOCAL = CHECKOUT / "deploy" / "local"
PAGE = (CHECKOUT / "docs" / "operators" / "local.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    found = re.search(rf"^### {re.escape(title)}\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, f"there is no section {title}"
    return found[1]


@pytest.mark.parametrize("name", sorted(path.name for path in LOCAL.glob("*.toml")))
def test_every_setting_of_a_configuration_file_has_a_row(name: str) -> None:
    settings = tomllib.loads((LOCAL / name).read_text(encoding="utf-8"))
    table = section(name)
    missing = [key for key in settings if f"| `{key}" not in table]
    assert not missing


def test_every_variable_of_the_makefile_has_a_row() -> None:
    variables = re.findall(r"^(\w+) \?=", (CHECKOUT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert variables
    assert not [name for name in variables if f"| `{name}` |" not in PAGE]


@pytest.mark.parametrize("owner", [VirtualGpuMixin, LocalVirtualGpuSpawner, LoginsAuthenticator])
def test_every_trait_of_ours_has_a_row(owner: type) -> None:
    table = section("jupyterhub_config.py")
    own = [name for name, trait in owner.class_own_traits(config=True).items() if trait.this_class is owner]  # type: ignore[attr-defined]
    assert own
    assert not [name for name in own if f"`{owner.__name__}.{name}`" not in table]


def test_files_that_the_page_names_exist() -> None:
    named = re.findall(r"`(deploy/local[^`*]*)`", PAGE)
    assert named
    assert not [path for path in named if not (CHECKOUT / path).exists()]

"""The wheel of the extension: plain files where JupyterLab looks for them, with the licences of what is in them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from lab_installation import BUILT, EXTENSION, ROOT

HOME = f"data/share/jupyter/labextensions/{EXTENSION}/"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What the wheel lays below JupyterLab's folder of extensions, and what else it has."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "-q", "-w", str(folder), str(ROOT / "lab")]
    subprocess.run(command, check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        return {re.sub(r"^forebay_lab-[\d.]+\.data/", "", name): opened.read(name) for name in opened.namelist()}


def test_the_wheel_has_the_built_files_and_no_source(files: dict[str, bytes]) -> None:
    laid = {name.removeprefix(HOME) for name in files if name.startswith(HOME)}
    built = {str(path.relative_to(BUILT)) for path in BUILT.rglob("*") if path.is_file() and path.suffix != ".orig"}
    assert laid == built | {"install.json"}
    assert not [name for name in files if re.search(r"\.tsx?$|node_modules|\.map$", name)]


def test_jupyterlab_is_told_of_an_entry_that_is_there(files: dict[str, bytes]) -> None:
    package = json.loads(files[HOME + "package.json"])
    assert HOME + package["jupyterlab"]["_build"]["load"] in files
    assert package["version"] in (ROOT / "lab" / "pyproject.toml").read_text(encoding="utf-8")


def test_licences_of_what_is_bundled_are_kept(files: dict[str, bytes]) -> None:
    licences = json.loads(files[HOME + "static/third-party-licenses.json"])["packages"]
    assert licences and all(one["licenseId"] and one["extractedText"] for one in licences)
    assert not [one["name"] for one in licences if one["name"].startswith(("@jupyterlab/", "react"))], "JupyterLab provides those"


def test_the_lock_names_no_registry() -> None:
    text = (ROOT / "lab" / "package-lock.json").read_text(encoding="utf-8")
    assert '"resolved"' not in text and '"integrity"' in text


def test_no_part_of_a_front_end_is_required() -> None:
    source = (Path(ROOT) / "lab" / "src" / "index.ts").read_text(encoding="utf-8")
    assert "optional: [" in source and "requires:" not in source

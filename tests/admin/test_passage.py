"""``forebay admin init`` says where the accounts of its units would not reach a Python, before a unit fails to start."""

from __future__ import annotations

import sys
import tempfile
import venv
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from forebay.toolkit.command import main
from forebay_admin.host import init, passage
from forebay_admin.host.answers import Answers
from forebay_admin.host.layout import Layout


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Others pass all of it, which they do not with pytest's own folders."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def environment(folder: Path, python: Path) -> Path:
    """As ``python -m venv`` makes one: its Python is a link."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(python)
    return folder


def told(prefix: Path, notebook: Path | None = None) -> list[str]:
    return passage.warnings(replace(Answers("gpu.example.org"), notebook=str(notebook or prefix)), Layout(Path("/"), prefix))


def test_a_python_of_the_system_is_fine(open_folder: Path) -> None:
    system = open_folder / "usr" / "bin"
    system.mkdir(parents=True)
    (system / "python3").touch(mode=0o755)
    assert told(environment(open_folder / "services", system / "python3")) == []


def test_a_python_behind_links_below_a_closed_folder_is_told_with_that_folder(open_folder: Path) -> None:
    """As an environment that was made with a Python of root's own, below root's home, is."""
    shut = open_folder / "root"
    (shut / "versions" / "3.11" / "bin").mkdir(parents=True)
    (shut / "versions" / "3.11" / "bin" / "python3.11").touch(mode=0o755)
    (open_folder / "shims").symlink_to(shut / "versions" / "3.11")
    prefix = environment(open_folder / "services", open_folder / "shims" / "bin" / "python3.11")
    assert told(prefix) == []
    shut.chmod(0o700)
    first, second = told(prefix)
    assert first == second and f"leads through {shut}, which the accounts" in first
    fine = environment(open_folder / "fine", Path("/usr/bin/env"))
    assert [str(prefix) in one for one in told(fine, prefix)] == [True], "the notebooks' too"


def test_what_the_units_hide_is_closed_whatever_its_mode(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = open_folder / "home"
    home.mkdir()
    (home / "python").touch(mode=0o755)
    monkeypatch.setattr(passage, "HOMES", (home,))
    (one, _) = told(environment(open_folder / "services", home / "python"))
    assert f"leads through {home}" in one


def test_links_in_a_circle_end(open_folder: Path) -> None:
    (open_folder / "a").symlink_to(open_folder / "b")
    (open_folder / "b").symlink_to(open_folder / "a")
    assert told(environment(open_folder / "services", open_folder / "a")) == []


def test_init_tells_it_and_goes_on(open_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (open_folder / "shut").mkdir(mode=0o700)
    (open_folder / "shut" / "python").touch(mode=0o755)
    prefix = environment(open_folder / "services", open_folder / "shut" / "python")
    made = Layout
    monkeypatch.setattr(init, "Layout", lambda root: made(root, prefix))
    (open_folder / "answers.toml").write_text('name = "gpu.example.org"\ndevices = "cpu"\n')
    assert main(["admin", "init", "--answers", str(open_folder / "answers.toml"), "--root", str(open_folder / "host")]) == 0
    said = capsys.readouterr()
    assert said.err.startswith(f"warning: {prefix}/bin/python leads through {open_folder}/shut") and "Next:" in said.out


def test_a_venv_of_this_python_is_judged_as_the_kernel_would(open_folder: Path) -> None:
    venv.create(open_folder / "real", symlinks=True)
    real = Path(sys.executable).resolve()
    hidden = any(real.is_relative_to(home) for home in passage.HOMES) or any(not one.stat().st_mode & 1 for one in real.parents)
    assert bool(told(open_folder / "real")) == hidden

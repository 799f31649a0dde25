"""What ``make setup`` and ``make up`` say where something is missing: one sentence with the fix."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Barrier, Event
from types import ModuleType
from typing import Any

import pytest

LOCAL = Path(__file__).resolve().parents[2] / "deploy" / "local"
WITHOUT_ENSUREPIP = """
import importlib.util

find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "ensurepip" else find_spec(name, package)
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout in which nothing is installed."""
    shutil.copytree(LOCAL, tmp_path / "deploy" / "local", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """deploy/local/install.py as a module."""
    monkeypatch.syspath_prepend(str(LOCAL))
    spec = importlib.util.spec_from_file_location("install", LOCAL / "install.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "install", module)
    spec.loader.exec_module(module)
    return module


def run(script: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(script), *arguments], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


def refused(script: Path, *arguments: str, **environment: str) -> str:
    """The one line on standard error of a run that refuses."""
    finished = run(script, *arguments, **environment)
    assert finished.returncode == 1, finished.stdout
    lines = finished.stderr.splitlines()
    assert len(lines) == 1, finished.stderr
    return lines[0]


def machine(install: ModuleType, **facts: Any) -> Any:
    good = {
        "python": (3, 11),
        "modules": frozenset({"venv", "ensurepip"}),
        "compiler": "/usr/bin/c++",
        "headers": True,
        "free_bytes": 10 * 2**30,
        "npm": "/usr/bin/npm",
    }
    return install.Machine(**{**good, **facts})


def test_a_machine_with_everything_is_accepted(install: ModuleType) -> None:
    assert machine(install).refusal(installed=False) is None
    assert machine(install, free_bytes=0).refusal(installed=True) is None


def test_npm_is_needed_for_the_tests_alone(install: ModuleType) -> None:
    assert machine(install, npm=None).refusal(installed=False) is None
    assert "There is no npm" in machine(install, npm=None).refusal(installed=False, tested=True)


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ({"python": (3, 10)}, "Python 3.10 is too old; install Python 3.11 or newer and run: make setup PYTHON=python3.11"),
        ({"modules": frozenset({"venv"})}, "Python's venv module is missing; on Debian or Ubuntu run: apt install python3.11-venv"),
        ({"compiler": None}, "There is no C++ compiler; on Debian or Ubuntu run: apt install g++"),
        ({"headers": False}, "Python's C headers are missing; on Debian or Ubuntu run: apt install python3.11-dev"),
        ({"free_bytes": 2**30}, "Only 1.0 GiB are free"),
    ],
)
def test_what_a_machine_lacks_is_one_sentence_with_the_fix(install: ModuleType, facts: dict[str, Any], sentence: str) -> None:
    refusal = machine(install, **facts).refusal(installed=False)
    assert sentence in refusal and "\n" not in refusal


def test_set_up_without_a_compiler_on_the_path_refuses(checkout: Path) -> None:
    line = refused(checkout / "deploy" / "local" / "install.py", PATH=str(checkout), CXX="")
    assert line.startswith("make setup: There is no C++ compiler")
    assert not (checkout / ".venv").exists()


def test_set_up_on_a_python_without_venv_refuses(checkout: Path) -> None:
    (checkout / "sitecustomize.py").write_text(WITHOUT_ENSUREPIP)
    line = refused(checkout / "deploy" / "local" / "install.py", PYTHONPATH=str(checkout))
    assert line.startswith("make setup: Python's venv module is missing")


def test_a_command_that_fails_shows_the_end_of_its_output_and_where_the_rest_is(checkout: Path) -> None:
    finished = run(checkout / "deploy" / "local" / "install.py", "--torch", "no-such-package==0", PIP_NO_INDEX="1", PIP_FIND_LINKS="")
    assert finished.returncode == 1
    assert "[1/" in finished.stdout and finished.stdout.endswith("failed\n")
    assert "No matching distribution found for no-such-package==0" in finished.stderr
    assert f"The whole log: {checkout}/build/setup.log" in finished.stderr


def test_a_full_disk_is_told_apart_from_other_failures(install: ModuleType) -> None:
    told = install.explain("ERROR: [Errno 28] No space left on device")
    assert "The disk is full; free some room" in told and "TORCH_INDEX" in told
    assert "A command failed:\n  | boom" in install.explain("boom")


def test_a_step_is_repeated_only_when_what_it_was_made_from_changes(install: ModuleType, tmp_path: Path) -> None:
    source, runs = tmp_path / "requirements.txt", []
    source.write_text("a==1")

    def step() -> Any:
        return install.Step("a step", tmp_path / "stamp", ("python", source), lambda: runs.append(source.read_text()))

    step().run()
    assert step().done
    source.write_text("a==2")
    assert not step().done
    step().run()
    assert step().done and runs == ["a==1", "a==2"]


def test_a_step_whose_result_is_gone_is_repeated(install: ModuleType, tmp_path: Path) -> None:
    step = install.Step("a step", tmp_path / "stamp", ("1",), (tmp_path / "wheels").mkdir, (tmp_path / "wheels",))
    step.run()
    assert step.done
    (tmp_path / "wheels").rmdir()
    assert not step.done


def test_a_step_that_failed_is_not_done(install: ModuleType, tmp_path: Path) -> None:
    def fail() -> None:
        raise install.SetupError("no")

    install.Step("a step", tmp_path / "stamp", ("1",), lambda: None).run()
    with pytest.raises(install.SetupError):
        install.Step("a step", tmp_path / "stamp", ("1",), fail).run()
    assert not install.Step("a step", tmp_path / "stamp", ("1",), fail).done


def test_steps_that_do_not_need_each_other_run_side_by_side(
    install: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = Barrier(2, timeout=10)
    lanes = [[install.Step(title, tmp_path / title, ("1",), both.wait)] for title in ("one", "other")]
    install.Progress(2).carry_out(lanes)
    assert all(step.done for lane in lanes for step in lane)
    assert sorted(capsys.readouterr().out.splitlines())[::2] == ["[1/2] one …", "[2/2] other …"]


def test_after_a_failure_no_other_step_begins(install: ModuleType, tmp_path: Path) -> None:
    progress, begun, failing = install.Progress(3), [], Event()

    def fail() -> None:
        failing.set()
        raise install.SetupError("no")

    def work() -> None:
        begun.append("the step meanwhile")
        assert failing.wait(10)
        while not progress.stopped:
            time.sleep(0.01)

    def step(title: str, action: Callable[[], object]) -> Any:
        return install.Step(title, tmp_path / title, ("1",), action)

    with pytest.raises(install.SetupError, match="no"):
        progress.carry_out([[step("a", work), step("b", lambda: begun.append("a later step"))], [step("c", fail)]])
    assert begun == ["the step meanwhile"]


def test_up_before_set_up_says_so(checkout: Path) -> None:
    assert refused(checkout / "deploy" / "local" / "up.py") == "make up: .venv is not set up; run: make setup"


@pytest.mark.parametrize("port", ["http", "80", "65535", "-1", "8000.0"])
def test_a_port_that_cannot_be_used_is_named(port: str) -> None:
    assert refused(LOCAL / "up.py", FOREBAY_PORT=port) == (f"make up: FOREBAY_PORT={port} cannot be used; give a number from 1024 to 65529")


def test_a_taken_port_is_named_with_who_wants_it_and_another_choice(tmp_path: Path, free_port: Callable[[], int]) -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port + 3)):
        line = refused(LOCAL / "up.py", FOREBAY_PORT=str(port), FOREBAY_STATE=str(tmp_path))
    assert line == (
        f"make up: Port {port + 3} (pool) is taken by another program; stop it, or choose other ports: make up FOREBAY_PORT={port + 1000}"
    )


def test_a_state_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    line = refused(LOCAL / "up.py", FOREBAY_STATE=str(tmp_path / "state"))
    assert "cannot be used" in line and "set FOREBAY_STATE to a folder of yours" in line


def test_help_names_every_setting() -> None:
    shown = run(LOCAL / "up.py", "--help").stdout
    assert all(setting in shown for setting in ("FOREBAY_PORT", "FOREBAY_STATE", "FOREBAY_ADDRESS"))

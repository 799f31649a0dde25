"""One's own environments, with real installations by pip of wheels that the tests make, and real kernels."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import pytest
from forebay.toolkit.command import main
from forebay.toolkit.environments.environment import prepare
from forebay.toolkit.environments.overlay import SHARED_KEY, configuration
from jupyter_client.manager import KernelManager

PYTHON = Path(sys.executable)
PATIENCE_SECONDS = 60


@dataclass
class Home:
    """Of a person, and a folder of wheels that is all that their pip knows."""

    path: Path
    wheels: Path

    @property
    def variables(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "FOREBAY_", "JUPYTER_"))}
        pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.wheels), "PIP_NO_CACHE_DIR": "1"}
        return {**kept, **pip, "HOME": str(self.path), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "SHELL": "/bin/sh", "PATH": os.defpath}

    def prepared(self, *command: str, **variables: str) -> str:
        """What a command prints that begins as notebook servers do."""
        server = [PYTHON, "-I", "-m", "forebay.toolkit.environments", *command]
        return subprocess.run(server, env={**self.variables, **variables}, cwd=self.path, capture_output=True, text=True, check=True).stdout

    def run(self, command: str, *arguments: str, environment: str = "default", fails: bool = False) -> str:
        """What a command of an environment prints."""
        ran = self._ran(str(self.of(environment) / "bin" / command), *arguments, check=not fails)
        assert not fails or ran.returncode != 0, ran.stdout
        return ran.stderr if fails else ran.stdout

    def of(self, environment: str) -> Path:
        return self.path / ".forebay" / "environments" / environment

    def listed(self) -> dict[str, Any]:
        return {row["name"]: row for row in json.loads(self.forebay("list", "--json"))}

    def forebay(self, *words: str, fails: bool = False) -> str:
        """What ``forebay env`` prints, in this process."""
        with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.redirect_stderr(printed):
            assert (main(["env", *words]) != 0) == fails, printed.getvalue()
        return printed.getvalue()

    def _ran(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        ran = subprocess.run(command, env=self.variables, cwd=self.path, capture_output=True, text=True, check=False)
        assert not check or ran.returncode == 0, ran.stdout + ran.stderr
        return ran

    def make_wheel(self, name: str, version: str = "1.0", needs: str = "", command: bool = False) -> None:
        """Of a package whose module says its version, with a command of its name where that is wanted."""
        told = f"{name}-{version}.dist-info"
        files = {
            f"{name}.py": f"import sys\n\n\ndef main():\n    print('own {name} {version}')\n\n\nVERSION = {version!r}\n",
            f"{told}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n" + (needs and f"Requires-Dist: {needs}\n"),
            f"{told}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        if command:
            files[f"{told}/entry_points.txt"] = f"[console_scripts]\n{name} = {name}:main\n"
        files[f"{told}/RECORD"] = "".join(f"{file},,\n" for file in files) + f"{told}/RECORD,,\n"
        with zipfile.ZipFile(self.wheels / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
            for file, text in files.items():
                wheel.writestr(file, text)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A new one, this process's, whose default environment is made."""
    found = Home(tmp_path / "home", tmp_path / "wheels")
    found.path.mkdir()
    found.wheels.mkdir()
    monkeypatch.setenv("HOME", str(found.path))
    monkeypatch.chdir(found.path)
    prepare()
    return found


def test_what_is_installed_is_ones_own_and_is_there_after_the_next_start_while_the_shared_environment_stays(home: Home) -> None:
    """In one folder of the home, and in no other place; Jupyter is told where it is."""
    home.make_wheel("ours_alone")
    before = sorted(path.name for path in (PYTHON.parents[1] / "lib").glob("python*/site-packages/*"))
    home.run("pip", "install", "ours_alone")
    told = home.prepared("env", JUPYTER_PATH="/opt/operators").splitlines()
    shown = f"{home.path}/.forebay/jupyter"
    assert {f"JUPYTER_PATH={shown}:/opt/operators", f"JUPYTER_CONFIG_PATH={shown}"} <= set(told)
    assert home.run("python", "-c", "import ours_alone; print(ours_alone.VERSION)") == "1.0\n"
    assert home.run("python", "-c", "import importlib.util as u; print(u.find_spec('torch').origin)").startswith(str(PYTHON.parents[1]))
    assert sorted(path.name for path in (PYTHON.parents[1] / "lib").glob("python*/site-packages/*")) == before
    assert [path.name for path in home.path.iterdir()] == [".forebay"]
    row = home.listed()["default"]
    assert row["packages"] == ["ours_alone==1.0"] and row["in_use"] and 0 < row["size_bytes"] < 4 << 20


@pytest.mark.full_sweep
def test_a_shared_package_in_another_version_goes_before_the_shared_one_and_comes_back_when_it_is_removed(home: Home) -> None:
    """So does its command; pip never touches the shared one."""
    home.make_wheel("tqdm", "999.0", command=True)
    shared = home.run("python", "-c", "import tqdm; print(tqdm.__version__)")
    home.run("pip", "install", "--upgrade", "tqdm")
    prepare()
    assert home.run("python", "-c", "import tqdm; print(tqdm.VERSION)") == "999.0\n"
    assert home.run("tqdm") == "own tqdm 999.0\n"
    home.run("pip", "uninstall", "--yes", "tqdm")
    prepare()
    assert home.run("python", "-c", "import tqdm; print(tqdm.__version__)") == shared
    assert "progress" in home.run("tqdm", "--help")


def test_another_torch_than_the_device_was_built_for_is_refused_in_one_sentence_whoever_asks_for_it(home: Home) -> None:
    home.make_wheel("torch", "2.1.0")
    home.make_wheel("wants_old", needs="torch<2.2")
    home.make_wheel("wants_any", needs="torch>=2")
    for asked in ("torch==2.1.0", "wants_old"):
        refusal = home.run("pip", "install", asked, fails=True)
        assert refusal.count("forebay: Nothing was installed: the virtual device was built for torch") == 1
    missing = home.run("pip", "install", "there-is-no-such-package", fails=True)
    assert "forebay:" not in missing, "what has nothing to do with torch is pip's to tell"
    home.run("pip", "install", "wants_any")
    assert home.listed()["default"]["packages"] == ["wants_any==1.0"]


def test_environments_by_name_are_apart_and_one_of_them_is_in_use_in_new_terminals(home: Home) -> None:
    home.make_wheel("ours_alone")
    home.forebay("create", "work")
    home.run("pip", "install", "ours_alone", environment="work")
    home.run("python", "-c", "import ours_alone", fails=True)
    home.forebay("use", "work")
    typed, shell = "command -v python\npip list --local\n", [PYTHON, "-I", "-m", "forebay.toolkit.environments"]
    terminal = subprocess.run(shell, input=typed, env=home.variables, capture_output=True, text=True, check=True)
    assert str(home.of("work") / "bin" / "python") in terminal.stdout and "ours_alone" in terminal.stdout
    assert [name for name, row in home.listed().items() if row["in_use"]] == ["work"]
    assert "There is an environment work already" in home.forebay("create", "work", fails=True)
    assert "is no name of an environment" in home.forebay("create", "../work", fails=True)
    assert "There is no environment '../work'" in home.forebay("remove", "../work", fails=True)
    home.forebay("remove", "work")
    assert list(home.listed()) == ["default"] and home.listed()["default"]["in_use"]


def test_the_default_environment_that_is_removed_is_there_again_without_packages(home: Home) -> None:
    home.make_wheel("ours_alone")
    home.run("pip", "install", "ours_alone")
    home.run("forebay", "env", "remove", "default")
    assert home.listed()["default"]["packages"] == []
    home.run("python", "-c", "import ours_alone", fails=True)


@pytest.mark.full_sweep
def test_commands_of_the_shared_environment_run_in_ones_own(home: Home) -> None:
    """``forebay run``, too, with what it starts beside it."""
    home.make_wheel("ours_alone")
    home.run("pip", "install", "ours_alone")
    (home.path / "program.py").write_text("import ours_alone, sys\nprint(ours_alone.VERSION, sys.prefix)\n")
    assert home.run("forebay", "run", "program.py") == f"1.0 {home.of('default')}\n"
    shared = configuration(home.of("default"))[SHARED_KEY]
    assert shared == str(PYTHON.parents[1]), "an environment that is made from another lies over the shared one, too"
    home.run("forebay", "env", "create", "work")
    assert configuration(home.of("work"))[SHARED_KEY] == shared


def test_jupyters_own_commands_and_pages_that_are_shared_find_their_templates_in_ones_own_environment(home: Home, kernel: Any) -> None:
    """In a kernel and in a terminal alike: an environment has no ``share/jupyter`` but that of what is installed in it."""
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# Losses")]), home.path / "a.ipynb")
    (home.of("default") / "share" / "jupyter" / "nbconvert" / "templates" / "own").mkdir(parents=True)
    (home.of("default") / "share" / "jupyter" / "nbconvert" / "templates" / "own" / "conf.json").write_text('{"base_template": "lab"}')
    running = kernel("python3")
    shares = "from pathlib import Path\nfrom forebay.toolkit.sharing.page import page_of\nprint('Losses' in page_of(Path('a.ipynb')))"
    assert running.run(shares) == "True\n"
    convert = "jupyter nbconvert --to html --template own --log-level ERROR --stdout a.ipynb | grep -c Losses"
    assert int(running.run(f"!{convert}").strip()) > 0
    shell = [PYTHON, "-I", "-m", "forebay.toolkit.environments"]
    terminal = subprocess.run(shell, input=convert, env=home.variables, capture_output=True, text=True, check=True)
    assert int(terminal.stdout.strip().splitlines()[-1]) > 0, terminal.stderr


@pytest.mark.full_sweep
def test_a_notebook_keeps_what_it_needs_and_another_home_installs_it(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home.make_wheel("ours_alone")
    home.forebay("create", "work")
    home.run("pip", "install", "ours_alone", environment="work")
    notebook = nbformat.v4.new_notebook(metadata={"kernelspec": {"name": "forebay-work", "display_name": "work"}, "kept": 1})
    nbformat.write(notebook, home.path / "a.ipynb")
    assert "No packages are recorded" in home.forebay("restore", "a.ipynb", fails=True)
    home.forebay("record", "a.ipynb")
    kept = nbformat.read(home.path / "a.ipynb", 4)
    assert kept.metadata["forebay"]["requirements"] == ["ours_alone==1.0"] and kept.metadata["kept"] == 1
    monkeypatch.setenv("HOME", str(tmp_path / "other"))
    (tmp_path / "other").mkdir()
    monkeypatch.setenv("PIP_FIND_LINKS", str(home.wheels))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert "are in the environment work" in home.forebay("restore", "a.ipynb")
    assert home.listed()["work"]["packages"] == ["ours_alone==1.0"]
    nbformat.write(nbformat.v4.new_notebook(metadata={"kernelspec": {"name": "ir", "display_name": "R"}}), home.path / "r.ipynb")
    assert "'ir' is not one of an environment" in home.forebay("record", "r.ipynb", fails=True)


def test_a_home_that_takes_nothing_keeps_no_server_from_starting(home: Home) -> None:
    other = Home(home.path / "full", home.wheels)
    other.path.mkdir()
    (other.path / ".forebay").write_text("")
    server = [PYTHON, "-I", "-m", "forebay.toolkit.environments", "echo", "begun"]
    ran = subprocess.run(server, env=other.variables, capture_output=True, text=True, check=True)
    assert ran.stdout == "begun\n" and "kernels have the shared packages alone" in ran.stderr


class Kernel:
    """Of a name, as a notebook server starts it for this home."""

    def __init__(self, home: Home, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("JUPYTER_PATH", str(home.path / ".forebay" / "jupyter"))
        self._manager = KernelManager(kernel_name=name)
        self._manager.start_kernel(env={**home.variables, "FOREBAY_URL": "http://127.0.0.1:9/"}, cwd=str(home.path))
        self._client = self._manager.client()
        self._client.start_channels()
        self._client.wait_for_ready(PATIENCE_SECONDS)

    def run(self, source: str) -> str:
        printed: list[str] = []

        def heard(message: dict[str, Any]) -> None:
            content = message["content"]
            printed.extend([content["text"]] if message["msg_type"] == "stream" else content.get("traceback", []))

        self._client.execute_interactive(source, output_hook=heard, timeout=PATIENCE_SECONDS)
        return "".join(printed)

    def close(self) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)


@pytest.fixture
def kernel(home: Home, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    begun: list[Kernel] = []

    def go(name: str) -> Kernel:
        begun.append(Kernel(home, name, monkeypatch))
        return begun[-1]

    yield go
    for each in begun:
        each.close()


def test_pip_in_a_notebook_installs_into_the_environment_of_its_kernel(home: Home, kernel: Any) -> None:
    """Shell lines see the same one, and the virtual device shows itself as in the shared environment."""
    home.make_wheel("ours_alone")
    home.make_wheel("torch", "2.1.0")
    home.forebay("create", "work")
    work, default = kernel("forebay-work"), kernel("python3")
    told = work.run("%pip install ours_alone")
    assert "Successfully installed ours_alone-1.0" in told and "once the kernel is restarted" in told
    assert work.run("import ours_alone; print(ours_alone.VERSION)") == "1.0\n"
    assert "ours_alone" in work.run("!pip list --local")
    assert "No module named 'ours_alone'" in default.run("import ours_alone")
    refusal = default.run("%pip install torch==2.1.0")
    assert "the virtual device was built for torch" in refusal
    assert "usage: %gpu" in default.run("%gpu what")

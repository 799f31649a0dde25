"""What a notebook installs has no operators' commands, and says how to get them."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import sysconfig
from importlib.metadata import entry_points, files
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
SITE = Path(sysconfig.get_path("purelib"))
OF_SERVERS = ("sqlite3", "sqlalchemy", "forebay_admin", "forebay_pool", "forebay_billing", "forebay_service")


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Site packages in which forebay is installed from its wheel, and nothing of ours that lies in the checkout."""
    folder = tmp_path_factory.mktemp("site")
    for entry in SITE.iterdir():
        if not entry.name.startswith(("forebay_admin", "forebay_pool", "forebay_billing", "__editable__")):
            (folder / entry.name).symlink_to(entry)
    return folder


def forebay(site: Path, *words: str, beside: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The command, run without the environment's own site packages."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FOREBAY_", "JUPYTER"))}
    command = [sys.executable, "-S", "-m", "forebay", *words]
    environment = {**kept, "PYTHONPATH": os.pathsep.join(map(str, filter(None, (site, beside)))), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=site, env=environment)


def installed() -> list[Path]:
    """The Python files of forebay's wheel, from its own record."""
    return [Path(str(path.locate())) for path in files("forebay") or [] if path.suffix == ".py"]


def imported(tree: ast.AST) -> set[str]:
    """The top-level packages that a module imports, wherever in it."""
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return {name.split(".")[0] for name in names}


def test_the_notebooks_wheel_has_no_operators_command() -> None:
    paths = installed()
    assert any(path.name == "smi.py" for path in paths)
    named = {path.stem for path in (CHECKOUT / "admin" / "forebay_admin").glob("*.py")} - {"__init__", "command", "billing"}
    assert {"backup", "cluster", "tenants"} <= named
    assert not [path for path in paths if path.parent.name == "toolkit" and path.stem in named]
    sources = {path: path.read_text(encoding="utf-8") for path in paths}
    assert not [path for path, source in sources.items() if "custom:forebay:operate" in source]
    assert not [path for path, source in sources.items() if imported(ast.parse(source)) & set(OF_SERVERS)]


def test_without_the_package_the_command_says_how_to_install_it(notebook: Path) -> None:
    for words in (["admin"], ["admin", "--help"], ["admin", "nodes", "list", "--json"]):
        done = forebay(notebook, *words)
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        assert done.stderr == "forebay: Operators' commands are not installed here; `pip install forebay-admin` brings them.\n"


def test_help_lists_what_is_there(notebook: Path) -> None:
    without = forebay(notebook, "--help")
    with_it = subprocess.run([sys.executable, "-m", "forebay", "--help"], capture_output=True, text=True, timeout=120, check=True)
    assert without.returncode == 0, without.stderr
    few, all_of_them = (re.findall(r"^    (\w+) ", done.stdout, re.MULTILINE) for done in (without, with_it))
    assert [*few, "admin", "node"] == all_of_them and "doctor" in few


def test_an_unknown_command_is_still_told_by_what_there_is(notebook: Path) -> None:
    done = forebay(notebook, "administrate")
    assert done.returncode == 2 and "invalid choice: 'administrate'" in done.stderr and "admin'" not in done.stderr.partition("(")[2]


GREETING = """
def add_to(commands):
    commands.add_parser("greet", help="say hello").set_defaults(perform=lambda arguments: print("hello") or 3)
"""


def install_greeting(folder: Path, source: str) -> None:
    """A package that adds the command ``greet``."""
    (folder / "greeting.py").write_text(source)
    record = folder / "greeting-1.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: greeting\nVersion: 1\n")
    (record / "entry_points.txt").write_text("[forebay.commands]\ngreet = greeting:add_to\n")


def test_another_package_adds_a_command(notebook: Path, tmp_path: Path) -> None:
    install_greeting(tmp_path, GREETING)
    done = forebay(notebook, "greet", beside=tmp_path)
    assert (done.returncode, done.stdout) == (3, "hello\n"), done.stderr


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import no_such_module\n", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("def add_to(commands):\n    raise RuntimeError('It is too old.')\n", "RuntimeError: It is too old"),
    ],
    ids=["it cannot be imported", "it cannot add its command"],
)
def test_a_package_that_does_not_load_is_named_where_its_command_is_asked_for_and_all_others_work(
    notebook: Path, tmp_path: Path, source: str, reason: str
) -> None:
    install_greeting(tmp_path, source)
    for words in (["greet"], ["greet", "--help"]):
        done = forebay(notebook, *words, beside=tmp_path)
        assert (done.returncode, done.stdout) == (1, ""), done.stderr
        sentence = f"The command greet comes from the package greeting, which does not load ({reason}); install it again."
        assert done.stderr == f"forebay: {sentence}\n"
    helped = forebay(notebook, "--help", beside=tmp_path)
    assert helped.returncode == 0 and "doctor" in helped.stdout and not helped.stderr
    shown = forebay(notebook, "device", "list", beside=tmp_path)
    assert (shown.returncode, shown.stderr) == (0, ""), shown.stderr


def test_set_up_gives_the_package_to_servers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(CHECKOUT / "deploy" / "local"))
    import install

    ran: list[str] = []
    monkeypatch.setattr(install, "run", lambda *words: ran.append(" ".join(map(str, words))))
    install.install_services()
    install.install_notebook_packages()
    server, notebooks = ran
    assert "-e ./admin" in server and str(install.NOTEBOOK) not in server
    assert notebooks.startswith(str(install.NOTEBOOK)) and "admin" not in notebooks.replace(str(CHECKOUT), "")
    assert [found.value for found in entry_points(group="forebay.commands", name="admin")] == ["forebay_admin.command:add_to"]

"""Every command that README, CONTRIBUTING and the page on tests show does what they say."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

OURS = ("FOREBAY_", "JUPYTERHUB_", "MAKE", "MFLAGS")
COMMAND_SECONDS_MAX = 120


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """What a new user's shell has: no service of ours, an empty home and temporary folder."""
    places = {"HOME": tmp_path / "home", "TMPDIR": tmp_path / "tmp"}
    for place in places.values():
        place.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    return kept | {name: str(place) for name, place in places.items()}


def run(command: str, checkout: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """The command as typed into a shell in the checkout."""
    return subprocess.run(
        ["sh", "-c", command], cwd=checkout, env=environment, capture_output=True, text=True, check=False, timeout=COMMAND_SECONDS_MAX
    )


def steps(target: str, checkout: Path, environment: dict[str, str]) -> list[str]:
    """What ``make`` would do."""
    planned = run(f"make --dry-run {target}", checkout, environment)
    assert planned.returncode == 0, planned.stderr
    return planned.stdout.splitlines()


def check_up(checkout: Path, environment: dict[str, str]) -> None:
    """``make up`` sets up, then starts the program that the acceptance tests start."""
    acceptance = (checkout / "tests" / "acceptance" / "conftest.py").read_text(encoding="utf-8")
    (entry,) = re.findall(r"^UP = CHECKOUT / (.*)$", acceptance, re.MULTILINE)
    program = "/".join(ast.literal_eval(part) for part in entry.split(" / "))
    first, last = steps("up", checkout, environment)
    assert "deploy/local/install.py" in first
    assert last == f"exec python3 {program}"
    helped = run(f"python3 {program} --help", checkout, environment)
    assert helped.returncode == 0 and "FOREBAY_PORT" in helped.stdout


def check_setup(checkout: Path, environment: dict[str, str]) -> None:
    """``make test`` begins with it, so it has been run."""
    helped = run("python3 deploy/local/install.py --help", checkout, environment)
    assert helped.returncode == 0 and "--dev" in helped.stdout and "--torch-index" in helped.stdout
    (plain,) = steps("setup", checkout, environment)
    begins, *_ = steps("test", checkout, environment)
    assert begins == f"{plain} --dev"


def check_test(checkout: Path, environment: dict[str, str]) -> None:
    """It runs each room's tests once; ``.ci/run`` calls it."""
    planned = steps("test", checkout, environment)
    assert "deploy/local/install.py" in planned[0] and planned[0].endswith("--dev")
    runs = [shlex.split(step, comments=True) for step in planned if ".venv/bin/pytest" in step]
    for room in {f"tests/{file.relative_to(checkout / 'tests').parts[0]}" for file in (checkout / "tests").rglob("test_*.py")}:
        assert sum(room in words for words in runs) == 1, room
    assert "make test" in (checkout / ".ci" / "run").read_text(encoding="utf-8")


def check_lint(checkout: Path, environment: dict[str, str]) -> None:
    planned = "\n".join(steps("lint", checkout, environment))
    assert all(tool in planned for tool in ("ruff check", "mypy", "lint-imports"))


def check_check(checkout: Path, environment: dict[str, str]) -> None:
    planned = "\n".join(steps("check", checkout, environment))
    assert "ruff check" in planned and "tests/test_tidy.py" in planned


def check_room(checkout: Path, environment: dict[str, str]) -> None:
    planned = "\n".join(steps("test-billing", checkout, environment))
    assert planned.split().count("tests/billing") == 2, "and once more what failed"


DESCRIBE_STANDIN = "PYTHONPATH=$(.venv/bin/python tests/standin/build.py) .venv/bin/python -m forebay_worker --describe"


def check_standin(checkout: Path, environment: dict[str, str]) -> None:
    described = run(DESCRIBE_STANDIN, checkout, environment)
    assert described.returncode == 0 and '"device": "standin:0"' in described.stdout, described.stderr


def check_bench(checkout: Path, environment: dict[str, str]) -> None:
    assert steps("bench", checkout, environment)[-1] == ".venv/bin/python bench/run.py"
    helped = run(".venv/bin/python bench/run.py --help", checkout, environment)
    assert helped.returncode == 0, helped.stderr


def check_gpu(checkout: Path, environment: dict[str, str]) -> None:
    assert steps("test-gpu", checkout, environment)[-1].split()[-1] == "bench/gpu/host.py"
    helped = run("python3 bench/gpu/host.py --help", checkout, environment)
    assert helped.returncode == 0 and "PART" in helped.stdout, helped.stderr


def check_long(checkout: Path, environment: dict[str, str]) -> None:
    """Thousands of seeds take minutes: here each world plays one."""
    pool, money = steps("test-long", checkout, environment)[-2:]
    assert pool == "PYTHONPATH=bench .venv/bin/python -m simulation.seeds --count 10000"
    assert money == "PYTHONPATH=bench:tests/billing .venv/bin/python -m simulation.seeds --world money --count 5000"


def check_money_seed(checkout: Path, environment: dict[str, str]) -> None:
    played = run("PYTHONPATH=bench:tests/billing .venv/bin/python -m simulation.seeds --world money --seed 17", checkout, environment)
    assert (played.returncode, played.stderr) == (0, "") and played.stdout.endswith("nothing amiss\n")


def check_seed(checkout: Path, environment: dict[str, str]) -> None:
    played = run("PYTHONPATH=bench .venv/bin/python -m simulation.seeds --seed 17", checkout, environment)
    assert (played.returncode, played.stderr) == (0, "") and played.stdout.endswith("nothing amiss\n")


def check_run(checkout: Path, environment: dict[str, str]) -> None:
    """It trains, on the device it names, and leaves neither a process nor a file of ours."""
    finished = run(".venv/bin/forebay run examples/train.py", checkout, environment)
    assert finished.returncode == 0, finished.stderr
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", finished.stdout)]
    assert losses[-1] < 0.8 * losses[0]
    assert finished.stdout.endswith("trained on Forebay dev.1gb (virtual)\n")
    assert [line for line in finished.stderr.splitlines() if not line.startswith("forebay: ")] == []
    assert not list(Path(environment["TMPDIR"]).glob("forebay-*"))
    assert not list(Path(environment["HOME"]).iterdir())


def check_flavor_list(checkout: Path, environment: dict[str, str]) -> None:
    finished = run(".venv/bin/forebay flavor list", checkout, environment)
    assert finished.returncode == 0, finished.stderr
    rows = [[cell.strip() for cell in line.split("|")] for line in finished.stdout.splitlines() if line.startswith("|")]
    assert {row[2] for row in rows} - {"Flavor"} == {"dev.1gb", "dev.4gb"} and all(row[-2] == "free now" for row in rows[1:])
    assert "this is what `forebay run` offers on this machine" in finished.stderr


def check_smi(checkout: Path, environment: dict[str, str]) -> None:
    finished = run(".venv/bin/forebay smi", checkout, environment)
    assert finished.returncode == 0, finished.stderr
    assert "No program runs so now." in finished.stdout


def check_pictures(checkout: Path, environment: dict[str, str]) -> None:
    """Making them takes a browser and some minutes; here it only has to be able to start."""
    helped = run(".venv/bin/python docs/pictures/make.py --help", checkout, environment)
    assert helped.returncode == 0, helped.stderr


def check_catalogues(checkout: Path, environment: dict[str, str]) -> None:
    """What is committed is up to date, so it stays as it is."""
    files = sorted(checkout.glob("service/forebay_service/locale/*/LC_MESSAGES/forebay.po"))
    before = [file.read_bytes() for file in files]
    written = run(".venv/bin/python service/catalogues.py", checkout, environment)
    assert written.returncode == 0, written.stderr
    assert written.stdout.count(" 0 without a translation") == len(files) > 0
    assert [file.read_bytes() for file in files] == before


CHECKS = {
    "make up": check_up,
    "python3 deploy/local/install.py --dev": check_setup,
    "make test": check_test,
    "make check": check_check,
    "make lint": check_lint,
    "make test-billing": check_room,
    "make bench": check_bench,
    "make test-gpu": check_gpu,
    "make test-long": check_long,
    "PYTHONPATH=bench .venv/bin/python -m simulation.seeds --seed 17": check_seed,
    "PYTHONPATH=bench:tests/billing .venv/bin/python -m simulation.seeds --world money --seed 17": check_money_seed,
    ".venv/bin/forebay run examples/train.py": check_run,
    ".venv/bin/forebay flavor list": check_flavor_list,
    ".venv/bin/forebay smi": check_smi,
    ".venv/bin/python docs/pictures/make.py": check_pictures,
    ".venv/bin/python service/catalogues.py": check_catalogues,
    DESCRIBE_STANDIN: check_standin,
}


PAGES = ("README.md", "CONTRIBUTING.md", "docs/developers/testing.md")


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_shell_block_has_a_check(page: str, manual: Any) -> None:
    shown = manual.shell_lines(page)
    assert shown
    assert not [line for line in shown if line not in CHECKS]


def test_no_check_is_for_a_command_that_nobody_is_shown(manual: Any) -> None:
    shown = {line for page in PAGES for line in manual.shell_lines(page)}
    assert set(CHECKS) <= shown


@pytest.mark.parametrize("command", CHECKS)
def test_the_command_does_what_the_page_says(command: str, checkout: Path, environment: dict[str, str]) -> None:
    CHECKS[command](checkout, environment)


def test_a_script_for_forebay_run_needs_nothing_that_make_up_does_not_install(checkout: Path) -> None:
    """Beside the standard library and PyTorch: the tests' own requirements would hide it."""
    allowed = {"torch"} | set(sys.stdlib_module_names)
    for example in (checkout / "examples").glob("*.py"):
        tree = ast.parse(example.read_text(encoding="utf-8"))
        named = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        named |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert {name.split(".")[0] for name in named} <= allowed, example

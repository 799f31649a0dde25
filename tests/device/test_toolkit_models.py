"""``forebay models``: what is listed and copied, what is measured on the embedded pool, and what is told of a pool's flavors."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import fork_server
import pytest
from forebay.toolkit.command import main
from forebay.toolkit.reference_models import catalogue
from rest_pool import DEV, MEDIUM, RestPool

CHECKOUT = Path(__file__).resolve().parents[2]
GOOD = """\
"Trains as told."
import json, os, sys
flavor = os.environ["FOREBAY_DEVICES"]
assert sys.argv[1:5] == ["--json", "--device", "cuda", "--steps"]
print(json.dumps({"batch": 4, "samples_per_second": 1234.56, "peak_memory_bytes": 7}))
"""
BROKEN = '"Fails."\nraise SystemExit("a warning\\nTrainingFailed: the device has no room")\n'


def run_alone(program: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """The program in an ordinary PyTorch, as people run it, without a virtual device."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
    command = [str(fork_server.programs()), program.name, *options]
    return subprocess.run(command, cwd=program.parent, env=environment, capture_output=True, text=True, timeout=60)


def test_list_tells_a_sentence_and_the_memory_of_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "list"]) == 0
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in capsys.readouterr().out.splitlines() if line[0] == "|"]
    assert rows[0] == ["Model", "Memory", "What it does"]
    assert rows[1] == ["resnet18", "214 MiB", "ResNet-18 learns to tell five shapes apart."]
    assert [row[0] for row in rows[1:]] == list(catalogue.models())
    assert main(["models", "list", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [[row["name"], f"{row['memory_bytes'] >> 20} MiB", row["about"]] for row in told] == rows[1:]
    assert all(row["about"].endswith(".") and Path(row["program"]).is_file() for row in told)


def test_what_is_installed_is_what_lies_in_the_checkout_and_every_program_is_listed() -> None:
    """Set-up lays the models into the package; a link in the checkout's root leads to them."""
    ours = {
        path.relative_to(CHECKOUT / "models"): path.read_bytes() for path in (CHECKOUT / "models").rglob("*.*") if path.suffix != ".pyc"
    }
    assert {name: (catalogue.FOLDER / name).read_bytes() for name in ours} == ours
    programs = {path for path in catalogue.FOLDER.rglob("*.py") if "def main()" in path.read_text(encoding="utf-8")}
    assert {model.program for model in catalogue.models().values()} == programs


def test_models_need_nothing_but_pytorch_and_are_short() -> None:
    for model in catalogue.models().values():
        allowed = {"torch", *sys.stdlib_module_names, *(path.stem for path in model.files())}
        for path in model.files():
            text = path.read_text(encoding="utf-8")
            imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
            named = {node.module or "" if isinstance(node, ast.ImportFrom) else node.names[0].name for node in imports}
            assert {name.split(".")[0] for name in named} <= allowed, path
            assert text.count("\n") <= 140, path


@pytest.mark.parametrize("name", ["detector", "dlrm"])
def test_a_copy_runs_by_itself_in_an_empty_folder(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "mine" / "own"
    for _ in range(2):  # the same files may be there already
        assert main(["models", "get", name, str(folder)]) == 0
    assert capsys.readouterr().out.endswith(f"Run it with: forebay run {folder / name}.py\n")
    done = run_alone(folder / f"{name}.py", "--steps", "3", "--batch", "2")
    assert done.returncode == 0, done.stderr
    assert [line.split()[:2] for line in done.stdout.splitlines()[:3]] == [["step", f"{step}/3"] for step in (1, 2, 3)]
    assert done.stdout.splitlines()[3].endswith(" samples per second on cpu")


def test_a_program_runs_where_it_lies_in_the_checkout_and_refuses_no_steps() -> None:
    program = CHECKOUT / "models" / "tabular" / "ft_transformer.py"
    told = json.loads(run_alone(program, "--json", "--steps", "2", "--batch", "3").stdout)
    assert (told["device"], told["batch"], len(told["losses"]), told["peak_memory_bytes"]) == ("cpu", 3, 2, None)
    refused = run_alone(program, "--steps", "0")
    assert refused.returncode == 2 and refused.stderr.endswith("error: --steps and --batch must be at least 1\n")


def test_get_writes_over_no_file_of_yours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "training.py").write_text("mine")
    assert main(["models", "get", "dlrm", str(tmp_path)]) == 1
    said = f"forebay: {tmp_path / 'training.py'} is there already, and is another file; nothing is copied. Name another folder.\n"
    assert capsys.readouterr().err == said
    assert [path.name for path in tmp_path.iterdir()] == ["training.py"] and (tmp_path / "training.py").read_text() == "mine"


@pytest.mark.parametrize("words", [["get"], ["run"], ["bench"]])
def test_a_wrong_name_is_one_sentence(words: list[str], no_service: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", *words, "resnet"]) == 1
    assert capsys.readouterr().err == "forebay: There is no model 'resnet'; the nearest are resnet18, unet, bert.\n"
    assert main(["models", *words, "?"]) == 1
    assert capsys.readouterr().err == "forebay: There is no model '?'; `forebay models list` shows all.\n"


@pytest.mark.full_sweep
def test_bench_measures_on_the_embedded_pool(no_service: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "bench", "dlrm", "--flavor", "dev.1gb", "--steps", "3", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["model"], row["flavor"], row["steps"], row["batch"], row["fault"]) == ("dlrm", "dev.1gb", 3, 256, None)
    assert row["samples_per_second"] > 100 and row["peak_memory_bytes"] > 1 << 20


@pytest.fixture
def two_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalogue of programs that end at once: one with figures, one with a fault."""
    for name, program in (("good", GOOD), ("broken", BROKEN)):
        (tmp_path / f"{name}.py").write_text(program)
    rows = (f'[{name}]\nprogram = "{name}.py"\nmemory_mib = 1\n' for name in ("good", "broken"))
    (tmp_path / "catalogue.toml").write_text("".join(rows))
    monkeypatch.setattr(catalogue, "FOLDER", tmp_path)


def test_bench_tells_every_flavor_that_can_be_had_and_what_failed(
    rest_pool: RestPool, two_models: None, capsys: pytest.CaptureFixture[str]
) -> None:
    rest_pool.answers["api/flavors"] = [DEV, MEDIUM, DEV | {"name": "small"}]
    assert main(["models", "bench"]) == 1
    said = capsys.readouterr()
    assert said.out == (
        "+--------------------+---------+---------+\n"
        "| Samples per second | dev.1gb | small   |\n"
        "+--------------------+---------+---------+\n"
        "| good               | 1,234.6 | 1,234.6 |\n"
        "| broken             | -       | -       |\n"
        "+--------------------+---------+---------+\n"
        "\nDid not train:\n"
        "  broken on dev.1gb: TrainingFailed: the device has no room\n"
        "  broken on small: TrainingFailed: the device has no room\n"
    )
    assert said.err.splitlines() == [f"forebay: {name} on {flavor} …" for flavor in ("dev.1gb", "small") for name in ("good", "broken")]
    assert main(["models", "bench", "good", "--flavor", "small", "--flavor", "small"]) == 0
    assert capsys.readouterr().out.count("1,234.6") == 1


@pytest.mark.parametrize(
    ("words", "flavors", "sentence"),
    [
        (["--flavor", "medium.128gb"], [DEV, MEDIUM], str(MEDIUM["reason"])),
        (["--flavor", "dev"], [DEV, MEDIUM], "There is no flavor 'dev'; the nearest are dev.1gb."),
        ([], [MEDIUM], "No flavor can be had; `forebay flavor list --all` says why."),
        (["--steps", "0"], [DEV], "--steps is 0; it must be at least 1."),
    ],
)
def test_bench_begins_nothing_that_cannot_be_measured(
    rest_pool: RestPool, two_models: None, capsys: pytest.CaptureFixture[str], words: list[str], flavors: list[Any], sentence: str
) -> None:
    rest_pool.answers["api/flavors"] = flavors
    assert main(["models", "bench", *words]) == 1
    assert capsys.readouterr().err == f"forebay: {sentence}\n"

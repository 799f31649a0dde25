"""Installs wheels of PyTorch side by side, builds the virtual device and the worker once for each release, and runs the same tests on all.

``make test-wheels`` runs it. It is no part of ``make test``, because a wheel with CUDA and its libraries is 5 GB on disk. What it
makes lies in ``build/stock-wheels`` and is used again; the output of every command goes into ``build/stock-wheels/…/log``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
FOLDER = CHECKOUT / "build" / "stock-wheels"
WHEELS = ("torch==2.13.0+cpu", "torch===2.13.0", "torch==2.12.1", "torch==2.15.0")
"""The CPU build, the default build (on Linux it has CUDA), that of the release before and of the newest; ``===`` leaves out ``+cpu``."""
NATIVE_PACKAGES = ("wire", "device", "worker")
PURE_PACKAGES = ("service", "pool")
DTYPES = ("float32", "bfloat16", "int64", "bool", "complex64")
SWEEP = "tests/device/test_operator_sweep.py"
TESTS = {
    "torch.cuda": ("tests/device/test_cuda_facade.py", "tests/device/test_stock_builds.py"),
    "virtual device": ("tests/virtual_device",),
    "frameworks": ("tests/frameworks",),
    "modules and optimizers": ("tests/device_generic",),
}
"""Name → arguments of pytest."""
ON_THE_DEVICE = ("virtual device", "frameworks", "modules and optimizers")
TRAINING = "examples/train.py"
INSTALL_SECONDS_MAX = 3600
COMPILE_SECONDS_MAX = 3600
TEST_SECONDS_MAX = 1800
LINES_SHOWN = 25
DESCRIBE = "import json, torch; print(json.dumps([torch.__version__, torch.version.cuda]))"
TELLING = re.compile(r"(E  |FAILED |ERROR )|.*\berror\b", re.IGNORECASE)
"""Lines of pytest, pip and compilers that say what is wrong."""


class StepFailed(Exception):
    """A command of an environment failed; the message holds the lines of its output that say why."""


def explain(output: str) -> str:
    """The lines of a failed command's output that say why, else its last. Pure."""
    lines = [line.rstrip() for line in output.splitlines() if line.strip()]
    telling = [line for line in lines if TELLING.match(line)]
    shown = telling[:LINES_SHOWN] or lines[-LINES_SHOWN:]
    left_out = max(0, len(telling) - LINES_SHOWN)
    return "\n".join([*(f"    {line[:300]}" for line in shown), *([f"    and {left_out} lines more"] if left_out else [])])


@dataclass
class Environment:
    """A virtual environment with one build of PyTorch."""

    requirement: str
    index: str | None
    results: dict[str, str] = field(default_factory=dict)
    """Column of the table → what came out."""

    @property
    def folder(self) -> Path:
        return FOLDER / re.sub("[^0-9a-z.+=]+", "-", self.requirement)

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def release(self) -> str:
        """``2.13``: what extensions can be shared within."""
        return ".".join(self.results["torch"].split(".")[:2])

    def run(self, *command: str | Path, seconds_max: int, **environment: str) -> str:
        """Runs a command, its output in the log. Returns the output, raises StepFailed."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_") and name != "PYTHONPATH"}
        kept |= {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "DIST_EXTRA_CONFIG": str(self.folder / "build.cfg"),
            "COLUMNS": "300",  # pytest's summary is cut at the terminal's width
            **environment,
        }
        words = [str(word) for word in command]
        with self.log.open("a+") as log:
            log.write(f"\n$ {' '.join(words)}\n")
            log.flush()
            begin = log.tell()
            try:
                status = subprocess.run(words, cwd=CHECKOUT, env=kept, stdout=log, stderr=log, timeout=seconds_max, check=False).returncode
            except subprocess.TimeoutExpired:
                status = None
            log.seek(begin)
            output = log.read()
        if status != 0:
            raise StepFailed(f"{f'status {status}' if status is not None else f'ran longer than {seconds_max} s'}\n{explain(output)}")
        return output

    def pip(self, *words: str | Path, seconds_max: int = INSTALL_SECONDS_MAX) -> None:
        self.run(self.python, "-m", "pip", "--disable-pip-version-check", *words, seconds_max=seconds_max)

    def install(self) -> None:
        """PyTorch first and apart, then what the tests need beside it."""
        done = self.folder / "installed"
        if done.exists():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "build.cfg").write_text(f"[build]\nbuild_base = {self.folder / 'compiled'}\n")
        self.run(sys.executable, "-m", "venv", self.folder, seconds_max=INSTALL_SECONDS_MAX)
        self.pip("install", "numpy", self.requirement, *(("--index-url", self.index) if self.index else ()))
        self.pip("install", "--no-deps", "-r", "requirements/dev.txt")  # a pin that this torch dislikes must bring no other torch
        done.touch()

    def look(self) -> None:
        version, cuda = json.loads(self.run(self.python, "-c", DESCRIBE, seconds_max=TEST_SECONDS_MAX).splitlines()[-1])
        self.results |= {"torch": version, "build": f"CUDA {cuda}" if cuda else "CPU"}

    def compile(self) -> None:
        """Our packages as wheels, compiled for this release of PyTorch."""
        for package in NATIVE_PACKAGES:
            wheels = self.folder / "wheels" / package
            words = ("wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", wheels, f"./{package}")
            self.pip(*words, seconds_max=COMPILE_SECONDS_MAX)
            self.take(wheels)

    def take(self, wheels: Path) -> None:
        """Installs wheels of ours, whichever build of this release they were compiled with."""
        self.pip("install", "--no-deps", "--force-reinstall", *sorted(wheels.rglob("*.whl")))

    def take_the_rest(self) -> None:
        editable = [word for package in PURE_PACKAGES for word in ("-e", f"./{package}")]
        self.pip("install", "--no-build-isolation", "--no-deps", *editable)

    def pytest(self, *words: str, **environment: str) -> str:
        temporary = f"--basetemp={self.folder / 'tests'}"
        output = self.run(self.python, "-m", "pytest", "-q", temporary, *words, seconds_max=TEST_SECONDS_MAX, **environment)
        return re.sub(r" in [0-9.]+s.*", "", output.strip().splitlines()[-1])

    def sweep(self, dtype: str) -> None:
        """Runs the operator sweep in one dtype and notes how many cases the device got right."""
        self.pytest(SWEEP, "-k", f"{dtype} or the_device_allows")
        for file in (self.folder / "tests").rglob("results.json"):
            outcomes: dict[str, str] = json.loads(file.read_text())
            self.results[dtype] = f"{sum(not error for error in outcomes.values()):,} of {len(outcomes):,}"

    def test(self, name: str) -> None:
        """Runs one of TESTS and notes what pytest counted."""
        self.results[name] = self.pytest(*TESTS[name], **({"FOREBAY_URL": "local"} if name in ON_THE_DEVICE else {}))

    def train(self) -> None:
        output = self.run(self.python, TRAINING, seconds_max=TEST_SECONDS_MAX, FOREBAY_URL="local")
        losses = re.findall(r"loss ([0-9.]+)", output)
        if not losses or not float(losses[-1]) < float(losses[0]):
            raise StepFailed(f"the loss does not fall: {losses}")
        self.results[TRAINING] = f"trains, loss {losses[0]} → {losses[-1]}"


def step(environment: Environment, title: str, action: str, *arguments: str | Path) -> bool:
    """Does one thing with a line of progress. Returns whether it went well; a failure is a result, too."""
    print(f"{environment.requirement}: {title} …", end=" ", flush=True)
    started = time.monotonic()
    try:
        getattr(environment, action)(*arguments)
    except StepFailed as error:
        print(f"FAILED after {time.monotonic() - started:.0f} s: {error}\n    whole output: {environment.log}", flush=True)
        environment.results[title] = "FAILED"
        return False
    print(f"{environment.results.get(title, 'done')} ({time.monotonic() - started:.0f} s)", flush=True)
    return True


def prepare(environment: Environment, compiled: dict[str, Path]) -> bool:
    """Installs PyTorch and ours. ``compiled``: release → wheels of ours, made with the first build of it."""
    if not (step(environment, "install", "install") and step(environment, "look", "look")):
        return False
    if environment.release in compiled:
        made = step(environment, "take the extensions of the other build", "take", compiled[environment.release])
    else:
        made = step(environment, "compile", "compile")
        compiled[environment.release] = environment.folder / "wheels"
    return made and step(environment, "take the other packages", "take_the_rest")


def examine(environment: Environment, dtypes: Sequence[str]) -> bool:
    """Every test on one wheel, whatever the others gave."""
    passed = [step(environment, dtype, "sweep", dtype) for dtype in dtypes]
    passed += [step(environment, name, "test", name) for name in TESTS]
    return all([*passed, step(environment, TRAINING, "train")])


def table(environments: list[Environment], dtypes: Sequence[str]) -> str:
    """The results as a Markdown table, for docs/compatibility.md."""
    columns = ["torch", "build", *dtypes, *TESTS, TRAINING]
    rows = [columns, ["---"] * len(columns)]
    for environment in environments:
        results = {"torch": environment.requirement, **environment.results}
        rows.append([results.get(column, "-") for column in columns])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> int:
    """The exit status: 0 if everything passed on every wheel."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheels", nargs="*", default=WHEELS, metavar="REQUIREMENT", help=f"wheels for pip (default: {' '.join(WHEELS)})")
    parser.add_argument("--index", help="package index of PyTorch builds, where pip's own does not have them")
    parser.add_argument("--dtypes", nargs="+", default=DTYPES, choices=DTYPES, help="dtypes of the operator sweep (default: all five)")
    options = parser.parse_args()
    environments = [Environment(requirement, options.index) for requirement in options.wheels]
    compiled: dict[str, Path] = {}
    passed = []
    for environment in environments:
        started = time.monotonic()
        passed.append(prepare(environment, compiled) and examine(environment, options.dtypes))
        minutes = (time.monotonic() - started) / 60
        print(f"{environment.requirement}: {'all pass' if passed[-1] else 'NOT all pass'} ({minutes:.0f} min)\n", flush=True)
    print(table(environments, options.dtypes))
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())

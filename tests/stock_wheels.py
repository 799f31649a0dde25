"""Installs wheels of PyTorch side by side, builds the virtual device and the worker against each, and runs the same tests on all.

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
from dataclasses import dataclass, field
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
FOLDER = CHECKOUT / "build" / "stock-wheels"
WHEELS = ("torch==2.13.0+cpu", "torch===2.13.0", "torch==2.12.1")
"""The CPU build, the default build (on Linux it has CUDA), and that of the release before; ``===`` leaves out ``+cpu``."""
NATIVE_PACKAGES = ("wire", "device", "worker")
PURE_PACKAGES = ("hub", "pool")
TESTS = {
    "sweep": ("tests/device/test_operator_sweep.py",),
    "torch.cuda": ("tests/device/test_cuda_facade.py", "tests/device/test_stock_builds.py"),
    "virtual device": ("tests/virtual_device",),
}
"""Name → arguments of pytest."""
ON_THE_DEVICE = ("virtual device", "examples/train.py")
SECONDS_MAX = 3600
DESCRIBE = "import json, torch; print(json.dumps([torch.__version__, torch.version.cuda]))"


class StepFailed(Exception):
    """A command of an environment failed; the message says which, and where its output is."""


@dataclass
class Environment:
    """A virtual environment with one build of PyTorch."""

    requirement: str
    index: str | None
    results: dict[str, str] = field(default_factory=dict)
    """Name of the test → what came out; empty strings are left out."""

    @property
    def folder(self) -> Path:
        return FOLDER / re.sub("[^0-9a-z.+=]+", "-", self.requirement)

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def run(self, *command: str | Path, **environment: str) -> str:
        """Runs a command, its output in the log. Returns the output, raises StepFailed."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_") and name != "PYTHONPATH"}
        kept |= {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", "DIST_EXTRA_CONFIG": str(self.folder / "build.cfg"), **environment}
        words = [str(word) for word in command]
        done = subprocess.run(
            words, cwd=CHECKOUT, env=kept, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=SECONDS_MAX, check=False
        )
        with (self.folder / "log").open("a") as log:
            log.write(f"\n$ {' '.join(words)}\n{done.stdout}")
        if done.returncode != 0:
            last = (done.stdout.strip().splitlines() or ["no output"])[-1]
            raise StepFailed(f"{last} (status {done.returncode}; {self.folder / 'log'})")
        return done.stdout

    def pip(self, *words: str | Path) -> None:
        self.run(self.python, "-m", "pip", "--disable-pip-version-check", *words)

    def install_torch(self) -> None:
        """PyTorch first and apart, then what the tests need beside it."""
        done = self.folder / "installed"
        if done.exists():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "build.cfg").write_text(f"[build]\nbuild_base = {self.folder / 'compiled'}\n")
        self.run(sys.executable, "-m", "venv", self.folder)
        self.pip("install", "numpy", self.requirement, *(("--index-url", self.index) if self.index else ()))
        self.pip("install", "-r", "requirements/dev.txt")
        done.touch()

    def build(self) -> None:
        """Our packages, the extensions compiled for this PyTorch."""
        for package in NATIVE_PACKAGES:
            wheels = self.folder / "wheels" / package
            self.pip("wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", wheels, f"./{package}")
            self.pip("install", "--no-deps", "--force-reinstall", *wheels.glob("*.whl"))
        editable = [word for package in PURE_PACKAGES for word in ("-e", f"./{package}")]
        self.pip("install", "--no-build-isolation", "--no-deps", *editable)

    def describe(self) -> None:
        version, cuda = json.loads(self.run(self.python, "-c", DESCRIBE))
        self.results |= {"torch": version, "build": f"CUDA {cuda}" if cuda else "CPU"}

    def test(self, name: str) -> None:
        """Runs one of TESTS and notes what pytest counted, and of the sweep what the device got right."""
        temporary = self.folder / "tests"
        device = {"FOREBAY_URL": "local"} if name in ON_THE_DEVICE else {}
        output = self.run(self.python, "-m", "pytest", "-q", f"--basetemp={temporary}", *TESTS[name], **device)
        self.results[name] = re.sub(r" in [0-9.]+s.*", "", output.strip().splitlines()[-1])
        for file in temporary.rglob("results.json"):
            outcomes = json.loads(file.read_text())
            self.results[name] = f"{sum(error is None for error in outcomes.values())} of {len(outcomes)}"

    def train(self) -> None:
        output = self.run(self.python, "examples/train.py", FOREBAY_URL="local")
        self.results["examples/train.py"] = output.strip().splitlines()[-1]


def step(environment: Environment, title: str, action: str, *arguments: str) -> bool:
    """Does one thing with a line of progress. Returns whether it went well; a failure is a result, too."""
    print(f"{environment.requirement}: {title} …", end=" ", flush=True)
    started = time.monotonic()
    try:
        getattr(environment, action)(*arguments)
    except (StepFailed, subprocess.TimeoutExpired) as error:
        print(f"FAILED: {error}", flush=True)
        environment.results[title] = "FAILED"
        return False
    print(f"{time.monotonic() - started:.0f} s", flush=True)
    return True


def examine(environment: Environment) -> bool:
    """Everything for one wheel; the tests all run, whatever the others gave."""
    prepared = (
        step(environment, "install", "install_torch") and step(environment, "compile", "build") and step(environment, "look", "describe")
    )
    if not prepared:
        return False
    passed = [step(environment, name, "test", name) for name in TESTS]
    return all([*passed, step(environment, "examples/train.py", "train")])


def table(environments: list[Environment]) -> str:
    """The results as a Markdown table, for docs/compatibility.md."""
    columns = ["torch", "build", *TESTS, "examples/train.py"]
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
    options = parser.parse_args()
    environments = [Environment(requirement, options.index) for requirement in options.wheels]
    passed = [examine(environment) for environment in environments]
    print("\n" + table(environments))
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())

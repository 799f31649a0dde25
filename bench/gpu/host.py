"""``make test-gpu``: makes an environment of this Python, its PyTorch, and the folder of ``make wheels-gpu``, and runs the parts in it.

Plain standard library. Nothing is fetched: what is missing comes from the folder, and ours is built from this checkout. What was built once
is used again while neither sources nor PyTorch change. Without a GPU it says so, and that is no failure.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path.append(str(CHECKOUT / "deploy" / "local"))  # its steps keep stamps as ours do
sys.path.append(str(CHECKOUT / "bench"))

from install import Step  # noqa: E402

from gpu import wheels  # noqa: E402
from gpu.figures import PARTS  # noqa: E402

ENVIRONMENT = CHECKOUT / "build" / "gpu-venv"
NATIVE_PACKAGES = ("wire", "device", "worker")
PURE_PACKAGES = ("service", "pool")
COMPILE_SECONDS_MAX = 1800
LOOK = "import torch; print(torch.__version__, torch.cuda.is_available() and torch.cuda.get_device_name(0) or '')"
PARTS_SECONDS_MIN = 120
"""What the parts have together, however long a small machine compiled."""
LOOK_SECONDS_MAX = 240
LOG_LINES_SHOWN = 20


class HostError(Exception):
    """Why the parts cannot run here; the message is a sentence."""


def look(python: str) -> tuple[str, str]:
    """PyTorch's version and the GPU's name, empty where PyTorch sees none. Raises HostError."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
    found = subprocess.run([python, "-c", LOOK], capture_output=True, text=True, timeout=LOOK_SECONDS_MAX, env=kept, check=False)
    if found.returncode:
        said = found.stderr.strip().splitlines()
        raise HostError(f"no GPU: {python} has no PyTorch that can be imported ({said[-1] if said else 'it says nothing'})")
    version, _, name = found.stdout.strip().partition(" ")
    return version, name


class Environment:
    """A virtual environment over this Python's packages."""

    def __init__(self, folder: Path, torch: str, wheels_folder: Path) -> None:
        self._folder = folder
        self._torch = torch
        self._wheels = wheels_folder
        self.python = folder / "bin" / "python"

    def stages(self) -> list[list[Step]]:
        """What makes it, in order; steps of one stage do not need each other."""
        stamps = self._folder / "stamps"
        about = (sys.executable, sys.version, self._torch)
        listing = "\n".join(sorted(path.name for path in self._wheels.glob("*.whl")))
        wire, *others = [
            Step(f"{package} (C++)", stamps / package, (*about, CHECKOUT / "wire", CHECKOUT / package), partial(self._build, package))
            for package in NATIVE_PACKAGES
        ]
        pure = (*about, *(CHECKOUT / package for package in PURE_PACKAGES))
        return [
            [Step("An environment over this Python", stamps / "made", about, self._make, (self.python,))],
            [Step("What it lacks, from the folder of wheels", stamps / "wheels", (*about, listing), self._take)],
            [wire],
            [*others, Step(" and ".join(PURE_PACKAGES), stamps / "pure", pure, partial(self._build, *PURE_PACKAGES))],
        ]

    def _make(self) -> None:
        """The packages of this Python are seen through a path file, since it may itself be a virtual environment's."""
        self._run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(self._folder)])
        seen = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
        target = self._folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
        (target / "host.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in seen), encoding="utf-8")

    def _take(self) -> None:
        self._pip("--find-links", str(self._wheels), *wheels.requirements())

    def _build(self, *packages: str) -> None:
        objects = self._folder / "objects" / "-".join(packages)  # kept, so that a build that was cut off goes on
        configuration = self._folder / f"build-{'-'.join(packages)}.cfg"
        configuration.write_text(f"[build_ext]\nbuild_temp = {objects}\n", encoding="utf-8")
        words = ("--no-build-isolation", "--no-deps", "--force-reinstall", *(f"./{package}" for package in packages))
        self._pip(*words, DIST_EXTRA_CONFIG=str(configuration))

    def _pip(self, *words: str, **variables: str) -> None:
        self._run([str(self.python), "-m", "pip", "--disable-pip-version-check", "install", "--no-index", *words], **variables)

    def _run(self, command: list[str], **variables: str) -> None:
        """Raises HostError with the command's last lines."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
        kept.pop("PYTHONPATH", None)
        path = os.pathsep.join([str(self._folder / "bin"), *(str(Path(sys.executable).parent),), kept.get("PATH", "")])
        kept |= {"PATH": path, "MAX_JOBS": kept.get("MAX_JOBS") or str(os.cpu_count() or 2), "PYTHONNOUSERSITE": "1"} | variables
        process = subprocess.Popen(
            command, cwd=CHECKOUT, env=kept, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        try:
            said, _ = process.communicate(timeout=COMPILE_SECONDS_MAX)
        finally:
            with contextlib.suppress(ProcessLookupError):  # compilers outlive what started them
                os.killpg(process.pid, signal.SIGKILL)
        if process.returncode:
            lines = "\n".join(said.strip().splitlines()[-LOG_LINES_SHOWN:])
            raise HostError(f"{' '.join(command)} ended with status {process.returncode}:\n{lines}")


def make(environment: Environment) -> float:
    """Does what is not done yet. Returns the seconds it took. Raises HostError."""

    def run(step: Step) -> None:
        if not step.done:
            since = time.monotonic()
            step.run()
            print(f"{step.title}: {time.monotonic() - since:.0f} s", flush=True)

    began = time.monotonic()
    with ThreadPoolExecutor() as threads:
        for stage in environment.stages():
            list(threads.map(run, stage))
    return time.monotonic() - began


def main() -> int:
    """The exit status: 0 where every part passed, or there is no GPU."""
    parser = argparse.ArgumentParser(prog="make test-gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument("--device", help="the worker's; cpu:0 rehearses without a GPU (default: the first GPU)")
    parser.add_argument("--wheels", type=Path, default=wheels.FOLDER, help="the folder of make wheels-gpu")
    parser.add_argument("--environment", type=Path, default=ENVIRONMENT, help="where the environment is made")
    parser.add_argument("--seconds", type=float, help="for all parts together (default: 570)")
    options = parser.parse_args()
    unknown = sorted(set(options.parts) - set(PARTS))
    if unknown:
        parser.error(f"no part is called {', '.join(unknown)}; there are {', '.join(PARTS)}")
    began = time.monotonic()
    try:
        if importlib.util.find_spec("torch") is None:
            raise HostError(f"no GPU: {sys.executable} has no PyTorch to find one with")
        torch, name = look(sys.executable)
        if not name and options.device != "cpu:0":
            print(f"no GPU: PyTorch {torch} of {sys.executable} sees none, so there is nothing to try; --device cpu:0 rehearses")
            return 0
        environment = Environment(options.environment.absolute(), torch, options.wheels.absolute())
        seconds = make(environment)
    except (HostError, subprocess.TimeoutExpired) as error:
        print(f"make test-gpu: {error}", file=sys.stderr)
        return 0 if str(error).startswith("no GPU: ") else 1
    command = [str(environment.python), "-m", "gpu", *options.parts, "--compile-seconds", f"{seconds:.1f}"]
    command += ["--device", options.device] if options.device else []
    command += ["--seconds", str(max(PARTS_SECONDS_MIN, (options.seconds or 570) - (time.monotonic() - began)))]
    return subprocess.run(command, cwd=CHECKOUT / "bench", check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

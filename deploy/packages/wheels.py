"""``make wheels``: every wheel of this repository, and an index page of them that pip takes, in ``build/dist``.

A wheel with extensions carries a build for each release of PyTorch (``forebay_wire.torch_builds``): pip knows nothing of the PyTorch
that a wheel is for, so a wheel for each would leave the choice to people, and go wrong when PyTorch is changed later. Set-up's own builds
are taken as they are; builds for others are made in environments of their own. The same sources give the same bytes: dates are those
of the last commit, or ``SOURCE_DATE_EPOCH``, and files have the same modes whatever the umask was.
"""

from __future__ import annotations

import argparse
import hashlib
import html
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
BIN = CHECKOUT / ".venv" / "bin"
SET_UP = CHECKOUT / "build" / "wheels"
"""What set-up built for the PyTorch that is installed, a folder for each package."""
RELEASES = CHECKOUT / "build" / "releases"
"""Environments with other releases of PyTorch, and what was built in them."""
DIST = CHECKOUT / "build" / "dist"
CONSTRAINTS = "constraints.txt"
"""Beside the wheels: the versions of others' packages that they were tested with, for pip's ``--constraint``."""
FOR_PYTORCH = ("device", "worker")
BUILT_BY_SET_UP = ("wire", *FOR_PYTORCH, "jax", "lab")
PURE = ("service", "pool", "billing", "hub", "spawner", "dashboards", "admin")
OF_OTHERS = ("libtorch*", "libc10*", "libshm*", "libtensorflow*")
"""Libraries that the wheels leave to the PyTorch and the TensorFlow they run with."""
TENSORFLOW = "tf"
"""Built against the TensorFlow that is installed, which set-up does not install."""
GENERATED = shutil.ignore_patterns("build", "*.egg-info", "__pycache__", "*.so", "node_modules")
DIST_INFO = ".dist-info/"
LINES_SHOWN = 15


class WheelsError(Exception):
    """Why there are no wheels; the message says what to do."""


def run(*command: str | Path, epoch: str, cwd: Path = CHECKOUT) -> None:
    """Runs a command with the tools of set-up. Raises WheelsError with the end of what it said, and with a compiler's first errors."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch, "PATH": f"{BIN}:{os.environ.get('PATH', os.defpath)}"}
    done = subprocess.run([str(word) for word in command], cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = (done.stdout + done.stderr).splitlines()
        errors = [line for line in lines[:-LINES_SHOWN] if ": error: " in line]
        told = "\n".join(errors[:LINES_SHOWN] + lines[-LINES_SHOWN:])
        raise WheelsError(f"{' '.join(map(str, command))} failed:\n{told}")


def epoch_of(checkout: Path) -> str:
    """The date that files of wheels bear, in seconds: ``SOURCE_DATE_EPOCH``, or that of the last commit."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    command = ["git", "log", "-1", "--format=%ct"]
    return given or subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=True).stdout.strip()


def build_pure(package: Path, folder: Path, epoch: str) -> Path:
    """The wheel of a package without extensions, from a copy: what lies about in the checkout is not in it."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / package.name
        shutil.copytree(package, copy, ignore=GENERATED)
        out = Path(scratch) / "out"
        run("uv", "build", "--quiet", "--wheel", "--no-build-isolation", "--python", BIN / "python", "--out-dir", out, copy, epoch=epoch)
        return seal(list(out.glob("*.whl")), folder, epoch)


def seal(wheels: Sequence[Path], folder: Path, epoch: str) -> Path:
    """One wheel of all files of these: one package, built for several releases of PyTorch. Raises WheelsError where they do not agree."""
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch) / "tree"
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                _unpack(archive, tree, wheel)
        for path in [tree, *tree.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
        out = Path(scratch) / "out"
        out.mkdir()
        run(BIN / "python", "-m", "wheel", "pack", tree, "--dest-dir", out, epoch=epoch)
        (packed,) = out.iterdir()
        return Path(shutil.move(packed, folder / packed.name))


def _unpack(archive: zipfile.ZipFile, tree: Path, wheel: Path) -> None:
    for name in (name for name in archive.namelist() if not name.endswith("/")):
        path, content = tree / name, archive.read(name)
        if path.exists() and path.read_bytes() != content and not name.endswith(f"{DIST_INFO}RECORD"):
            raise WheelsError(f"{wheel} was built from other sources than the wheel it is to be joined with: {name} differs")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def audit(wheel: Path, folder: Path, epoch: str) -> Path:
    """The wheel with the tag of the oldest glibc that it runs on; libraries of others are not put into it."""
    with tempfile.TemporaryDirectory() as scratch:
        left_out = [word for name in OF_OTHERS for word in ("--exclude", name)]
        run("auditwheel", "repair", *left_out, "--wheel-dir", scratch, wheel, epoch=epoch)
        (tagged,) = Path(scratch).iterdir()
        wheel.unlink()
        return seal([tagged], folder, epoch)


def build_for(torch: str, index: str | None, epoch: str) -> dict[str, Path]:
    """Wheels for another release of PyTorch by package, built in an environment that has it, from the sources as they lie here."""
    folder = RELEASES / re.sub(r"[^\w.+]+", "-", torch)
    python = folder / "venv" / "bin" / "python"
    if not python.exists():
        run(sys.executable, "-m", "venv", folder / "venv", epoch=epoch)
    where = ("--index-url", index) if index else ()
    pip = (python, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "install", torch, *where, epoch=epoch)
    pinned = ("--constraint", CHECKOUT / "requirements" / "server.txt")
    run(*pip, "install", "numpy", "ninja", "pybind11", "setuptools", "wheel", *pinned, epoch=epoch)
    run(*pip, "install", "--no-deps", "--force-reinstall", *(SET_UP / "wire").glob("*.whl"), epoch=epoch)
    built = {}
    shutil.rmtree(folder / "sources", ignore_errors=True)
    for package in ("wire", *FOR_PYTORCH):
        shutil.copytree(CHECKOUT / package, folder / "sources" / package, ignore=GENERATED)
    for package in FOR_PYTORCH:
        out = folder / "wheels" / package
        shutil.rmtree(out, ignore_errors=True)
        words = ("wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", out, f"./{package}")
        run("env", f"PATH={python.parent}:{os.environ['PATH']}", *pip, *words, epoch=epoch, cwd=folder / "sources")
        (built[package],) = out.glob("*.whl")
    return built


def write_index(folder: Path) -> None:
    """``index.html``, for ``pip install --find-links``: a link and a checksum for each wheel."""
    lines = []
    for wheel in sorted(folder.glob("*.whl")):
        name, digest = html.escape(wheel.name), hashlib.sha256(wheel.read_bytes()).hexdigest()
        lines.append(f'<li><a href="{name}#sha256={digest}" data-requires-python="&gt;=3.11">{name}</a></li>')
    head = '<!DOCTYPE html>\n<html lang="en">\n<head><meta charset="utf-8"><title>Forebay</title></head>\n<body>\n<ul>\n'
    (folder / "index.html").write_text(head + "\n".join(lines) + "\n</ul>\n</body>\n</html>\n", encoding="utf-8")


def make(folder: Path, others: Iterable[str], index: str | None, epoch: str) -> list[Path]:
    """All wheels, in a folder that holds nothing else. Raises WheelsError."""
    missing = [package for package in BUILT_BY_SET_UP if not list((SET_UP / package).glob("*.whl"))]
    if missing:
        raise WheelsError(f"{', '.join(missing)} is not built; run: make setup (the extension of JupyterLab, lab, needs npm)")
    builds = {package: list((SET_UP / package).glob("*.whl")) for package in BUILT_BY_SET_UP}
    for torch in others:
        for package, wheel in build_for(torch, index, epoch).items():
            builds[package].append(wheel)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for package, wheels in builds.items():
        sealed = seal(wheels, folder, epoch)
        if package != "lab":
            audit(sealed, folder, epoch)
    for package in PURE:
        build_pure(CHECKOUT / package, folder, epoch)
    write_index(folder)
    shutil.copy(CHECKOUT / "requirements" / "release.txt", folder / CONSTRAINTS)
    return sorted(folder.glob("*.whl"))


def add_tensorflow(folder: Path, epoch: str) -> Path:
    """The wheel of the plug-in for TensorFlow, beside those of ``make``. Raises WheelsError."""
    if find_spec("tensorflow") is None:
        raise WheelsError("TensorFlow is not installed, which the plug-in is built against; run: make setup-tensorflow")
    if not list(folder.glob("forebay_jax-*.whl")):
        raise WheelsError(f"{folder} has no wheels yet; run: make wheels")
    with tempfile.TemporaryDirectory() as scratch:
        copy, out = Path(scratch) / TENSORFLOW, Path(scratch) / "out"
        shutil.copytree(CHECKOUT / TENSORFLOW, copy, ignore=GENERATED)
        pip = (BIN / "python", "-m", "pip", "--disable-pip-version-check", "wheel", "--no-build-isolation", "--no-deps")
        run(*pip, "--wheel-dir", out, copy, epoch=epoch)
        for old in folder.glob("forebay_tensorflow-*.whl"):
            old.unlink()
        made = audit(seal(list(out.glob("*.whl")), folder, epoch), folder, epoch)
    write_index(folder)
    return made


def main() -> int:
    """The exit status: 1 where a wheel cannot be made."""
    parser = argparse.ArgumentParser(prog="make wheels", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("torch", nargs="*", metavar="TORCH", help="other releases to build for, as pip takes them: torch==2.12.1")
    parser.add_argument("--index", help="package index of PyTorch builds, where pip's own does not have them")
    parser.add_argument("--folder", type=Path, default=DIST, help="where they go; it is made anew (default: build/dist)")
    beside = "add the plug-in's wheel for TensorFlow, against the one that is installed, to a folder that has the others"
    parser.add_argument("--tensorflow", action="store_true", help=beside)
    options = parser.parse_args()
    try:
        epoch = epoch_of(CHECKOUT)
        one = options.tensorflow
        made = [add_tensorflow(options.folder, epoch)] if one else make(options.folder, options.torch, options.index or None, epoch)
    except WheelsError as error:
        print(f"make wheels: {error}", file=sys.stderr)
        return 1
    for wheel in made:
        print(f"{wheel.stat().st_size / 2**10:8.1f} KiB  {wheel.name}")
    print(f"{len(made)} wheels; install with: pip install --find-links {options.folder} forebay{'-tensorflow' if one else ''}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

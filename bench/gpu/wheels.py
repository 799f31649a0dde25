"""``make wheels-gpu``: what a GPU server without a package registry needs beside PyTorch, as wheels for its Python, in one folder.

What is needed is what our own packages ask for (their ``pyproject.toml``), PyTorch left out, and what PyTorch's operator database imports.
Plain standard library.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
FOLDER = CHECKOUT / "build" / "wheels-gpu"
PACKAGES = ("wire", "device", "worker", "service", "pool")
EXTRAS = {"pool": "nvidia"}
OPERATOR_DATABASE = ("numpy", "expecttest")
"""What ``torch.testing`` imports; their bounds are those of requirements/*.in."""
INSTALLED_APART = {"torch"}
BYTES_MAX = 60 * 2**20
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
SECONDS_MAX = 900


def name_of(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement)[0].lower()


def requirements(checkout: Path = CHECKOUT) -> list[str]:
    """What the packages ask for, to build and to run, each once."""
    found: dict[str, str] = {}
    for package in PACKAGES:
        content = tomllib.loads((checkout / package / "pyproject.toml").read_text(encoding="utf-8"))
        project = content["project"]
        extra = project.get("optional-dependencies", {}).get(EXTRAS.get(package, ""), [])
        for line in (*content["build-system"]["requires"], *project["dependencies"], *extra):
            found.setdefault(name_of(line), line)
    for path in sorted((checkout / "requirements").glob("*.in")):
        for line in path.read_text(encoding="utf-8").split():
            if name_of(line) in OPERATOR_DATABASE:
                found.setdefault(name_of(line), line)
    return [line for name, line in sorted(found.items()) if name not in INSTALLED_APART and not name.startswith("forebay")]


def gather(folder: Path, python: str, platforms: list[str]) -> None:
    """Downloads the wheels into a folder that holds nothing else. Raises subprocess.CalledProcessError."""
    shutil.rmtree(folder, ignore_errors=True)
    target = [word for platform in platforms for word in ("--platform", platform)]
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--only-binary=:all:"]
    command += ["--python-version", python, *target, "--dest", str(folder), *requirements()]
    subprocess.run(command, check=True, timeout=SECONDS_MAX)


def main() -> int:
    """The exit status: 1 where a wheel is missing, or all are too large."""
    parser = argparse.ArgumentParser(prog="make wheels-gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="3.12", help="the server's Python (default: 3.12)")
    parser.add_argument("--platform", nargs="+", default=PLATFORMS, help=f"the server's platforms (default: {' '.join(PLATFORMS)})")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where they go; it is made anew (default: build/wheels-gpu)")
    options = parser.parse_args()
    try:
        gather(options.folder, options.python, list(options.platform))
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        print(f"make wheels-gpu: pip did not get the wheels ({error.__class__.__name__}); what it says stands above", file=sys.stderr)
        return 1
    wheels = sorted(options.folder.glob("*.whl"), key=lambda path: -path.stat().st_size)
    size = sum(path.stat().st_size for path in wheels)
    for path in wheels:
        print(f"{path.stat().st_size / 2**20:6.1f} MiB  {path.name}")
    print(f"{size / 2**20:6.1f} MiB  {len(wheels)} wheels for Python {options.python} in {options.folder}")
    if size > BYTES_MAX:
        print(f"make wheels-gpu: that is more than the {BYTES_MAX / 2**20:.0f} MiB that are to travel", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

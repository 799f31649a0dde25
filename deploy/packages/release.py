"""``make version`` gives the repository a version; ``make release`` makes what is handed out of it, in ``build/release/VERSION``.

A release is its wheels with their index page and the versions of others' packages that they were tested with (``constraints.txt``), the
Helm chart, what ``deploy`` has for containers, Prometheus and Grafana, its part of the changelog, its bill of materials (CycloneDX), the
SHA-256 sums of all of these, and, with a key, a signature of the sums by OpenSSH (``ssh-keygen -Y``), which every host can check without
a network.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
import time
import tomllib
from pathlib import Path

from wheels import CHECKOUT, CONSTRAINTS, DIST, WheelsError, epoch_of, write_index
from wheels import make as make_wheels

RELEASES = CHECKOUT / "build" / "release"
PACKAGES = ("wire", "device", "jax", "tf", "worker", "service", "pool", "billing", "hub", "spawner", "dashboards", "admin", "lab")
CHART = Path("deploy", "helm", "Chart.yaml")
CHART_LEFT_OUT = ("examples",)
"""As ``.helmignore`` has it."""
DEPLOYED = ("containers", "helm/examples", "prometheus", "grafana/dashboards", "grafana/provisioning")
"""Folders of ``deploy`` that operators use as they lie there."""
VERSION = re.compile(r"\d+\.\d+\.\d+")
SUMS = "SHA256SUMS"
NAMESPACE = "forebay-release"
"""What signatures are for: one made for another purpose is refused."""
UNRELEASED = "## Unreleased\n"


class ReleaseError(Exception):
    """Why there is no release; the message says what to do."""


def version_of(checkout: Path) -> str:
    """The version that all packages have. Raises ReleaseError where they differ."""
    found = {}
    for package in PACKAGES:
        found[package] = tomllib.loads((checkout / package / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    found["lab/package.json"] = json.loads((checkout / "lab" / "package.json").read_text(encoding="utf-8"))["version"]
    for name, version in re.findall(r"^(version|appVersion): (.*)$", (checkout / CHART).read_text(encoding="utf-8"), re.MULTILINE):
        found[f"{CHART}: {name}"] = version
    if len(set(found.values())) != 1:
        raise ReleaseError(f"The packages differ in their versions ({found}); run: make version VERSION=…")
    return str(found["wire"])


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def set_version(checkout: Path, version: str, day: str) -> None:
    """Writes a version into every package, and closes the changelog's open part under it. Raises ReleaseError."""
    before = version_of(checkout)
    if not VERSION.fullmatch(version) or _numbers(version) < _numbers(before):
        raise ReleaseError(f"{version} cannot follow {before}: versions are MAJOR.MINOR.PATCH, and rise")
    changelog = checkout / "CHANGELOG.md"
    text = changelog.read_text(encoding="utf-8")
    if f"## {version} " in text:
        raise ReleaseError(f"CHANGELOG.md has a section for {version} already")
    if not _section(text, "Unreleased"):
        raise ReleaseError("CHANGELOG.md says of nothing that is new under `## Unreleased`")
    changelog.write_text(text.replace(UNRELEASED, f"{UNRELEASED}\n## {version} ({day})\n", 1), encoding="utf-8")
    for package in PACKAGES:
        project = checkout / package / "pyproject.toml"
        content = project.read_text(encoding="utf-8").replace(f'version = "{before}"', f'version = "{version}"', 1)
        content = re.sub(rf'"(forebay[\w\[\],-]*)=={re.escape(before)}"', rf'"\1=={version}"', content)
        project.write_text(content, encoding="utf-8")
    chart = (checkout / CHART).read_text(encoding="utf-8")
    (checkout / CHART).write_text(re.sub(r"^(version|appVersion): .*$", rf"\1: {version}", chart, flags=re.MULTILINE), encoding="utf-8")
    for name in ("package.json", "package-lock.json"):
        file = checkout / "lab" / name
        file.write_text(file.read_text(encoding="utf-8").replace(f'"version": "{before}"', f'"version": "{version}"', 1), encoding="utf-8")


def _section(changelog: str, title: str) -> str:
    """What the changelog says under a heading that begins so."""
    found = re.search(rf"^## {re.escape(title)}[^\n]*\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    return found[1].strip() if found else ""


def changes_of(checkout: Path, version: str) -> str:
    """The changelog's part of a version. Raises ReleaseError where there is none."""
    text = _section((checkout / "CHANGELOG.md").read_text(encoding="utf-8"), f"{version} ")
    if not text:
        raise ReleaseError(f"CHANGELOG.md has no section for {version}; run: make version VERSION={version}")
    return f"# Forebay {version}\n\n{text}\n"


def make(checkout: Path, dist: Path, folder: Path, epoch: int, key: Path | None) -> Path:
    """Lays a release of the wheels in ``dist`` into a folder of its own, which is made anew. Raises ReleaseError."""
    from bill_of_materials import bill_of  # with a package that ``make version`` needs not

    version = version_of(checkout)
    changes = changes_of(checkout, version)
    wheels = sorted(dist.glob("*.whl"))
    others = [wheel.name for wheel in wheels if wheel.name.split("-")[1] != version]
    if others or not wheels:
        raise ReleaseError(f"{dist} has not the wheels of {version} ({', '.join(others) or 'none'}); run: make setup, then make release")
    shutil.rmtree(folder / version, ignore_errors=True)
    target = folder / version
    target.mkdir(parents=True)
    for wheel in wheels:
        shutil.copy2(wheel, target)
    write_index(target)
    shutil.copy2(dist / CONSTRAINTS, target)
    lay_deployment(checkout / "deploy", target, version, epoch)
    (target / "CHANGES.md").write_text(changes, encoding="utf-8")
    (target / f"forebay-{version}.cdx.json").write_text(bill_of(wheels, checkout / "requirements", version, epoch), encoding="utf-8")
    files = sorted(path for path in target.rglob("*") if path.is_file())
    sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(target)}\n" for path in files)
    (target / SUMS).write_text(sums, encoding="utf-8")
    if key is not None:
        sign(target / SUMS, key)
    return target


def lay_deployment(deploy: Path, target: Path, version: str, epoch: int) -> None:
    """The chart as one file, and the other folders of ``deploy`` as they are."""
    for name in DEPLOYED:
        shutil.copytree(deploy / name, target / "deploy" / name)
    chart = deploy / "helm"
    files = [path for path in sorted(_files_below(chart)) if path.relative_to(chart).parts[0] not in CHART_LEFT_OUT]
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path in files:
            entry = tarfile.TarInfo(f"forebay/{path.relative_to(chart)}")
            content = path.read_bytes()
            entry.size, entry.mtime, entry.mode = len(content), epoch, 0o644
            archive.addfile(entry, io.BytesIO(content))
    (target / f"forebay-{version}.tgz").write_bytes(gzip.compress(packed.getvalue(), mtime=epoch))


def _files_below(folder: Path) -> list[Path]:
    """Those behind links to folders too, which the chart has: alerts and boards are elsewhere in the checkout."""
    found = []
    for path in folder.iterdir():
        found += _files_below(path) if path.is_dir() else [path]
    return found


def sign(sums: Path, key: Path) -> None:
    """Writes ``SHA256SUMS.sig``. Raises ReleaseError."""
    command = ["ssh-keygen", "-Y", "sign", "-q", "-f", str(key), "-n", NAMESPACE, str(sums)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise ReleaseError(f"The sums are not signed: {done.stderr.strip()}")


def main() -> int:
    """The exit status: 1 where there is no release."""
    parser = argparse.ArgumentParser(prog="make release", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    setting = commands.add_parser("version", help="give all packages a version, and close the changelog's open part under it")
    setting.add_argument("version")
    making = commands.add_parser("make", help="make a release of the version that the packages have")
    making.add_argument("torch", nargs="*", help="as of wheels.py")
    making.add_argument("--index", help="as of wheels.py")
    making.add_argument("--key", type=Path, help="private key of OpenSSH, or the public one of a key that an agent holds")
    options = parser.parse_args()
    try:
        if options.command == "version":
            set_version(CHECKOUT, options.version, time.strftime("%Y-%m-%d", time.gmtime()))
            return 0
        epoch = epoch_of(CHECKOUT)
        changes_of(CHECKOUT, version_of(CHECKOUT))  # before minutes are spent on wheels
        make_wheels(DIST, options.torch, options.index or None, epoch)
        print(f"The release is in {make(CHECKOUT, DIST, RELEASES, int(epoch), options.key)}")
    except (ReleaseError, WheelsError) as error:
        print(f"make release: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A release, rehearsed: a version, its changes, its bill of materials, its sums and their signature."""

from __future__ import annotations

import json
import shutil
import subprocess
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

CHECKOUT = Path(__file__).resolve().parents[2]
EPOCH = 1_700_000_000


@pytest.fixture
def releasing(wheels: ModuleType) -> ModuleType:
    """``deploy/packages/release.py``, whose folder is that of ``wheels.py``."""
    import release

    return release


@pytest.fixture
def copy(tmp_path: Path, releasing: ModuleType) -> Path:
    """What a release reads and writes of the checkout."""
    folder = tmp_path / "checkout"
    for package in releasing.PACKAGES:
        (folder / package).mkdir(parents=True)
        shutil.copy(CHECKOUT / package / "pyproject.toml", folder / package)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(CHECKOUT / "lab" / name, folder / "lab")
    (folder / releasing.CHART).parent.mkdir(parents=True)
    shutil.copy(CHECKOUT / releasing.CHART, folder / releasing.CHART)
    shutil.copytree(CHECKOUT / "requirements", folder / "requirements")
    shutil.copy(CHECKOUT / "CHANGELOG.md", folder)
    return folder


def test_a_version_is_that_of_every_package_and_of_what_they_ask_of_each_other(releasing: ModuleType, copy: Path) -> None:
    releasing.set_version(copy, "0.2.0", "2026-11-25")
    assert releasing.version_of(copy) == "0.2.0"
    assert (copy / releasing.CHART).read_text(encoding="utf-8").count("ersion: 0.2.0\n") == 2
    wanted = []
    for package in releasing.PACKAGES:
        project = tomllib.loads((copy / package / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        lists = [project.get("dependencies", []), *project.get("optional-dependencies", {}).values()]
        wanted += [line for lines in lists for line in lines if line.startswith("forebay")]
    assert len(wanted) > 10 and all(line.endswith("==0.2.0") for line in wanted), wanted


def test_the_changelog_s_open_part_becomes_that_of_the_version(releasing: ModuleType, copy: Path) -> None:
    before = (copy / "CHANGELOG.md").read_text(encoding="utf-8")
    with pytest.raises(releasing.ReleaseError, match=r"no section for 0\.1\.0; run: make version"):
        releasing.changes_of(copy, "0.1.0")
    releasing.set_version(copy, "0.1.0", "2026-11-25")
    text = (copy / "CHANGELOG.md").read_text(encoding="utf-8")
    assert text.replace("\n## 0.1.0 (2026-11-25)\n", "", 1) == before
    assert releasing.changes_of(copy, "0.1.0").startswith("# Forebay 0.1.0\n\nThe first thin line")
    with pytest.raises(releasing.ReleaseError, match=r"a section for 0\.1\.0 already"):
        releasing.set_version(copy, "0.1.0", "2026-11-26")
    with pytest.raises(releasing.ReleaseError, match="nothing that is new"):
        releasing.set_version(copy, "0.1.1", "2026-11-26")


@pytest.mark.parametrize("version", ["0.0.9", "1.0", "2.0.0rc1"])
def test_a_version_that_does_not_rise_or_is_no_version_is_refused(releasing: ModuleType, copy: Path, version: str) -> None:
    with pytest.raises(releasing.ReleaseError, match=r"cannot follow 0\.1\.0"):
        releasing.set_version(copy, version, "2026-11-25")


def test_a_release_is_complete_signed_and_twice_the_same(releasing: ModuleType, copy: Path, dist: Path, tmp_path: Path) -> None:
    releasing.set_version(copy, "0.1.0", "2026-11-25")
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "release@example.org", "-f", key], check=True)
    release = releasing.make(copy, dist, tmp_path / "first", EPOCH, key)
    again = releasing.make(copy, dist, tmp_path / "second", EPOCH, None)
    kept = {path.name: path.read_bytes() for path in again.iterdir()}
    assert {path.name: path.read_bytes() for path in release.iterdir() if path.suffix != ".sig"} == kept
    checked = subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=release, capture_output=True, text=True, check=True)
    assert len(checked.stdout.splitlines()) == len(kept) - 1
    allowed = tmp_path / "allowed"
    allowed.write_text(f"release@example.org {key.with_suffix('.pub').read_text()}")
    verify = ["ssh-keygen", "-Y", "verify", "-f", allowed, "-I", "release@example.org", "-n", "forebay-release", "-s", "SHA256SUMS.sig"]
    sums = (release / "SHA256SUMS").read_bytes()
    assert subprocess.run(verify, cwd=release, input=sums, capture_output=True, check=False).returncode == 0
    assert subprocess.run(verify, cwd=release, input=sums + b" ", capture_output=True, check=False).returncode != 0


def test_the_bill_of_materials_is_valid_and_knows_ours_theirs_and_what_the_extension_has_taken_in(
    releasing: ModuleType, copy: Path, dist: Path, tmp_path: Path
) -> None:
    releasing.set_version(copy, "0.1.0", "2026-11-25")
    text = (releasing.make(copy, dist, tmp_path / "out", EPOCH, None) / "forebay-0.1.0.cdx.json").read_text(encoding="utf-8")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    bill = json.loads(text)
    assert bill["metadata"]["timestamp"].startswith("2023-11-14T22:13:20")
    by_name = {component["name"]: component for component in bill["components"]}
    assert by_name["forebay-wire"]["hashes"][0]["alg"] == "SHA-256" and by_name["forebay-wire"]["licenses"]
    assert by_name["tornado"]["purl"] == f"pkg:pypi/tornado@{by_name['tornado']['version']}"
    assert by_name["style-loader"]["purl"].startswith("pkg:npm/style-loader@")
    needs = {entry["ref"]: entry.get("dependsOn", []) for entry in bill["dependencies"]}
    (pool,) = (ref for ref in needs if ref.startswith("forebay_pool-"))
    assert by_name["sqlalchemy"]["bom-ref"] in needs[pool]
    assert any(ref.startswith("forebay_wire-") for ref in needs[pool])


def test_wheels_of_another_version_are_refused(releasing: ModuleType, copy: Path, dist: Path, tmp_path: Path) -> None:
    releasing.set_version(copy, "0.2.0", "2026-11-25")
    with pytest.raises(releasing.ReleaseError, match=r"has not the wheels of 0\.2\.0 \(forebay"):
        releasing.make(copy, dist, tmp_path / "out", EPOCH, None)

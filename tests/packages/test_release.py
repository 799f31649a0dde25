"""A release, rehearsed: a version, its changes, its bill of materials, its sums and their signature."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

CHECKOUT = Path(__file__).resolve().parents[2]
PAGES = ("install", "add-a-host", "kubernetes", "monitoring", "upgrade")
EPOCH = 1_700_000_000
CHANGELOG = "# Changelog\n\n## Unreleased\n\n### Added\n\n- A thin line.\n"


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
    for name in ("helm", "containers", "prometheus", "grafana"):
        shutil.copytree(CHECKOUT / "deploy" / name, folder / "deploy" / name, symlinks=True)
    shutil.copytree(CHECKOUT / "requirements", folder / "requirements")
    (folder / "CHANGELOG.md").write_text(CHANGELOG)
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
    assert releasing.changes_of(copy, "0.1.0") == "# Forebay 0.1.0\n\n### Added\n\n- A thin line.\n"
    with pytest.raises(releasing.ReleaseError, match=r"a section for 0\.1\.0 already"):
        releasing.set_version(copy, "0.1.0", "2026-11-26")
    with pytest.raises(releasing.ReleaseError, match="nothing that is new"):
        releasing.set_version(copy, "0.1.1", "2026-11-26")


KINDS = ["Added", "Changed", "Fixed", "Upgrade"]


def test_the_changelog_has_a_section_for_this_version_and_each_says_what_is_of_which_kind(releasing: ModuleType) -> None:
    """So `make release` has what it needs in a fresh clone."""
    assert releasing.changes_of(CHECKOUT, releasing.version_of(CHECKOUT))
    text = (CHECKOUT / "CHANGELOG.md").read_text(encoding="utf-8")
    opened, *closed = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    assert opened.startswith("Unreleased\n") and closed
    for section in closed:
        kinds = re.findall(r"^### (.*)$", section, re.MULTILINE)
        assert kinds == [kind for kind in KINDS if kind in kinds] and "Upgrade" in kinds
        bullets = [bullet for kind in section.split("\n### ")[1:] for bullet in re.split(r"^- ", kind, flags=re.MULTILINE)[1:]]
        assert bullets and not [bullet for bullet in bullets if len(bullet.strip().splitlines()) > 3]


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
    kept = contents(again)
    assert {name: content for name, content in contents(release).items() if not name.endswith(".sig")} == kept
    checked = subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=release, capture_output=True, text=True, check=True)
    assert len(checked.stdout.splitlines()) == len(kept) - 1
    allowed = tmp_path / "allowed"
    allowed.write_text(f"release@example.org {key.with_suffix('.pub').read_text()}")
    verify = ["ssh-keygen", "-Y", "verify", "-f", allowed, "-I", "release@example.org", "-n", "forebay-release", "-s", "SHA256SUMS.sig"]
    sums = (release / "SHA256SUMS").read_bytes()
    assert subprocess.run(verify, cwd=release, input=sums, capture_output=True, check=False).returncode == 0
    assert subprocess.run(verify, cwd=release, input=sums + b" ", capture_output=True, check=False).returncode != 0


def contents(folder: Path) -> dict[str, bytes]:
    """Of all files, by their place."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_pages_of_operators_find_in_a_release_what_they_name(releasing: ModuleType, copy: Path, dist: Path, tmp_path: Path) -> None:
    """Those that begin in its folder, and those that copy what is in ``deploy``; made from the pages' own text."""
    releasing.set_version(copy, "0.1.0", "2026-11-25")
    laid = releasing.make(copy, dist, tmp_path / "out", EPOCH, None)
    pages = "".join((CHECKOUT / "docs" / "operators" / f"{name}.md").read_text(encoding="utf-8") for name in PAGES)
    shell = "".join(re.findall(r"^```sh\n(.*?)^```", pages, re.MULTILINE | re.DOTALL)).replace("RELEASE/", "")
    named = set(re.findall(r"(?<![\w/])(?:deploy/[\w/.-]+|index\.html|constraints\.txt|SHA256SUMS|forebay-[\d.]+\.tgz)", shell))
    named |= set(re.findall(r"`(deploy/(?:containers|helm/examples|prometheus|grafana)[\w/.-]*)`", pages))
    assert {"constraints.txt", "forebay-0.1.0.tgz", "deploy/containers/Containerfile", "deploy/prometheus"} <= named
    assert not [name for name in named if not (laid / name).exists()]


def test_the_chart_of_a_release_is_that_of_the_checkout(releasing: ModuleType, copy: Path, dist: Path, tmp_path: Path) -> None:
    helm = shutil.which("helm", path=CHECKOUT / ".venv" / "bin")
    if helm is None:
        pytest.skip("no Helm is installed (python3 deploy/local/install.py --dev)")
    releasing.set_version(copy, "0.2.0", "2026-11-25")
    releasing.lay_deployment(copy / "deploy", tmp_path / "out", "0.2.0", EPOCH)

    def shown(chart: Path) -> str:
        values = ["--values", tmp_path / "out" / "deploy" / "helm" / "examples" / "gpus.yaml", "--set", "secretName=ours"]
        words = [helm, "template", "cloud", chart, *values, "--set", "monitoring.enabled=true"]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout

    packed = shown(tmp_path / "out" / "forebay-0.2.0.tgz")
    assert packed == shown(copy / "deploy" / "helm") and "forebay-hub:0.2.0" in packed
    assert "kind: PrometheusRule" in packed and "board-fleet" in packed, "what is behind links is in it"


def test_what_a_release_pins_is_what_was_tested(dist: Path) -> None:
    """Whatever the images and the pages install of others has a version there."""
    lines = (dist / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = {canonicalize_name(Requirement(line).name) for line in lines}
    known = {*pins, "torch", "numpy", "amdsmi", "tensorflow-cpu"}
    projects = [tomllib.loads(file.read_text(encoding="utf-8"))["project"] for file in CHECKOUT.glob("*/pyproject.toml")]
    lists = [lines for one in projects for lines in (one.get("dependencies", []), *one.get("optional-dependencies", {}).values())]
    others = {canonicalize_name(Requirement(line).name) for lines in lists for line in lines}
    assert not {name for name in others if not name.startswith("forebay")} - known - {"grafana-client"}


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

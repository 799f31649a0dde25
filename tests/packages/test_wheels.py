"""The wheels: what is in them, that the same sources give the same bytes, and that they are enough to use ``cuda:0``."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from forebay_wire.torch_builds import folder_of

CHECKOUT = Path(__file__).resolve().parents[2]
CATALOGUE = CHECKOUT / "models" / "catalogue.toml"
EPOCH = "1700000000"
TRAIN = """
import torch
assert torch.cuda.get_device_name(0).startswith("Forebay"), torch.cuda.get_device_name(0)
x = torch.arange(6., device="cuda").reshape(2, 3)
print((x @ x.T).cpu().tolist())
"""


def packages() -> set[str]:
    """The names of all packages of the repository, but for the one that is built against TensorFlow, which is not installed here."""
    projects = [tomllib.loads(path.read_text(encoding="utf-8"))["project"] for path in CHECKOUT.glob("*/pyproject.toml")]
    return {str(project["name"]) for project in projects} - {"forebay-tensorflow"}


def test_there_is_one_wheel_of_each_package_and_none_says_linux_alone(dist: Path) -> None:
    names = [wheel.name.split("-") for wheel in dist.glob("*.whl")]
    assert sorted(parts[0].replace("_", "-") for parts in names) == sorted(packages())
    native = {parts[0]: parts[4] for parts in names if parts[4] != "any.whl"}
    assert set(native) == {"forebay", "forebay_jax", "forebay_wire", "forebay_worker"}
    assert all(re.fullmatch(r"manylinux_2_\d+_x86_64\.whl", tag) for tag in native.values()), native


def test_no_library_of_pytorch_or_others_was_put_into_a_wheel(dist: Path) -> None:
    for wheel in dist.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            libraries = [name for name in archive.namelist() if ".so" in name]
        ours = r"/(_C|_kineto|_executor|_stream)\.cpython-|/monitoring/libnvidia-ml\.so\.1$|/plugin\.so$"
        assert all(re.search(ours, name) for name in libraries), (wheel, libraries)


def test_the_index_page_has_a_link_with_the_checksum_of_each_wheel(dist: Path) -> None:
    links: list[str] = []

    class Page(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            links.extend(value for name, value in attrs if tag == "a" and name == "href" and value)

    Page().feed((dist / "index.html").read_text(encoding="utf-8"))
    assert links == [f"{wheel.name}#sha256={hashlib.sha256(wheel.read_bytes()).hexdigest()}" for wheel in sorted(dist.glob("*.whl"))]


def test_a_wheel_without_extensions_has_the_same_bytes_from_another_folder_umask_and_time(wheels: ModuleType, tmp_path: Path) -> None:
    made = []
    for place, mode in (("a", 0o644), ("a-folder-elsewhere", 0o600)):
        source, out = tmp_path / place / "hub", tmp_path / f"{place}-out"
        shutil.copytree(CHECKOUT / "hub", source, ignore=wheels.GENERATED, copy_function=shutil.copyfile)
        for path in source.rglob("*.py"):
            path.chmod(mode)
        out.mkdir()
        made.append(wheels.build_pure(source, out, EPOCH).read_bytes())
    assert made[0] == made[1]


@pytest.mark.full_sweep  # compiles for ten seconds
def test_the_wire_s_extension_has_the_same_bytes_built_elsewhere(wheels: ModuleType, tmp_path: Path) -> None:
    """Set-up built the first, in the checkout."""
    (first,) = (wheels.SET_UP / "wire").glob("*.whl")
    shutil.copytree(CHECKOUT / "wire", tmp_path / "elsewhere" / "wire", ignore=wheels.GENERATED)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps", "--wheel-dir", str(tmp_path)]
    subprocess.run([*pip, str(tmp_path / "elsewhere" / "wire")], check=True)
    (second,) = tmp_path.glob("*.whl")
    sealed = []
    for number, wheel in enumerate((first, second)):
        (tmp_path / str(number)).mkdir()
        sealed.append(wheels.seal([wheel], tmp_path / str(number), EPOCH).read_bytes())
    assert sealed[0] == sealed[1]


def test_builds_for_two_releases_of_pytorch_travel_in_one_wheel_and_each_finds_its_own(wheels: ModuleType, tmp_path: Path) -> None:
    """The second release is made of the first by name: what is tried is how wheels are joined and builds are found."""
    (first,) = (wheels.SET_UP / "worker").glob("*.whl")
    mine, other = folder_of(torch.__version__), "torch_2_11"
    second = tmp_path / first.name
    with zipfile.ZipFile(first) as archive, zipfile.ZipFile(second, "w") as copy:
        for name in archive.namelist():
            copy.writestr(name.replace(mine, other), archive.read(name))
    (tmp_path / "out").mkdir()
    joined = wheels.seal([first, second], tmp_path / "out", EPOCH)
    with zipfile.ZipFile(joined) as archive:
        assert archive.testzip() is None
        extensions = sorted(name for name in archive.namelist() if name.endswith(".so"))
        archive.extractall(tmp_path / "site")
    assert [name.split("/")[1] for name in extensions] == sorted([mine, other])
    ask = "import importlib.util; print(importlib.util.find_spec('forebay_worker._executor').origin)"
    variables = {"PYTHONPATH": str(tmp_path / "site")}
    found = subprocess.run([sys.executable, "-c", ask], env=variables, capture_output=True, text=True, check=True)
    assert Path(found.stdout.strip()).parent == tmp_path / "site" / "forebay_worker" / mine


def test_a_build_that_fails_is_told_with_the_compiler_s_first_errors(wheels: ModuleType) -> None:
    with pytest.raises(wheels.WheelsError, match=r"x\.cpp:3:1: error: no such name\n(line \d+\n?){15}$"):
        wheels.run("sh", "-c", "echo begin; echo 'x.cpp:3:1: error: no such name'; seq -f 'line %g' 40; exit 1", epoch=EPOCH)


def test_wheels_of_other_sources_are_not_joined(wheels: ModuleType, tmp_path: Path) -> None:
    (first,) = (wheels.SET_UP / "worker").glob("*.whl")
    second = tmp_path / first.name
    with zipfile.ZipFile(first) as archive, zipfile.ZipFile(second, "w") as copy:
        for name in archive.namelist():
            copy.writestr(name, archive.read(name) + (b"# changed\n" if name.endswith("link.py") else b""))
    with pytest.raises(wheels.WheelsError, match=r"other sources .* forebay_worker/link\.py differs"):
        wheels.seal([first, second], tmp_path, EPOCH)


def test_the_folder_alone_gives_a_device_to_an_environment_without_a_compiler(dist: Path, environment: Callable[..., Any]) -> None:
    new = environment("postgresql")
    assert shutil.which("c++", path=new.variables["PATH"]) is None
    new.install(dist, "forebay", "forebay-worker", "forebay-pool[postgresql]")
    version = new.run("forebay", "--version").stdout
    assert version.startswith("forebay 0.1.0 (built for torch 2.13; with torch 2.13.0"), version
    trained = new.run("python", "-c", TRAIN, FOREBAY_URL="local", HOME=str(new.folder))
    assert trained.returncode == 0, trained.stderr
    assert trained.stdout == "[[5.0, 14.0], [14.0, 50.0]]\n"
    assert new.run("forebay", "models", "list").stdout.count(" MiB ") == len(tomllib.loads(CATALOGUE.read_text(encoding="utf-8")))

"""Packages of an environment that are exchanged for another release's, and put back: ``forebay.toolkit.release.packages``; and a host
that joined, whose packages and invitation ``forebay node upgrade`` exchanges."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import shutil
import subprocess
import threading
import venv
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from forebay.toolkit.release.packages import KEPT, ExchangeError, Packages, Wheel
from forebay.toolkit.release.update import BESIDE_BYTES_MAX, Offer, update
from forebay.toolkit.release.update import _Index as Index
from forebay_admin.host.layout import Layout
from forebay_admin.host.upgrade import ReleaseFolder
from forebay_admin.node import upgrade
from forebay_admin.node.invitation import Invitation, NodeError, Releases
from installing import link

NO_FILES: Mapping[str, str] = {}


def wheel(folder: Path, name: str, version: str, needs: str = "", files: Mapping[str, str] = NO_FILES) -> Wheel:
    """A package of one module, which tells the version, and a program that prints it."""
    module, info = name.replace("-", "_"), f"{name.replace('-', '_')}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}"
    content = {
        f"{module}/__init__.py": f"VERSION = '{version}'\ndef main():\n    print(VERSION)\n",
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[console_scripts]\n{name} = {module}:main\n",
        **files,
    }
    path = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in content.items():
            archive.writestr(file, text)
        archive.writestr(f"{info}/RECORD", "".join(f"{file},,\n" for file in [*content, f"{info}/RECORD"]))
    return Wheel(path)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with pip, and a release of ours with an extra whose package is there, and one whose package is not."""
    folder, old = tmp_path_factory.mktemp("installed") / "environment", tmp_path_factory.mktemp("old")
    venv.create(folder, symlinks=True)
    link(folder, ["pip"])
    needs = 'Requires-Dist: helper>=1\nRequires-Dist: side; extra == "with-side"\nRequires-Dist: missing; extra == "without"\n'
    wheels = [wheel(old, "forebay", "0.1.0", needs), wheel(old, "forebay-wire", "0.1.0")]
    wheels += [wheel(old, name, "1.0") for name in ("helper", "side")]
    Packages(folder).pip("install", "--quiet", "--no-index", *(str(one.path) for one in wheels))
    return folder


@pytest.fixture
def environment(installed: Path, tmp_path: Path) -> Packages:
    """A copy for a test. Its programs begin with the other's interpreter, so they are called as modules."""
    shutil.copytree(installed, tmp_path / "environment", symlinks=True)
    return Packages(tmp_path / "environment")


def new_release(folder: Path, forebay: Mapping[str, str] = NO_FILES, wire: Mapping[str, str] = NO_FILES) -> dict[str, Wheel]:
    folder.mkdir()
    needs = 'Requires-Dist: helper>=2\nRequires-Dist: side; extra == "with-side"\nRequires-Dist: missing; extra == "without"\n'
    wheel(folder, "helper", "2.0", "Requires-Dist: more\n")
    wheel(folder, "more", "5.0")
    found = [wheel(folder, "forebay", "0.2.0", needs, forebay), wheel(folder, "forebay-wire", "0.2.0", files=wire)]
    return {one.name: one for one in found}


def content(environment: Packages) -> dict[str, str]:
    """Each file but what Python compiles, and what is kept."""
    paths = (path for path in environment.prefix.rglob("*") if path.is_file() and not path.is_symlink())
    paths = (path for path in paths if "__pycache__" not in path.parts and KEPT not in path.parts)
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def says(environment: Packages, module: str) -> str:
    command = [environment.python, "-c", f"import {module}; {module}.main()"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_a_release_takes_the_place_of_another_and_gives_it_back_without_an_index(environment: Packages, tmp_path: Path) -> None:
    was = content(environment)
    wheels = new_release(tmp_path / "new")
    wanted = environment.wanted(wheels)
    assert wanted == [str(wheels["forebay"].path), "forebay[with-side]==0.2.0", str(wheels["forebay-wire"].path)]
    options = ["--no-index", "--find-links", str(tmp_path / "new")]
    environment.check(wheels)
    coming = environment.resolve(wanted, options)
    assert coming == {"forebay": "0.2.0", "forebay-wire": "0.2.0", "helper": "2.0", "more": "5.0"}
    assert content(environment) == was
    before = environment.exchange(wanted, options, coming)
    assert (before.version, set(before.replaced), before.added) == ("0.1.0", {"forebay", "forebay-wire", "helper"}, ["more"])
    assert [says(environment, name) for name in ("forebay", "helper", "more", "side")] == ["0.2.0", "2.0", "5.0", "1.0"]
    shutil.rmtree(tmp_path / "new")
    assert environment.before() == before
    assert environment.put_back() == before
    assert content(environment) == was
    assert says(environment, "forebay") == "0.1.0" and environment.before() is None
    with pytest.raises(ExchangeError, match="nothing to go back to"):
        environment.put_back()


def test_an_installation_that_fails_in_its_middle_leaves_all_as_it_was(environment: Packages, tmp_path: Path) -> None:
    """What the new release brings lies where a file of somebody else's is."""
    (environment.site / "clash").write_text("a file")
    was = content(environment)
    wheels = new_release(tmp_path / "new", wire={"clash/module.py": "pass\n"})
    options = ["--no-index", "--find-links", str(tmp_path / "new")]
    with pytest.raises(ExchangeError, match=r"is as before: pip failed: .*clash"):
        environment.exchange(environment.wanted(wheels), options, {name: "2.0" for name in (*wheels, "helper", "more")})
    assert content(environment) == was and environment.before() is None


def test_packages_of_ours_may_ask_for_one_another_with_other_extras_than_are_there(environment: Packages, tmp_path: Path) -> None:
    """As on a control host with Ray: `forebay-admin[host]` asks for the pool with its database, and Ray is there too."""
    wheels = new_release(tmp_path / "new")
    asking = 'Requires-Dist: forebay-wire==0.2.0\nRequires-Dist: forebay[other]==0.2.0; extra == "all"\n'
    asking += 'Requires-Dist: side; extra == "all"\n'
    wheels["forebay-admin"] = wheel(tmp_path / "new", "forebay-admin", "0.2.0", asking)
    installed = wheel(tmp_path, "forebay-admin", "0.1.0", asking.replace("0.2.0", "0.1.0"))
    with zipfile.ZipFile(installed.path) as archive:
        archive.extractall(environment.site)
    wanted = environment.wanted(wheels)
    assert {"forebay[with-side]==0.2.0", "forebay-admin[all]==0.2.0"} <= set(wanted)
    coming = environment.resolve(wanted, ["--no-index", "--find-links", str(tmp_path / "new")])
    assert {name: coming[name] for name in wheels} == dict.fromkeys(wheels, "0.2.0")


def test_what_pip_cannot_resolve_is_refused_before_anything_is_kept(environment: Packages, tmp_path: Path) -> None:
    wheels = new_release(tmp_path / "new")
    (tmp_path / "new" / "more-5.0-py3-none-any.whl").unlink()
    was = content(environment)
    with pytest.raises(ExchangeError, match=r"^pip failed: .*No matching distribution found for more"):
        environment.resolve(environment.wanted(wheels), ["--no-index", "--find-links", str(tmp_path / "new")])
    assert content(environment) == was and not (environment.prefix / KEPT).exists()


def test_a_build_for_another_pytorch_is_refused(environment: Packages, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel(tmp_path, "torch", "2.12.1+cpu").path) as archive:
        archive.extractall(environment.site)
    wheels = new_release(tmp_path / "new", forebay={"forebay/torch_2_13/_C.so": "", "forebay/torch_2_9/_C.so": ""})
    with pytest.raises(ExchangeError, match=r"is built for torch 2\.9, 2\.13, and .* has torch 2\.12\.1\+cpu; install one of those first"):
        environment.check(wheels)


def test_a_package_without_a_wheel_in_the_release_is_told(environment: Packages, tmp_path: Path) -> None:
    wheels = new_release(tmp_path / "new")
    del wheels["forebay-wire"]
    with pytest.raises(ExchangeError, match="has forebay-wire, of which the other release has no wheel"):
        environment.wanted(wheels)


@dataclass
class ToldRelease:
    """What a pool says of its release; None: it does not know the question yet."""

    version: str | None
    url: str = ""


@pytest.fixture
def told() -> Iterator[ToldRelease]:
    pool = ToldRelease("0.1.0")

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.path == "/api/release" and pool.version is not None
            self.send_response(200 if known else 404)
            self.end_headers()
            self.wfile.write(json.dumps({"version": pool.version}).encode() if known else b"")

        def log_message(self, *words: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        pool.url = f"http://127.0.0.1:{server.server_port}/"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield pool
        server.shutdown()
        thread.join()


@pytest.mark.skipif(os.getuid() != 0, reason="units and their files are root's")
def test_a_host_that_joined_is_brought_to_the_pool_s_release_and_back_and_stays_who_it_is(
    environment: Packages, tmp_path: Path, told: ToldRelease, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it would join with stands for itself here: a program that says its release."""
    wheels = new_release(tmp_path / "others")
    new = tmp_path / "new"
    new.mkdir()
    for one in wheels.values():
        shutil.move(one.path, new)
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in new.iterdir()]
    (new / "SHA256SUMS").write_text("".join(sums))
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "others"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    layout, release = Layout(tmp_path / "host", environment.prefix), ReleaseFolder.read(new)
    own = {"name": "gpu-1", "address": "10.93.0.2", "head": "10.93.0.1:6379", "pool": told.url, "devices": "cpu", "model": "", "switch": ""}
    secret = {"authority": "-", "certificate": "-", "key": "a secret", "web_authority": ""}
    joined = Invitation(**own, **secret, worker_uids="60520-60523", **vars(Releases("0.1.0", "2.50.0", Releases.here().python, "2.13")))
    kept = layout.settings / "node.toml"
    kept.parent.mkdir(parents=True)
    kept.write_text(joined.toml)
    was = content(environment)

    upgrade.upgrade(layout, release, check_only=True)
    with pytest.raises(NodeError, match=r"has 0\.1\.0, and .* is 0\.2\.0: bring the control host to that first"):
        upgrade.upgrade(layout, release, check_only=False)
    with pytest.raises(NodeError, match="no upgrade was made here"):
        upgrade.rollback(layout)
    assert content(environment) == was and kept.read_text() == joined.toml

    told.version = "0.2.0"
    upgrade.upgrade(layout, release, check_only=False)
    assert says(environment, "forebay") == "0.2.0" and kept.stat().st_mode & 0o777 == 0o600
    changed = set(kept.read_text().splitlines()) ^ set(joined.toml.splitlines())
    assert {line.split(" = ")[0] for line in changed} == {"forebay", "ray", "torch"}, "neither of the last two is installed here"
    with pytest.raises(NodeError, match=r"This host has 0\.2\.0"):
        upgrade.upgrade(layout, release, check_only=False)
    with pytest.raises(NodeError, match=r"`forebay admin rollback` on the control host comes first"):
        upgrade.rollback(layout)

    told.version = None
    upgrade.rollback(layout)
    assert content(environment) == was and kept.read_text() == joined.toml


# What `forebay update` takes from beside the page of wheels


@pytest.mark.parametrize("constrained", [True, False])
def test_an_update_brings_others_packages_at_the_versions_that_the_release_names(
    environment: Packages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], constrained: bool
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    new_release(tmp_path / "release")
    wheel(tmp_path / "release", "helper", "3.0")
    if constrained:
        (tmp_path / "release" / "constraints.txt").write_text("helper==2.0\nmore==5.0\nnobody-has-this==9\n")
    (tmp_path / "download").mkdir()
    index = Index(str(tmp_path / "release"), tmp_path / "download")
    update(environment, index, None, Offer(None, None), check_only=True)
    told = capsys.readouterr().out
    assert ("helper 1.0 -> 2.0" in told, "constraints.txt" in told) == (constrained, constrained)
    update(environment, index, None, Offer(None, None), check_only=False)
    assert environment.installed()["helper"].version == ("2.0" if constrained else "3.0")
    assert environment.version() == "0.2.0"


@pytest.mark.parametrize("answer", [500, 403, b"x" * (BESIDE_BYTES_MAX + 1), b"\xff"])
def test_an_update_whose_named_versions_cannot_be_read_changes_nothing(
    environment: Packages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: int | bytes
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    new_release(tmp_path / "release")

    class Page(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *words: Any) -> None:
            super().__init__(*words, directory=str(tmp_path / "release"))

        def do_GET(self) -> None:
            if not self.path.endswith("constraints.txt"):
                super().do_GET()
                return
            self.send_response(answer if isinstance(answer, int) else 200)
            self.end_headers()
            self.wfile.write(answer if isinstance(answer, bytes) else b"")

        def log_message(self, *_words: Any) -> None: ...

    (tmp_path / "download").mkdir()
    before = content(environment)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        index = Index(f"http://127.0.0.1:{server.server_address[1]}/", tmp_path / "download")
        with pytest.raises(ExchangeError, match=r"constraints\.txt of http://127.* cannot be read .*Nothing was changed"):
            update(environment, index, None, Offer(None, None), check_only=False)
        server.shutdown()
    assert content(environment) == before

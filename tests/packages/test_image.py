"""``forebay run --image``, and the page's plain ``docker run``: the entry script really runs, an engine is stood in for.

At length podman runs both.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shlex
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import requires
from pathlib import Path

import debian_tree
import pytest
from forebay import monitors
from forebay.service.embedded import EmbeddedPool
from forebay.toolkit import image
from installing import SITE, Environment, link
from packaging.requirements import Requirement

STAND_IN = Path(__file__).with_name("stand_in_engine.py")
CHECKOUT = Path(__file__).resolve().parents[2]
TRAIN = """
import importlib.util, os, sys, torch
x = torch.arange(6., device="cuda").reshape(2, 3)
print((x @ x.T).cpu().tolist(), torch.cuda.get_device_name(0), os.environ.get("HOME"), importlib.util.find_spec("forebay_pool"))
sys.exit(7)
"""
Forebay = Callable[..., subprocess.CompletedProcess[str]]


def below_torch() -> set[str]:
    """PyTorch, numpy, and what they need."""
    found, left = set(), ["torch", "numpy"]
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += [need.name for need in map(Requirement, requires(name) or []) if need.marker is None]
    return found


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an engine, and an image: an environment with PyTorch and nothing of ours."""
    folder = tmp_path_factory.mktemp("engine")
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("the stand-in for an engine mounts, which is root's")
    Environment(folder / "image", below_torch())
    (folder / "bin").mkdir()
    (folder / "bin" / "docker").write_text(f'#!/bin/sh\nexec {sys.executable} {STAND_IN} "$@"\n')
    (folder / "bin" / "docker").chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def pool() -> Iterator[EmbeddedPool]:
    made = EmbeddedPool(monitors.withhold)
    yield made
    made.stop()


@pytest.fixture
def forebay(stock: Path, pool: EmbeddedPool, tmp_path: Path) -> Forebay:
    """The command, typed where a program lies."""
    (tmp_path / "train.py").write_text(TRAIN)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FOREBAY_", "SSL_"))}
    variables = {**kept, "STAND_IN": str(stock), "PATH": f"{stock / 'bin'}:/usr/bin:/bin"}
    variables |= {"FOREBAY_URL": pool.service.url, "FOREBAY_TOKEN": pool.service.token}

    def run(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.prefix) / "bin" / "forebay"), *words]
        return subprocess.run(command, cwd=tmp_path, env=variables | more, capture_output=True, text=True, check=False, timeout=120)

    return run


def test_a_command_computes_in_an_image_that_has_nothing_of_ours(forebay: Forebay, stock: Path, pool: EmbeddedPool, tmp_path: Path) -> None:
    done = forebay("run", "--flavor", "dev.4gb", "--image", "stock", "--", "python", "train.py", "--rate", "1")
    assert (done.returncode, done.stdout) == (7, "[[5.0, 14.0], [14.0, 50.0]] Forebay dev.4gb (virtual) /tmp None\n"), done.stderr
    told = json.loads((stock / "told.json").read_text())
    assert told[0] == "run" and told[told.index("stock") :] == ["stock", image.ENTRY, "python", "train.py", "--rate", "1"]
    assert pool.service.token not in " ".join(told) and pool.service.url not in " ".join(told)
    assert {"--rm", "--interactive", "--network=host", f"--user={os.geteuid()}:{os.getegid()}", f"--workdir={tmp_path}"} <= set(told)
    volumes = [word.removeprefix("--volume=").split(":") for word in told if word.startswith("--volume=")]
    assert [volume[1:] for volume in volumes] == [["/mnt/forebay/client", "ro"], ["/mnt/forebay/settings", "ro"], [str(tmp_path)]]
    assert not Path(volumes[0][0]).exists(), "nothing of it stays"


def test_an_image_that_does_not_fit_is_told_in_a_sentence(forebay: Forebay, stock: Path) -> None:
    version = next((stock / "image").glob("lib/python*/site-packages/torch"))
    version.unlink()
    bare = forebay("run", "--image", "stock", "python", "train.py")
    assert bare.returncode == 1 and "The image has no torch for " in bare.stderr
    version.mkdir()
    (version / "version.py").write_text("__version__ = '2.4.1'\n")
    other = forebay("run", "--image", "stock", "python", "train.py")
    assert other.returncode == 1 and "torch 2.4.1, and the client is built for torch_2_" in other.stderr, other.stderr
    (version / "version.py").unlink()
    version.rmdir()
    version.symlink_to(Path(sys.prefix, "lib", version.parents[1].name, "site-packages", "torch"))
    assert forebay("run", "--image", "other", "true").returncode == 125
    assert "'nothing'" in forebay("run", "--flavor", "nothing", "--image", "stock", "true").stderr


@pytest.mark.parametrize(
    ("words", "variables", "sentence"),
    [
        (["--image", "stock", "true"], {"FOREBAY_URL": "local"}, "--image needs a service: set FOREBAY_URL and FOREBAY_TOKEN"),
        (["--image", "stock", "true"], {"PATH": "/nowhere"}, "neither docker nor podman is on PATH"),
        (["--image", "stock", "-m", "train"], {}, "forebay run --image IMAGE -- python -m module"),
        (["--volume", "/a:/b", "train.py"], {}, "--volume goes with --image"),
    ],
)
def test_what_cannot_be_run_in_an_image_is_refused(forebay: Forebay, words: list[str], variables: dict[str, str], sentence: str) -> None:
    refused = forebay("run", *words, **variables)
    assert refused.returncode == 1 and sentence in refused.stderr and refused.stderr.count("\n") == 1


def test_settings_are_files_that_only_their_owner_reads(tmp_path: Path) -> None:
    environment = {"FOREBAY_URL": "https://hub/", "JUPYTERHUB_API_TOKEN": "secret", "FOREBAY_PRIORITY": "3", "FOREBAY_OTHER": "x"}
    (tmp_path / "authority.pem").write_text("a certificate")
    image.lay_settings(tmp_path / "settings", image.settings_of(environment), str(tmp_path / "authority.pem"))
    found = {path.name: path.read_text() for path in (tmp_path / "settings").iterdir()}
    assert found == {"FOREBAY_URL": "https://hub/", "FOREBAY_TOKEN": "secret", "FOREBAY_PRIORITY": "3", "ca.crt": "a certificate"}
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "settings").iterdir()}
    assert modes["FOREBAY_TOKEN"] == 0o600 and stat.S_IMODE((tmp_path / "settings").stat().st_mode) == 0o700


def page_s_lines(pool: EmbeddedPool, name: str) -> str:
    """What the page has typed by hand; what lays the client with pip needs an index, and is done by the command's own means."""
    page = (CHECKOUT / "docs" / "users" / "containers.md").read_text(encoding="utf-8")
    script = "".join(re.findall(r"^```sh\n(.*?)^```", page.partition("\n## With `docker run`\n")[2], re.MULTILINE | re.DOTALL))
    lines = [line for line in script.replace("\\\n", "").splitlines() if not line.startswith("pip ")]
    return "\n".join(lines).replace("https://hub.example.org/services/pool/", shlex.quote(pool.service.url)).replace("IMAGE", name)


@pytest.mark.full_sweep  # another program that imports PyTorch
def test_the_page_s_plain_docker_run_computes_too(stock: Path, pool: EmbeddedPool, tmp_path: Path) -> None:
    image.lay_client(tmp_path / "client")
    (tmp_path / "train.py").write_text(TRAIN)
    typed = page_s_lines(pool, "stock")
    variables = {"STAND_IN": str(stock), "PATH": f"{stock / 'bin'}:/usr/bin:/bin", "TOKEN": pool.service.token}
    done = subprocess.run(["sh", "-euc", typed], cwd=tmp_path, env=variables, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout.partition(" Forebay")[0]) == (7, "[[5.0, 14.0], [14.0, 50.0]]"), done.stderr
    assert pool.service.token not in (stock / "told.json").read_text()


# An engine itself


PODMAN = """#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin CONTAINERS_CONF={folder}/containers.conf CONTAINERS_STORAGE_CONF={folder}/storage.conf
cgroups='mount -t tmpfs tmpfs /sys/fs; mkdir /sys/fs/cgroup; mount -t cgroup2 cgroup2 /sys/fs/cgroup'
exec unshare --mount --cgroup sh -ec "$cgroups"'; exec podman "$@"' sh "$@"
"""
"""It sees cgroups of version 2 alone, also where this machine has both."""
ENGINE = """
[containers]
cgroups = "disabled"
default_ulimits = ["nofile={files}:{files}", "nproc=4096:4096"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "crun"
"""
STORAGE = '[storage]\ndriver = "overlay"\ngraphroot = "{folder}/store"\nrunroot = "{folder}/run"\n'
LIBRARIES = "/usr/local/lib/python3.11/dist-packages"
"""Where Debian's Python looks for what is no package of Debian's."""
ENGINE_SECONDS_MAX = 600


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with podman, which has an image ``stock`` of Debian's own packages. PyTorch is mounted, so that no gigabyte is copied."""
    debian_tree.need("podman", "crun")
    folder = tmp_path_factory.mktemp("podman")
    (folder / "bin").mkdir()
    engine = folder / "bin" / "podman"
    engine.write_text(PODMAN.format(folder=folder))
    engine.chmod(0o755)
    (folder / "containers.conf").write_text(ENGINE.format(files=resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    (folder / "storage.conf").write_text(STORAGE.format(folder=folder))
    debian_tree.lay(folder / "tree")
    debian_tree.said(ENGINE_SECONDS_MAX, "tar", "-C", str(folder / "tree"), "-cf", str(folder / "tree.tar"), ".")
    debian_tree.said(ENGINE_SECONDS_MAX, str(engine), "import", str(folder / "tree.tar"), "stock")
    (folder / "environment" / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
    link(folder / "environment", below_torch())
    yield folder
    subprocess.run([engine, "system", "reset", "--force"], capture_output=True, check=False)


@pytest.mark.full_sweep
@pytest.mark.timeout(2 * ENGINE_SECONDS_MAX)
@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="Debian 12 has Python 3.11")
def test_podman_computes_by_the_command_and_by_the_page_s_plain_line(podman: Path, pool: EmbeddedPool, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    sockets, packages = tempfile.gettempdir(), f"{podman}/environment/lib/python3.11/site-packages"
    volumes = [f"{sockets}:{sockets}", f"{SITE}:{SITE}:ro", f"{packages}:{LIBRARIES}:ro"]
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("FOREBAY_", "SSL_"))}
    variables |= {"PATH": f"{podman}/bin", "FOREBAY_URL": pool.service.url, "FOREBAY_TOKEN": pool.service.token}

    def run(words: list[str], variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(words, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False, timeout=ENGINE_SECONDS_MAX)

    options = [word for volume in volumes for word in ("--volume", volume)]
    typed = [f"{sys.prefix}/bin/forebay", "run", "--flavor", "dev.4gb", "--image", "stock", *options, "--", "python3", "train.py"]
    done = run(typed, variables)
    assert (done.returncode, done.stdout) == (7, "[[5.0, 14.0], [14.0, 50.0]] Forebay dev.4gb (virtual) /root None\n"), done.stderr
    assert debian_tree.said(ENGINE_SECONDS_MAX, f"{podman}/bin/podman", "ps", "--all", "--quiet") == "", "nothing stays"

    image.lay_client(tmp_path / "client")
    more = " ".join(["--network=host", *(f"--volume={volume}" for volume in volumes)])
    plain = page_s_lines(pool, "stock").replace("docker run", f"{podman}/bin/podman run {more}").replace(" python ", " python3 ")
    done = run(["sh", "-euc", plain], {"PATH": "/usr/bin:/bin", "TOKEN": pool.service.token})
    assert (done.returncode, done.stdout.partition(" Forebay")[0]) == (7, "[[5.0, 14.0], [14.0, 50.0]]"), done.stderr

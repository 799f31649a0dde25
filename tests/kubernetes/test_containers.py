"""The images' Containerfile and the compose file, held against the packages, the chart, and the units of one host; and, at length, an
image that is built and run."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import debian_tree
import httpx
import pytest
import yaml
from chart import CHECKOUT, POD_IP, Chart, Object, rendered
from forebay_admin.host.answers import Answers
from forebay_admin.host.files import files
from forebay_admin.host.layout import Layout
from forebay_admin.host.units import units
from packaging.requirements import Requirement
from test_chart_pools import free_port

FOLDER = CHECKOUT / "deploy" / "containers"
CONTAINERFILE = FOLDER / "Containerfile"
UID = 10001
ROLES = {"hub", "pool", "billing", "dashboards", "node", "notebook", "admin", "host"}
SERVICES_PREFIX = Path("/opt/forebay-services")


@dataclass
class Stage:
    """Of the Containerfile, with what the stages below it have."""

    below: Stage | None
    requirements: list[Requirement] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def last(self, instruction: str) -> str:
        found = [line.partition(" ")[2] for line in self.lines if line.startswith(f"{instruction} ")]
        return found[-1] if found else self.below.last(instruction) if self.below else ""

    @property
    def variables(self) -> dict[str, str]:
        own = {}
        for line in self.lines:
            own |= dict(word.split("=", 1) for word in shlex.split(line.removeprefix("ENV "))) if line.startswith("ENV ") else {}
        return (self.below.variables if self.below else {}) | own

    @property
    def command(self) -> str:
        return str(json.loads(self.last("ENTRYPOINT") or self.last("CMD"))[0])


@pytest.fixture(scope="module")
def stages() -> dict[str, Stage]:
    text = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", CONTAINERFILE.read_text(encoding="utf-8"), flags=re.MULTILINE))
    found: dict[str, Stage] = {}
    stage = Stage(None)
    for line in filter(None, text.splitlines()):
        if start := re.fullmatch(r"FROM (\S+) AS (\S+)", line):
            stage = found[start[2]] = Stage(found.get(start[1]))
        stage.lines.append(line)
        for words in re.findall(r"pip install ([^&]*)", line):
            own = [word for word in shlex.split(re.sub(r"\$\{PROBE\}", "nvidia", words)) if "forebay" in word or word.startswith("ray")]
            stage.requirements += map(Requirement, own)
    return found


def test_each_role_is_a_target_and_runs_as_nobody_special(stages: dict[str, Stage], chart: Chart) -> None:
    assert set(stages) - {"wheels", "python", "torch"} == ROLES
    assert {stages[role].last("USER") for role in ROLES} == {f"{UID}:{UID}"}
    assert {pod.spec["securityContext"]["runAsUser"] for pod in chart.pods()} == {UID}


def test_the_chart_s_images_are_roles(chart: Chart) -> None:
    images = {container["image"] for pod in chart.pods() if pod.part != "proxy" for container in pod.containers}
    images |= {json.loads(chart.file("hub", "chart.json"))["traits"]["KubeSpawner"]["image"]}
    assert {re.split(r"[/-]", image.partition(":")[0])[-1] for image in images} == ROLES - {"host"}


def test_what_images_install_are_packages_with_these_extras(stages: dict[str, Stage]) -> None:
    projects = [tomllib.loads(file.read_text(encoding="utf-8"))["project"] for file in CHECKOUT.glob("*/pyproject.toml")]
    extras = {project["name"]: set(project.get("optional-dependencies", ())) for project in projects}
    asked = [one for stage in stages.values() for one in stage.requirements if one.name != "ray"]
    assert len(asked) >= 9
    assert not [str(one) for one in asked if one.name not in extras or not one.extras <= extras[one.name]]


def test_images_begin_with_a_program_of_what_they_install(stages: dict[str, Stage]) -> None:
    scripts = {"hub": "jupyterhub", "notebook": "jupyterhub-singleuser", "admin": "forebay", "host": "forebay", "node": "forebay-pool"}
    for role in ROLES:
        assert stages[role].command == scripts.get(role, f"forebay-{role}")
        assert shutil.which(stages[role].command, path=CHECKOUT / ".venv" / "bin"), "as set-up installs it here"


def test_images_hold_what_the_chart_looks_for_in_them(stages: dict[str, Stage], helm: str) -> None:
    chart = rendered(helm, "gpus")
    prefix = stages["node"].variables["PATH"].partition(":")[0]
    assert tomllib.loads(chart.file("pool", "pool.toml"))["worker_python"] == f"{prefix}/python"
    assert {"forebay-worker", "ray"} <= {one.name for one in stages["node"].requirements}
    assert any("ray" in one.extras for one in stages["pool"].requirements)
    home = stages["notebook"].variables["HOME"]
    mounts = json.loads(chart.file("hub", "chart.json"))["traits"]["KubeSpawner"]["volume_mounts"]
    assert home in {mount["mountPath"] for mount in mounts}
    assert all(stages[role].variables["HOME"] == "/tmp" for role in ROLES - {"notebook", "host"}), "where the chart lets them write"


# One host


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))["services"]
    return found


@pytest.fixture(scope="module")
def layout() -> Layout:
    return Layout(Path("/"), SERVICES_PREFIX)


def unit_of(layout: Layout, name: str) -> dict[str, list[str]]:
    """The section Service of a unit that ``forebay admin init`` writes."""
    text = units(Answers("gpu.example.org", devices="cpu"), layout)[f"forebay-{name}.service"].partition("[Service]\n")[2]
    settings: dict[str, list[str]] = {}
    for key, _, value in (line.partition("=") for line in text.splitlines() if "=" in line):
        settings.setdefault(key, []).append(value)
    return settings


NAMES = ("proxy", "hub", "pool", "billing", "dashboards", "backup")


@pytest.mark.parametrize("name", NAMES)
def test_a_container_runs_what_its_unit_runs(compose: dict[str, Any], layout: Layout, name: str) -> None:
    unit, container = unit_of(layout, name), compose[name]
    (command,) = unit["ExecStart"]
    words = container["command"]
    if name == "pool":  # who has no capability gives workers no account
        assert words[:2] == ["env", "--unset=FOREBAY_POOL_WORKER_ACCOUNT"]
        words = words[2:]
    program, *arguments = words
    own = command.rpartition(" -- ")[2]  # a container is one account's, workers included
    assert [f"{SERVICES_PREFIX}/bin/{program}", *arguments] == own.split()
    variables = [f"./settings/{Path(file).relative_to('/etc/forebay')}" for file in unit.get("EnvironmentFile", ())]
    assert container.get("env_file", []) == variables


@pytest.mark.parametrize("name", NAMES)
def test_a_container_may_write_where_its_unit_may(compose: dict[str, Any], layout: Layout, name: str) -> None:
    unit = unit_of(layout, name)
    own = {f"/var/lib/{folder}" for folder in unit.get("StateDirectory", ())}
    own |= {f"/run/{folder}" for folder in unit.get("RuntimeDirectory", ())}
    own |= {folder for line in unit.get("ReadWritePaths", ()) for folder in line.split()}
    writable = {target for target, read_only in mounts_of(compose[name]).items() if not read_only}
    sockets = {"/run/forebay"} if name == "hub" else set()  # connecting to a worker is writing to its socket
    assert writable == own | sockets


def mounts_of(container: Object) -> dict[str, bool]:
    """Where volumes are, and whether they are read alone."""
    return {parts[1]: parts[2:] == ["ro"] for parts in (volume.split(":") for volume in container.get("volumes", ()))}


def test_containers_find_the_files_that_init_writes(compose: dict[str, Any], layout: Layout) -> None:
    answers = Answers("gpu.example.org", devices="cpu")
    written = {str(file.path) for file in files(answers, Layout(Path("/"), SERVICES_PREFIX))}
    for name in NAMES:
        for source, target in ((parts[0], parts[1]) for parts in (volume.split(":") for volume in compose[name].get("volumes", ()))):
            if source.startswith("./settings/"):
                assert source.replace("./settings", "/etc/forebay", 1) in written, source
            if target.startswith("/run/credentials"):
                assert Path(target).parent == layout.credentials("forebay-proxy")
        named = [word for word in compose[name]["command"] if word.startswith("/etc/forebay/")]
        assert set(named) <= mounts_of(compose[name]).keys()


def test_what_init_writes_for_the_pool_names_accounts_that_containers_do_not_have() -> None:
    """So the compose file takes them away; `env --unset` of a variable that is called otherwise would do nothing, without a word."""
    written = files(Answers("gpu.example.org", devices="cpu"), Layout(Path("/"), SERVICES_PREFIX))
    (own,) = [file for file in written if file.path.name == "pool.env"]
    assert re.findall(rb"^FOREBAY_POOL_WORKER_ACCOUNT=", own.content, re.MULTILINE)


def test_containers_are_closed_and_only_the_proxy_is_reached(compose: dict[str, Any]) -> None:
    for name, container in compose.items():
        assert container["read_only"] and container["cap_drop"] == ["ALL"] and container["user"] == f"{UID}:{UID}", name
        assert container["security_opt"] == ["no-new-privileges:true"] and not container.get("privileged")
    assert [name for name, container in compose.items() if "ports" in container] == ["proxy"]
    inside = {name for name, container in compose.items() if container.get("network_mode") == "service:proxy"}
    assert inside == {"hub", "pool", "billing", "dashboards"}
    assert {name for name, container in compose.items() if "deploy" in container} == {"init", "pool"}, "who sees the GPUs"


# An image, built and run


BUILDAH = ("buildah", "--storage-driver", "vfs")
BUILD_SECONDS = 900


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Object]]:
    """The root of billing's image, and its configuration. The base is Debian, as its own packages lay it."""
    debian_tree.need("buildah")
    folder = tmp_path_factory.mktemp("image")
    store = ("--root", str(folder / "store"), "--runroot", str(folder / "run"))

    run = partial(debian_tree.said, BUILD_SECONDS)
    debian_tree.lay(folder / "base")
    run("tar", "-C", str(folder / "base"), "-cf", str(folder / "base.tar"), ".")
    (folder / "Containerfile").write_text("FROM scratch\nADD base.tar /\n")
    (folder / ".containerignore").write_text("*\n!base.tar\n")
    run(*BUILDAH, *store, "bud", "--isolation", "chroot", "-t", "localhost/base", "-f", str(folder / "Containerfile"), str(folder))
    import wheels  # in deploy/packages

    wheels.make(folder / "dist", [], None, wheels.epoch_of(CHECKOUT))
    built = ("bud", "--isolation", "chroot", "--build-arg", "BASE=localhost/base", "--target", "billing", "-t", "localhost/billing")
    run(*BUILDAH, *store, *built, "-f", str(CONTAINERFILE), str(folder / "dist"))
    container = run(*BUILDAH, *store, "from", "localhost/billing")
    config = json.loads(run(*BUILDAH, *store, "inspect", "--type", "image", "localhost/billing"))["OCIv1"]["config"]
    yield Path(run(*BUILDAH, *store, "mount", container)), config
    run(*BUILDAH, *store, "umount", container)
    run(*BUILDAH, *store, "rm", container)


CONTAINED = """
set -e
mount --bind "$ROOT" "$ROOT" && mount --bind "$SETTINGS" "$ROOT/etc/forebay"
mount -o remount,bind,ro "$ROOT" && mount -t tmpfs -o mode=1777 tmpfs "$ROOT/tmp"
exec chroot "$ROOT" setpriv --reuid "$UID_OF" --regid "$GID_OF" --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all \\
  env -i "$@"
"""


@pytest.mark.full_sweep
@pytest.mark.slow
@pytest.mark.timeout(2 * BUILD_SECONDS)
def test_an_image_is_built_and_serves_as_nobody_on_a_root_that_cannot_be_written(
    image: tuple[Path, Object], helm: str, tmp_path: Path
) -> None:
    """With the container's arguments, variables and settings of the chart; but for the database, which is a file in /tmp."""
    root, config = image
    chart, port = rendered(helm, "trying"), free_port()
    (root / "etc" / "forebay").mkdir()
    tmp_path.chmod(0o755)
    (tmp_path / "billing.toml").write_text(chart.file("billing", "billing.toml"))
    own = {name: value.replace(POD_IP, "127.0.0.1").replace(":8712", f":{port}") for name, value in chart.environment("billing").items()}
    own |= {"FOREBAY_BILLING_DATABASE_URL": "sqlite:////tmp/billing.sqlite3"}
    arguments = chart.pod("billing").containers[0]["args"]
    words = [*config["Env"], *(f"{name}={value}" for name, value in own.items()), *config["Entrypoint"], *arguments]
    uid, gid = config["User"].split(":")
    outside = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "ROOT": str(root), "SETTINGS": str(tmp_path), "UID_OF": uid, "GID_OF": gid}
    process = subprocess.Popen(["unshare", "--mount", "sh", "-c", CONTAINED, "sh", *words], env=outside)
    try:
        with httpx.Client(transport=httpx.HTTPTransport(retries=8), timeout=30) as client:
            assert client.get(f"http://127.0.0.1:{port}/services/billing/health").status_code == 200
        status = dict(line.split(":\t", 1) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines() if ":\t" in line)
        assert set(status["Uid"].split()) == set(status["Gid"].split()) == {str(UID)} and status["CapEff"] == "0" * 16
        mounts = [line.split() for line in Path(f"/proc/{process.pid}/mountinfo").read_text().splitlines()]
        assert next(mount for mount in mounts if mount[4] == "/")[5].split(",")[0] == "ro"
    finally:
        process.terminate()
        process.wait()

"""The spawner of the local installation, built without a hub; its servers are real processes."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from forebay_service.account import Account
from forebay_spawner.environment import NO_GPU
from forebay_spawner.local import SHIMS, LocalVirtualGpuSpawner
from jupyterhub.spawner import SpawnException


@pytest.fixture
def spawner(tmp_path: Path, hub: Any, user: Any, pool: Any) -> LocalVirtualGpuSpawner:
    starter = tmp_path / "digits.ipynb"
    starter.write_text("{}")
    return LocalVirtualGpuSpawner(
        hub=hub,
        user=user,
        api_token="server-token",
        pool_url=pool.url,
        notebook_prefix="/venv",
        home_dir_template=str(tmp_path / "homes" / "{username}"),
        starter_notebooks=[str(starter)],
        cmd=[sys.executable, "-c", "import json, os; json.dump(dict(os.environ), open('environment.json', 'w'))"],
    )


def start(spawner: LocalVirtualGpuSpawner, options: dict[str, Any]) -> dict[str, str]:
    """Starts a server that writes down its environment, and reads it."""
    spawner.user_options = options

    async def go() -> None:
        await spawner.start()
        while await spawner.poll() is None:
            await asyncio.sleep(0.01)

    asyncio.run(go())
    environment: dict[str, str] = json.loads((Path(spawner.home_dir) / "environment.json").read_text())
    return environment


def refusal(spawner: LocalVirtualGpuSpawner, options: dict[str, Any]) -> SpawnException:
    spawner.user_options = options
    with pytest.raises(SpawnException) as refused:
        asyncio.run(spawner.start())
    assert not Path(spawner.home_dir, "environment.json").exists()
    return refused.value


def test_a_server_gets_the_pools_address_and_its_token_and_its_flavor_is_the_users_choice_at_the_pool(
    spawner: LocalVirtualGpuSpawner, pool: Any
) -> None:
    environment = start(spawner, {"flavor": "dev.1gb"})
    assert environment["FOREBAY_URL"] == pool.url
    assert environment["FOREBAY_TOKEN"] == environment["JUPYTERHUB_API_TOKEN"] == "server-token"
    assert pool.choices == [("token server-token", "dev.1gb")]
    assert "FOREBAY_FLAVOR" not in environment, "it would outweigh `forebay flavor set`"


def test_the_pool_is_asked_in_the_users_name(spawner: LocalVirtualGpuSpawner, pool: Any) -> None:
    start(spawner, {})
    assert set(pool.tokens) == {"token server-token"}


def test_without_a_choice_the_last_one_is_taken(spawner: LocalVirtualGpuSpawner, pool: Any) -> None:
    start(spawner, {})
    assert [flavor for _, flavor in pool.choices] == ["dev.4gb"]


def test_a_last_choice_that_cannot_be_served_is_replaced(spawner: LocalVirtualGpuSpawner, pool: Any) -> None:
    pool.choice = b'{"flavor": "small.64gb"}'
    start(spawner, {})
    assert [flavor for _, flavor in pool.choices] == ["dev.1gb"]


def test_a_server_sees_no_gpu_whatever_the_operator_sets(spawner: LocalVirtualGpuSpawner) -> None:
    spawner.environment = {"CUDA_VISIBLE_DEVICES": "0", "NVIDIA_VISIBLE_DEVICES": "all"}
    environment = start(spawner, {})
    assert {name: environment[name] for name in NO_GPU} == NO_GPU


def test_nothing_of_the_hubs_own_path_reaches_a_server(spawner: LocalVirtualGpuSpawner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/secret/bin:/usr/bin")
    monkeypatch.setenv("PYTHONPATH", "/secret/lib")
    environment = start(spawner, {})
    assert environment["PATH"].startswith(f"{SHIMS}:/venv/bin:") and "/secret" not in environment["PATH"]
    assert "PYTHONPATH" not in environment


def test_a_server_is_not_told_where_a_ray_cluster_is(spawner: LocalVirtualGpuSpawner, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_ADDRESS", "RAY_AUTH_TOKEN", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.setenv(name, "10.0.0.1:6379")
    assert not [name for name in start(spawner, {}) if name.startswith("RAY_")]


@pytest.mark.parametrize("tool", ["nvidia-smi", "rocm-smi", "amd-smi"])
def test_the_vendors_gpu_tools_show_no_gpu(spawner: LocalVirtualGpuSpawner, tool: str) -> None:
    shown = subprocess.run(["sh", "-c", tool], env=start(spawner, {}), capture_output=True, text=True, check=False)
    assert (shown.returncode, shown.stdout) == (9, "")
    assert "Run: forebay smi" in shown.stderr


def test_a_new_home_is_private_and_has_the_starter_notebooks(spawner: LocalVirtualGpuSpawner) -> None:
    environment = start(spawner, {})
    home = Path(environment["HOME"])
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert (home / "digits.ipynb").read_text() == "{}"


def test_what_a_user_changed_or_removed_is_left_alone(spawner: LocalVirtualGpuSpawner, tmp_path: Path) -> None:
    home = Path(start(spawner, {})["HOME"])
    (home / "digits.ipynb").write_text("mine")
    start(spawner, {})
    assert (home / "digits.ipynb").read_text() == "mine"
    (home / "digits.ipynb").unlink()
    start(spawner, {})
    assert not (home / "digits.ipynb").exists()


def test_what_a_server_prints_goes_into_a_log_of_its_own_that_begins_with_its_start(
    spawner: LocalVirtualGpuSpawner, tmp_path: Path
) -> None:
    spawner.log_file_template = str(tmp_path / "log" / "{username}.log")
    spawner.cmd = ["sh", "-c", "echo told; echo complained >&2; printf '{}' > environment.json"]
    log = tmp_path / "log" / "acme-member.log"
    for _ in range(2):
        start(spawner, {})
        assert log.read_text() == "told\ncomplained\n"
        assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert spawner.popen_kwargs == {}


@pytest.mark.skipif(os.getuid() != 0, reason="becoming another user needs root")
def test_a_server_runs_under_its_users_account_and_nothing_of_its_home_runs_before_that(
    spawner: LocalVirtualGpuSpawner, tmp_path: Path
) -> None:
    """The hub is root, and Python by itself would import what lies in the folder that it starts in, or below the home."""
    uid, group = 60701, 60700
    spawner.account_of = lambda name: Account(uid, (group,))
    spawner.cmd = ["sh", "-c", "id -u > uid; printf '{}' > environment.json"]
    start(spawner, {})
    home = Path(spawner.home_dir)
    packages = (home, home / ".local" / "lib" / f"python3.{sys.version_info.minor}" / "site-packages")
    for folder, name in itertools.product(packages, ("forebay_hub", "argparse", "usercustomize")):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')")
    start(spawner, {})
    assert (home / "uid").read_text() == f"{uid}\n"
    assert {path.stat().st_uid for path in (home, home / "digits.ipynb", home / "uid")} == {uid}
    assert "--allow-root" not in spawner.get_args()
    assert not (tmp_path / "imported").exists()


def test_an_unknown_flavor_in_a_request_to_the_api_is_refused(spawner: LocalVirtualGpuSpawner) -> None:
    refused = refusal(spawner, {"flavor": "huge.9999gb"})
    assert (refused.reason, refused.status_code) == ("flavor", 400)
    assert "This installation can serve: dev.1gb, dev.4gb" in str(refused)


def test_a_flavor_that_cannot_be_served_is_refused(spawner: LocalVirtualGpuSpawner) -> None:
    refused = refusal(spawner, {"flavor": "small.64gb"})
    assert refused.reason == "flavor"
    assert "needs 1 MI250, of which there are none" in str(refused)


def test_raw_options_that_are_no_name_are_refused(spawner: LocalVirtualGpuSpawner) -> None:
    assert refusal(spawner, {"flavor": {"$ne": None}}).reason == "flavor"


def test_a_user_of_no_tenant_is_refused(spawner: LocalVirtualGpuSpawner) -> None:
    spawner.user.groups = []
    refused = refusal(spawner, {})
    assert (refused.reason, refused.status_code) == ("tenant", 403)


@pytest.mark.parametrize(("status", "body"), [(500, b""), (403, b"{}"), (200, b"<html>")])
def test_a_pool_that_fails_refuses_with_one_sentence(spawner: LocalVirtualGpuSpawner, pool: Any, status: int, body: bytes) -> None:
    pool.status, pool.body = status, body
    refused = refusal(spawner, {"flavor": "dev.1gb"})
    assert (refused.reason, refused.status_code) == ("pool", 503)
    assert "cannot be asked right now" in str(refused)


def test_the_form_says_in_one_sentence_that_the_pool_is_down(spawner: LocalVirtualGpuSpawner) -> None:
    spawner.pool_url = "http://127.0.0.1:9/"
    form = asyncio.run(spawner.get_options_form())
    assert form.count("alert") and "cannot be asked right now" in form and "<fieldset" not in form


def test_a_submitted_form_becomes_the_choice(spawner: LocalVirtualGpuSpawner) -> None:
    assert spawner.run_options_from_form({"flavor": ["dev.1gb"], "_xsrf": ["x"]}) == {"flavor": "dev.1gb"}
    assert spawner.run_options_from_form({}) == {}

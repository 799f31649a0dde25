"""`forebay/mcp` of a notebook's server at the hub: a real Jupyter server with the extension, a real server of tools for each token."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from agent import TORCH, Agent, reaching, until
from forebay.toolkit.agents.hub_endpoint import routes
from lab_installation import free_port

pytestmark = pytest.mark.slow
BASE = "/user/acme-member/"
HELLO = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
HEADERS = {"Accept": "application/json, text/event-stream"}


@contextmanager
def notebook_server(cloud: Any, variables: dict[str, str], folder: Path, user: str = "acme-member") -> Iterator[str]:
    """What the hub has started for a user: the address of its endpoint."""
    port = free_port()
    options = {"port": port, "port_retries": 0, "open_browser": False, "allow_root": True, "base_url": BASE, "root_dir": str(folder)}
    options |= {"jpserver_extensions": {"forebay.toolkit.agents.hub_endpoint": True}, "allow_unauthenticated_access": False}
    config = folder / "config"
    config.mkdir()
    (config / "jupyter_server_config.json").write_text(json.dumps({"ServerApp": options}), encoding="utf-8")
    hub = {"JUPYTERHUB_API_URL": cloud.hub.url, "JUPYTERHUB_USER": user, "JUPYTERHUB_API_TOKEN": "of-the-notebook-server"}
    told = {**variables, **hub, "JUPYTER_CONFIG_DIR": str(config)}
    told.pop("FOREBAY_TOKEN")
    with (folder / "jupyter.log").open("wb") as log:
        server = subprocess.Popen([sys.executable, "-m", "jupyter_server"], env=told, cwd=folder, stdout=log, stderr=log)
    try:
        url = f"http://127.0.0.1:{port}{BASE}"
        until(lambda: server.poll() is not None or _answers(url), "Jupyter does not start")
        assert server.poll() is None, (folder / "jupyter.log").read_text()
        yield f"{url}forebay/mcp"
    finally:
        server.terminate()
        server.wait(60)


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}api").status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture(scope="module")
def url(cloud: Any, variables: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with notebook_server(cloud, variables, tmp_path_factory.mktemp("notebook")) as found:
        yield found


@pytest.fixture
def remote(url: str, variables: dict[str, str]) -> Iterator[Agent]:
    with reaching(url, variables["FOREBAY_TOKEN"]) as found:
        yield found


def test_an_agent_elsewhere_runs_code_in_a_kernel_that_outlives_its_connection(url: str, variables: dict[str, str], remote: Agent) -> None:
    remote.budget("by-the-hub", "1")
    begun = remote.run(f"{TORCH}\nkept = 7\nprint('begun', flush=True)\nimport time; time.sleep(2)", "by-the-hub", kernel="hub")
    assert begun["status"] == "ok" and [message for _, message in remote.progress if message == "begun"], remote.progress
    with reaching(url, variables["FOREBAY_TOKEN"]) as second:
        found = second.run("import os\nprint(kept + int(x.sum()), os.environ.get('JUPYTERHUB_API_TOKEN'))", "by-the-hub", kernel="hub")
        assert found["output"] == "90007 None\n"


def test_a_call_whose_agent_is_gone_is_interrupted(url: str, variables: dict[str, str]) -> None:
    with reaching(url, variables["FOREBAY_TOKEN"]) as first:
        first.budget("by-the-hub", "1")
        code = "print('begun', flush=True)\nimport time; time.sleep(120)"
        call = first.begin("run_code", code=code, experiment="by-the-hub", kernel="left")
        until(lambda: "begun" in str(first.progress), "it does not begin")
        call.cancel()
    with reaching(url, variables["FOREBAY_TOKEN"]) as second:
        until(lambda: not any(row["busy"] for row in second.call("list_kernels") if row["name"] == "left"), "it goes on")
        assert second.call("read_output", kernel="left")["status"] == "cancelled"


def test_a_long_answer_comes_whole(remote: Agent) -> None:
    remote.budget("by-the-hub", "1")
    remote.run("print('x' * 300_000)", "by-the-hub", kernel="long")
    pages = [remote.call("read_output", kernel="long", start=start)["text"] for start in range(0, 300_001, 20_000)]
    assert "".join(pages) == "x" * 300_000 + "\n"


@pytest.mark.parametrize(
    ("shown", "status", "said"),
    [
        (None, 401, "Show a token of yours"),
        ("Bearer", 401, "Show a token of yours"),
        ("Bearer unknown", 401, "Show a token of yours"),
        ("Basic {acme-member}", 401, "Show a token of yours"),
        ("Bearer {acme-owner}", 403, "This is the server of acme-member."),
        ("Bearer {operator}", 403, "This is the server of acme-member."),
    ],
)
def test_whose_token_is_none_of_the_user_s_learns_nothing(url: str, cloud: Any, shown: str | None, status: int, said: str) -> None:
    headers = {} if shown is None else {"Authorization": shown.format(**cloud.hub.tokens)}
    answer = httpx.post(url, json=HELLO, headers=HEADERS | headers, params={"token": cloud.hub.tokens["acme-member"]})
    assert answer.status_code == status and said in answer.json()["error"]["message"]
    assert "acme" not in answer.text or status == 403


def test_the_rest_of_the_notebook_server_is_closed_to_that_token(url: str, variables: dict[str, str]) -> None:
    token = {"Authorization": f"token {variables['FOREBAY_TOKEN']}"}
    for path in ("api/kernels", "api/contents"):
        assert httpx.get(url.replace("forebay/mcp", path), headers=token).status_code == 403


def test_a_token_that_sees_more_than_its_user_s_own_work_is_refused_and_no_process_stays(
    cloud: Any, variables: dict[str, str], tmp_path: Path
) -> None:
    with notebook_server(cloud, variables, tmp_path, "acme-owner") as url:
        headers = {**HEADERS, "Authorization": f"Bearer {cloud.hub.tokens['acme-owner']}"}
        for _ in range(2):
            answer = httpx.post(url, json=HELLO, headers=headers, timeout=60)
            assert answer.status_code == 403 and "sees more than your own work" in answer.json()["error"]["message"], answer.text


def test_a_token_that_is_revoked_ends_its_server_and_kernels(cloud: Any, variables: dict[str, str], tmp_path: Path) -> None:
    with notebook_server(cloud, variables, tmp_path) as url:
        token = cloud.hub.tokens["acme-member"]
        with reaching(url, token) as agent:
            agent.budget("by-the-hub", "1")
            pid = agent.run("import os\nprint(os.getpid())", "by-the-hub")["output"].strip()
        cloud.hub.tokens["acme-member"] = "another"
        try:
            began = time.monotonic()
            while httpx.post(url, json=HELLO, headers={**HEADERS, "Authorization": f"Bearer {token}"}).status_code != 401:
                assert time.monotonic() - began < 60
                time.sleep(1)
            until(lambda: not Path(f"/proc/{pid}").exists(), "the kernel outlives its token")
        finally:
            cloud.hub.tokens["acme-member"] = token


def test_where_no_hub_started_the_server_there_is_no_such_address() -> None:
    assert routes("/", {}) == routes("/", {"JUPYTERHUB_USER": "ada"}) == []
    found = routes("/user/ada/", {"JUPYTERHUB_USER": "ada", "JUPYTERHUB_API_URL": "http://hub"})
    assert [path for path, *_ in found] == ["/user/ada/forebay/mcp"]

"""`forebay mcp --http`: the same tools over HTTP, for whoever shows the token, to clients that come and go."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from agent import ENDLESS, TICK_SECONDS, TORCH, Agent, reaching, until, web_server
from forebay.errors import ForebayError
from forebay.toolkit.agents.web import address_of

pytestmark = pytest.mark.slow
HELLO = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
HEADERS = {"Accept": "application/json, text/event-stream"}


@pytest.fixture(scope="module")
def url(variables: dict[str, str]) -> Iterator[str]:
    with web_server(variables) as found:
        yield found


@pytest.fixture
def remote(url: str, variables: dict[str, str]) -> Iterator[Agent]:
    with reaching(url, variables["FOREBAY_TOKEN"]) as found:
        yield found


def test_the_tools_are_those_of_standard_input_and_output(remote: Agent, agent: Agent) -> None:
    assert {tool.name: tool.input_schema for tool in remote.tools()} == {tool.name: tool.input_schema for tool in agent.tools()}


def test_a_kernel_and_what_it_printed_outlive_the_client_that_began_them(url: str, variables: dict[str, str]) -> None:
    with reaching(url, variables["FOREBAY_TOKEN"]) as first:
        first.budget("web", "1")
        assert first.run(TORCH + "\nkept = 7", "web", kernel="outliving")["status"] == "ok"
    with reaching(url, variables["FOREBAY_TOKEN"]) as second:
        assert second.run("kept + int(x.sum())", "web", kernel="outliving")["output"] == "90007\n"
        assert second.call("read_output", kernel="outliving", run=1)["status"] == "ok"


def test_a_run_tells_its_progress_and_stops_at_its_budget(remote: Agent) -> None:
    remote.budget("web-tiny", "0.000012")
    remote.run(TORCH, "web-tiny", kernel="stopping")
    stopped = remote.run(f"print('begun', flush=True)\n{ENDLESS}", "web-tiny", kernel="stopping", timeout_seconds=60)
    assert stopped["status"] == "budget_used_up", stopped
    assert [message for _, message in remote.progress if message == "begun"] or stopped["seconds"] < TICK_SECONDS


def test_a_call_whose_client_is_gone_is_interrupted_and_the_kernel_is_free(url: str, variables: dict[str, str]) -> None:
    with reaching(url, variables["FOREBAY_TOKEN"]) as first:
        first.budget("web", "1")
        call = first.begin("run_code", code="import time\nprint('begun', flush=True)\ntime.sleep(120)", experiment="web", kernel="left")
        until(lambda: "begun" in str(first.progress), "it does not begin")
        call.cancel()
    with reaching(url, variables["FOREBAY_TOKEN"]) as second:
        until(lambda: not any(row["busy"] for row in second.call("list_kernels") if row["name"] == "left"), "it goes on")
        assert second.run("'free'", "web", kernel="left")["output"] == "'free'\n"


@pytest.mark.parametrize("shown", [{}, {"Authorization": "Bearer"}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic {token}"}])
def test_who_does_not_show_the_token_learns_nothing(url: str, variables: dict[str, str], shown: dict[str, str]) -> None:
    shown = {name: value.format(token=variables["FOREBAY_TOKEN"]) for name, value in shown.items()}
    for path in (url, url + "/x", url.removesuffix("mcp")):
        answer = httpx.post(path, json=HELLO, headers=HEADERS | shown)
        assert answer.status_code == 401 and answer.json()["error"]["code"] == "unauthorized"
        assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert httpx.get(url, headers=shown, params={"token": variables["FOREBAY_TOKEN"]}).status_code == 401


def test_two_tokens_at_once_are_none(url: str, variables: dict[str, str]) -> None:
    twice = [("Authorization", "Bearer wrong"), ("Authorization", f"Bearer {variables['FOREBAY_TOKEN']}")]
    assert httpx.post(url, json=HELLO, headers=[*HEADERS.items(), *twice]).status_code == 401


def test_a_body_that_is_too_large_is_refused(url: str, variables: dict[str, str]) -> None:
    token = {"Authorization": f"Bearer {variables['FOREBAY_TOKEN']}"}
    answer = httpx.post(url, content=b" " * (5 << 20), headers={**HEADERS, **token, "Content-Type": "application/json"})
    assert answer.status_code == 413


def test_the_kernels_end_with_the_server(variables: dict[str, str]) -> None:
    with web_server(variables) as found, reaching(found, variables["FOREBAY_TOKEN"]) as client:
        client.budget("web", "1")
        pid = client.run("import os\nprint(os.getpid())", "web")["output"].strip()
        assert Path(f"/proc/{pid}").exists()
    until(lambda: not Path(f"/proc/{pid}").exists(), "the kernel outlives its server")


@pytest.mark.parametrize("bad", ["", "x", "1.2.3.4", "99999", "host:", "-1", "::1:80", "a b:1"])
def test_what_is_no_address_is_refused(bad: str) -> None:
    with pytest.raises(ForebayError, match="is no address to listen at"):
        address_of(bad)


def test_an_address_is_a_port_or_a_host_with_one() -> None:
    assert address_of("0") == ("127.0.0.1", 0)
    assert address_of("0.0.0.0:8900") == ("0.0.0.0", 8900)  # noqa: S104 - nothing listens there
    assert address_of("[::1]:80") == ("::1", 80)


def test_a_port_that_is_in_use_is_told_of_in_a_line(url: str, variables: dict[str, str]) -> None:
    port = url.rsplit(":", 1)[1].partition("/")[0]
    command = [sys.executable, "-m", "forebay", "mcp", "--http", port]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stderr == f"forebay: It cannot listen at 127.0.0.1, port {port}: Address already in use.\n"

"""An agent elsewhere runs code in the home of somebody whose server at the hub runs, by the hub's address and a token of its own alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "agents"))

from agent import TORCH, reaching

pytestmark = [pytest.mark.acceptance, pytest.mark.slow]

SCOPE = "custom:forebay:compute!user"
HELLO = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
HEADERS = {"Accept": "application/json, text/event-stream"}
BROUGHT = ("mcp>=2.3,<3", "jupyter-client>=8,<9", "ipykernel>=7,<8")
"""What the extra brings, of whose package no index has this build."""


def token_of(person: Any, *scopes: str) -> str:
    body = {"note": "agent", "expires_in": 600, "scopes": list(scopes)}
    answer = person.hub_api("POST", f"users/{person.name}/tokens", body).raise_for_status()
    return str(answer.json()["token"])


def ask(url: str, token: str | None) -> httpx.Response:
    shown = {} if token is None else {"Authorization": f"Bearer {token}"}
    return httpx.post(url, json=HELLO, headers={**HEADERS, **shown}, timeout=60)


def test_the_address_takes_the_user_s_own_token_alone_and_says_what_is_missing(cloud: Any, member: Any) -> None:
    token, url = token_of(member, SCOPE), f"{cloud.url}/user/{member.name}/forebay/mcp"
    assert ask(url, None).status_code == ask(url, "unknown").status_code == 401
    refused = ask(url, token_of(cloud.person("acme-owner"), SCOPE))
    assert refused.status_code == 403 and "This is the server of acme-member." in refused.text
    lacking = ask(url, token)
    assert lacking.status_code == 403 and "`pip install 'forebay[mcp]'` brings what this needs" in lacking.text
    others = httpx.get(f"{cloud.url}/user/{member.name}/api/contents", headers={"Authorization": f"token {token}"})
    assert others.status_code in (401, 403), "it opens nothing else there"


@pytest.mark.full_sweep
@pytest.mark.timeout(900)
def test_an_agent_computes_there_at_its_experiment_s_cost(cloud: Any, member: Any) -> None:
    python = cloud.state / "homes" / member.name / ".forebay" / "environments" / "default" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", *BROUGHT], check=True)
    with reaching(f"{cloud.url}/user/{member.name}/forebay/mcp", token_of(member, SCOPE)) as agent:
        agent.budget("at-the-hub", "0.5")
        ran = agent.run(f"{TORCH}\nimport os\nprint(int(x.sum()), os.path.expanduser('~'))", "at-the-hub", timeout_seconds=200)
        assert ran["status"] == "ok" and ran["output"] == f"90000 {cloud.state}/homes/{member.name}\n", ran
        assert ran["device"] and "USD" in ran["device"][-1]

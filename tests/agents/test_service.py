"""Tools of `forebay mcp` that ask the service, and the token that they ask with."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from agent import TORCH, Agent, Refusal, until
from forebay.errors import ForebayError
from forebay.toolkit.agents.command import own_client, perform

pytestmark = pytest.mark.slow


def test_a_token_that_may_do_too_much_or_too_little_is_refused(
    cloud: Any, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = cloud.hub.tokens
    more, lacking = "sees more than your own work", "Set FOREBAY_TOKEN to a token that you made for the agent"
    for changed, said in (
        ({"FOREBAY_TOKEN": None}, lacking),
        ({"FOREBAY_TOKEN": None, "JUPYTERHUB_API_TOKEN": tokens["acme-member"]}, lacking),  # that of a notebook's server
        ({"FOREBAY_TOKEN": tokens["acme-owner"]}, more),
        ({"FOREBAY_TOKEN": tokens["operator"]}, more),
        ({"FOREBAY_TOKEN": tokens["stranger"]}, "custom:forebay:compute"),
        ({"FOREBAY_TOKEN": "unknown"}, "token"),
        ({"FOREBAY_URL": None}, "No service is configured"),
    ):
        with monkeypatch.context() as here:
            for name, value in {**variables, **changed}.items():
                here.delenv(name, raising=False) if value is None else here.setenv(name, value)
            with pytest.raises(ForebayError, match=said):
                own_client()


def test_the_command_says_in_a_line_why_it_does_not_serve(variables: dict[str, str]) -> None:
    lacking = {name: value for name, value in variables.items() if name != "FOREBAY_TOKEN"}
    found = subprocess.run([sys.executable, "-m", "forebay", "mcp"], env=lacking, input="", capture_output=True, text=True, timeout=60)
    assert found.returncode == 1 and not found.stdout and len(found.stderr.splitlines()) == 1, found
    assert found.stderr.startswith("forebay: Set FOREBAY_TOKEN")


def test_where_the_extra_is_not_installed_the_command_says_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("forebay.toolkit.agents.") and not name.endswith(".command")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jupyter_client", None)
    with pytest.raises(ForebayError, match=r"jupyter_client is not here; `pip install 'forebay\[mcp\]'`"):
        perform(argparse.Namespace(http=None))


def test_flavors_have_prices_and_tell_why_they_cannot_be_had(agent: Agent) -> None:
    rows = {row["name"]: row for row in agent.call("list_flavors")}
    assert rows["dev.1gb"]["available"] and (rows["dev.1gb"]["price_per_hour"], rows["dev.1gb"]["currency"]) == ("0.03", "USD")
    assert not rows["small.64gb"]["available"] and "this installation has" in rows["small.64gb"]["why_not"]


def test_an_agent_sees_the_sessions_of_experiments_alone(agent: Agent, cloud: Any) -> None:
    agent.budget("seen", "1")
    agent.run(TORCH, "seen")
    with cloud.session(process="private.ipynb"):
        assert "private.ipynb" in [row["process"] for row in cloud.mine()]
        sessions = agent.call("list_sessions")
    assert len(sessions) < len(cloud.mine()) + 1
    (seen,) = [row for row in sessions if row["experiment"] == "seen"]
    assert seen["flavor"] == "dev.1gb" and seen["memory_mib"] > 0


def run_job(cloud: Any, job: int, *texts: str) -> None:
    """Does what the runner does that the hub would start."""
    key = {"key": "0" * 32}
    until(lambda: say(cloud, job, "begin", **key).is_success, "the job does not start")
    for number, text in enumerate(texts, 1):
        say(cloud, job, "printed", **key, pieces=[{"number": number, "text": text}]).raise_for_status()
    say(cloud, job, "end", **key, exit_status=0, reason=None).raise_for_status()


def say(cloud: Any, job: int, what: str, **body: Any) -> httpx.Response:
    headers = {"Authorization": f"token {cloud.hub.tokens['acme-member']}"}
    return httpx.post(f"{cloud.urls['pool']}api/jobs/{job}/{what}", json=body, headers=headers, timeout=30)


def test_what_a_job_prints_is_followed_by_pages_to_its_end(agent: Agent, cloud: Any, variables: dict[str, str]) -> None:
    script = Path(variables["HOME"]) / "print.py"
    script.write_text("print()", encoding="utf-8")
    job = agent.call("submit_job", file=str(script))["job"]
    texts = [f"{letter}" * 12_000 for letter in "abcde"]
    run_job(cloud, job, *texts)
    pages = [agent.call("follow_job", job=job)]
    while not pages[-1]["over"]:
        pages.append(agent.call("follow_job", job=job, run=pages[-1]["run"], after=pages[-1]["next"]))
    assert "".join(page["text"] for page in pages) == "".join(texts)
    assert [len(page["text"]) for page in pages] == [24_000, 24_000, 12_000] and pages[-1]["state"] == "succeeded"


def test_a_job_is_submitted_listed_followed_and_cancelled(agent: Agent, variables: dict[str, str]) -> None:
    home = Path(variables["HOME"])
    (home / "train.py").write_text("print('never run here: no hub starts it')", encoding="utf-8")
    job = agent.call("submit_job", file=str(home / "train.py"), arguments=["--epochs", "3"], name="first", time_limit_seconds=60)
    assert job["name"] == "first" and job["state"] in ("queued", "starting"), job
    assert agent.call("list_jobs")[0]["job"] == job["job"]
    assert agent.call("show_job", job=job["job"])["cost"] == {}
    began = time.monotonic()
    followed = agent.call("follow_job", job=job["job"], wait_seconds=1)
    waited = time.monotonic() - began
    assert (followed["text"], followed["over"]) == ("", False)
    assert 0.9 < waited < 10, "it waits for more, and no longer than it is told to"
    assert agent.call("cancel_job", job=job["job"])["state"] in ("cancelling", "cancelled")
    for bad in (home / "none.py", Path("/etc/passwd")):
        with pytest.raises(Refusal):
            agent.call("submit_job", file=str(bad))
    with pytest.raises(Refusal, match="There is no job 999"):
        agent.call("show_job", job=999)

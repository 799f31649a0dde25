"""Tools of `forebay mcp` that ask the service, and the token that they ask with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from agent import TORCH, Agent, Refusal
from forebay.errors import ForebayError
from forebay.toolkit.agents.command import own_client

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


def test_a_job_is_submitted_listed_followed_and_cancelled(agent: Agent, variables: dict[str, str]) -> None:
    home = Path(variables["HOME"])
    (home / "train.py").write_text("print('never run here: no hub starts it')", encoding="utf-8")
    job = agent.call("submit_job", file=str(home / "train.py"), arguments=["--epochs", "3"], name="first", time_limit_seconds=60)
    assert job["name"] == "first" and job["state"] in ("queued", "starting"), job
    assert [row["job"] for row in agent.call("list_jobs")] == [job["job"]]
    assert agent.call("show_job", job=job["job"])["cost"] == {}
    followed = agent.call("follow_job", job=job["job"], wait_seconds=1)
    assert (followed["text"], followed["over"]) == ("", False)
    assert agent.call("cancel_job", job=job["job"])["state"] in ("cancelling", "cancelled")
    for bad in (home / "none.py", Path("/etc/passwd")):
        with pytest.raises(Refusal):
            agent.call("submit_job", file=str(bad))
    with pytest.raises(Refusal, match="There is no job 999"):
        agent.call("show_job", job=999)

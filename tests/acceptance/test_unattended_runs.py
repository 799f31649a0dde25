"""Jobs on a running installation: they are their user's alone, billed as such, and run again after a loss."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import fork_server
import httpx
import psutil
import pytest

pytestmark = [pytest.mark.acceptance, pytest.mark.slow, pytest.mark.timeout(600)]

PATIENCE_SECONDS = 180

TRAIN = """
import os, sys, time, torch
os.environ["FOREBAY_JOURNAL_BYTES"] = "0"  # so that the run ends with its worker
x = torch.ones(8, device="cuda:0")
print("attempt", os.environ["FOREBAY_JOB_ATTEMPT"], float(x.sum()), flush=True)
while os.environ["FOREBAY_JOB_ATTEMPT"] == "1":
    x = x + 1
    float(x.sum())
    time.sleep(0.05)
"""
SLEEP = "import time\nprint('sleeps', flush=True)\ntime.sleep(float(__import__('sys').argv[1]))\nprint('slept')\n"
NOTEBOOK = {
    "cells": [
        {"cell_type": "code", "id": name, "source": source, "metadata": {}, "outputs": [], "execution_count": None}
        for name, source in {"one": "print(6 * 7)", "two": "import torch\ntorch.ones(3, device='cuda:0').sum().item()"}.items()
    ],
    "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
    "nbformat": 4,
    "nbformat_minor": 5,
}  # fmt: skip


@dataclass
class Place:
    """An installation, and a member's token and home."""

    cloud: Any
    token: str
    home: Path
    others: dict[str, str] = field(default_factory=dict)

    def call(self, method: str, path: str, token: str | None = None, body: object = None) -> httpx.Response:
        headers = {"Authorization": f"token {token or self.token}"}
        return httpx.request(method, f"{self.cloud.url}/services/pool/api/{path}", headers=headers, json=body, timeout=30)

    def submit(self, file: str, *arguments: str, **more: Any) -> int:
        kind = "notebook" if file.endswith(".ipynb") else "script"
        body = {"kind": kind, "file": f"work/{file}", "folder": "work", "arguments": arguments, **more}
        return int(self.call("POST", "jobs", body=body).raise_for_status().json()["id"])

    def job(self, number: int) -> dict[str, Any]:
        row: dict[str, Any] = self.call("GET", f"jobs/{number}").raise_for_status().json()
        return row

    def until(self, number: int, holds: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                row = self.job(number)
                if holds(row):
                    return row
            except httpx.HTTPError as error:
                row = {"error": str(error)}
            assert time.monotonic() < deadline, f"{row}\n{self.printed(number)}\n{self.cloud.log[-3000:]}"
            time.sleep(0.1)

    def over(self, number: int) -> dict[str, Any]:
        return self.until(number, lambda row: row["state"] in ("succeeded", "failed", "cancelled"))

    def prints(self, number: int, text: str) -> None:
        self.until(number, lambda _: text in self.printed(number))

    def printed(self, number: int, attempt: int | None = None) -> str:
        run = "" if attempt is None else f"?attempt={attempt}"
        answer = self.call("GET", f"jobs/{number}/output{run}").raise_for_status().json()
        return "".join(piece["text"] for piece in answer["pieces"])

    def processes(self, part: str) -> list[psutil.Process]:
        """Those of the installation with this in their command lines, the innermost last."""
        found = []
        for one in psutil.Process(self.cloud.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                found += [one] if part in " ".join(one.cmdline()) else []
        return found

    def runner(self, job: int) -> psutil.Process:
        return next(one for one in self.processes("forebay.toolkit.jobs") if one.environ().get("JUPYTERHUB_SERVER_NAME") == f"job-{job}")

    def worker_of(self, job: int) -> psutil.Process:
        """The one that holds the job's tensors, once the pool's database tells it, which nothing waits for."""
        label, deadline = self.job(job)["label"], time.monotonic() + PATIENCE_SECONDS
        while True:
            (session,) = [row["session"] for row in self.call("GET", "sessions").json() if row["process"] == label]
            with contextlib.closing(sqlite3.connect(f"file:{self.cloud.state}/pool/pool.sqlite?mode=ro", uri=True)) as books:
                query = "select pid from workers join sessions on sessions.worker = workers.id where sessions.id = ?"
                found = books.execute(query, [session]).fetchone()
            if found is not None:
                return psutil.Process(found[0])
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def costs(self, job: int, runs: set[int]) -> dict[int, Decimal]:
        """What each run has cost, once billing has all of them and they come to what the job's records do."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            told = self.cloud.service("billing/api/job-costs", self.token, job=job).json()
            found = {row["attempt"]: Decimal(row["cost_exact"]) for row in told}
            if set(found) == runs and sum(found.values()) == sum(Decimal(one["cost_exact"]) for one in self.usage(self.job(job)["label"])):
                return found
            assert time.monotonic() < deadline, told
            time.sleep(0.2)

    def usage(self, label: str) -> list[dict[str, Any]]:
        """What billing has of it, once it has anything."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            records: list[dict[str, Any]] = self.cloud.service("billing/api/usage", self.token, notebook=label).json()["records"]
            if records:
                return records
            assert time.monotonic() < deadline, f"billing has nothing of {label}"
            time.sleep(0.2)


def settle(cloud: Any, member: Any) -> Place:
    """The place of a member whose notebook server is there, and who has these files in ``work``."""
    headers = {"X-XSRFToken": member.xsrf(f"/user/{member.name}/")}
    root = f"/user/{member.name}/api/contents/work"
    member.web.put(root, json={"type": "directory"}, headers=headers).raise_for_status()
    for name, text in {"train.py": TRAIN, "sleep.py": SLEEP, "cells.ipynb": json.dumps(NOTEBOOK)}.items():
        body = {"type": "file", "format": "text", "content": text}
        member.web.put(f"{root}/{name}", json=body, headers=headers).raise_for_status()
    return Place(cloud, member.new_token(), cloud.state / "homes" / member.name)


@pytest.fixture(scope="module")
def place(cloud: Any, member: Any) -> Iterator[Place]:
    """Of acme-member, in the installation that other tests use too."""
    found = settle(cloud, member)
    found.others = {name: cloud.person(name).new_token() for name in ("acme-owner", "globex-owner", "operator")}
    yield found
    shutil.rmtree(found.home / "work")


def test_jobs_run_side_by_side_and_one_that_loses_its_worker_runs_again(place: Place) -> None:
    """One fails by its own status; of one, a notebook, the outputs are kept; all is billed to who submitted it, under the job's name."""
    train = place.submit("train.py", name="nightly")
    fails, notebook = place.submit("missing.py"), place.submit("cells.ipynb")
    place.prints(train, "attempt 1 8.0")
    place.worker_of(train).kill()
    row = place.over(fails)
    assert (row["state"], row["exit_status"], row["attempt"]) == ("failed", 1, 1)
    assert "There is no file" in place.printed(fails)
    assert place.over(notebook)["state"] == "succeeded", place.printed(notebook)
    assert "42\n" in place.printed(notebook)
    kept = json.loads((place.home / "work" / f"cells-job-{notebook}.ipynb").read_text())
    shown = [cell["outputs"][0].get("text") or cell["outputs"][0]["data"]["text/plain"] for cell in kept["cells"]]
    assert shown == [["42\n"], ["3.0"]]
    assert not json.loads((place.home / "work" / "cells.ipynb").read_text())["cells"][0]["outputs"]
    row = place.over(train)
    assert (row["state"], row["attempt"], row["label"]) == ("succeeded", 2, f"job {train}: nightly"), f"{row}\n{place.printed(train)}"
    assert "this run is lost" in place.printed(train, 1) and "attempt 2 8.0" in place.printed(train, 2)
    for job, name in ((train, "nightly"), (notebook, "cells.ipynb")):
        records = place.usage(f"job {job}: {name}")
        assert {(one["tenant"], one["user"]) for one in records} == {("acme", "acme-member")}
    assert set(place.costs(train, {1, 2})) == {1, 2} and set(place.costs(notebook, {1})) == {1}


BROUGHT = """
import torch
from pathlib import Path
import own
Path("sum.txt").write_text(str(float((torch.ones(own.SIZE, device="cuda:0") * 2).sum())))
"""


def test_a_job_from_a_laptop_has_its_files_and_what_it_writes_is_fetched(place: Place, tmp_path: Path) -> None:
    """By the hub's one address; at the end nothing of it is left in the home."""
    (tmp_path / "own.py").write_text("SIZE = 21")
    (tmp_path / "train.py").write_text(BROUGHT)
    (tmp_path / "cells.ipynb").write_text(json.dumps(NOTEBOOK))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FOREBAY_", "JUPYTERHUB_"))}
    laptop = {"FOREBAY_URL": f"{place.cloud.url}/services/pool/", "FOREBAY_TOKEN": place.token, "FOREBAY_OUTSIDE": "1"}

    laptop["HOME"] = str(tmp_path)

    def say(*words: str) -> str:
        command = [str(fork_server.programs()), "-m", "forebay", *words]
        bounds: dict[str, Any] = {"timeout": PATIENCE_SECONDS, "check": False}
        done = subprocess.run(command, env=kept | laptop, cwd=tmp_path, capture_output=True, text=True, **bounds)
        assert done.returncode == 0, done.stderr + place.cloud.log[-2000:]
        return done.stderr + done.stdout

    followed = say("submit", "--follow", "train.py")
    job = int(followed.partition("forebay jobs logs -f ")[2].partition("`")[0])
    assert "3 files of this folder go along" in followed and "succeeded" in followed
    assert "Job" in say("jobs", "fetch", str(job), "--into", "back") and (tmp_path / "back" / "sum.txt").read_text() == "42.0"
    assert len(place.usage(f"job {job}: train.py")) == 1
    notebook = int(say("submit", "cells.ipynb").partition("forebay jobs logs -f ")[2].partition("`")[0])
    assert place.over(notebook)["state"] == "succeeded", place.printed(notebook)
    say("jobs", "fetch", str(notebook))
    (outputs,) = (tmp_path / f"job-{notebook}").iterdir()
    assert outputs.name == f"cells-job-{notebook}.ipynb" and "3.0" in outputs.read_text()
    assert not list((place.home / ".forebay" / "jobs").glob("*"))


def test_others_see_nothing_of_a_job_but_owners_and_operators_that_it_is_there(place: Place) -> None:
    job = place.submit("sleep.py", "300")
    owner, stranger, operator = (place.others[name] for name in ("acme-owner", "globex-owner", "operator"))
    assert place.call("GET", f"jobs/{job}", stranger).status_code == httpx.codes.NOT_FOUND
    assert place.call("GET", f"jobs/{job}/output", stranger).status_code == httpx.codes.NOT_FOUND
    assert place.call("POST", f"jobs/{job}/cancel", stranger).status_code == httpx.codes.NOT_FOUND
    assert place.call("POST", f"jobs/{job}/begin", stranger, {"key": "a" * 32}).status_code == httpx.codes.NOT_FOUND
    assert place.call("GET", "jobs?everybody=true", stranger).json() == []
    assert place.call("GET", "jobs?everybody=true").status_code == httpx.codes.FORBIDDEN
    assert place.call("GET", f"jobs/{job}/output", owner).status_code == httpx.codes.FORBIDDEN
    assert job in [row["id"] for row in place.call("GET", "jobs?everybody=true", operator).json()]
    assert place.call("POST", f"jobs/{job}/cancel", owner).status_code == httpx.codes.ACCEPTED
    row = place.until(job, lambda row: row["state"] == "cancelled")
    assert row["reason"] == "by_other"
    assert place.call("POST", f"jobs/{job}/cancel").status_code == httpx.codes.CONFLICT


def test_nobody_gets_a_server_that_is_no_jobs(place: Place, member: Any) -> None:
    """A name of one's own is refused; a job's name without a job starts nothing."""
    address = f"{place.cloud.url}/hub/api/users/acme-member/servers"
    headers = {"Authorization": f"token {place.token}"}
    assert "servers with names are those of jobs" in httpx.post(f"{address}/mine", headers=headers, json={}, timeout=30).text
    httpx.post(f"{address}/job-999999", headers=headers, json={}, timeout=30)
    runners = [one for one in place.processes("forebay.toolkit.jobs") if one.environ().get("JUPYTERHUB_SERVER_NAME") == "job-999999"]
    assert psutil.wait_procs(runners, timeout=30)[1] == []
    page = member.web.get("/hub/home")
    assert page.status_code == httpx.codes.OK and "my notebooks" in page.text and "Named Servers" not in page.text


# What kills the whole installation's processes has one of its own


@pytest.fixture(scope="module")
def alone(passable: Any, starter: Callable[..., Any]) -> Iterator[Place]:
    """Of a member whose notebook server has come and gone."""
    cloud = starter(passable.folder / "state", passable.prefix)
    member = cloud.person("acme-member")
    member.spawn("dev.4gb")
    member.open_lab()
    found = settle(cloud, member)
    member.stop_server()
    yield found
    assert cloud.stop() == 0


@pytest.mark.full_sweep
def test_a_job_outlives_pool_and_hub_and_its_user_needs_no_server(alone: Place) -> None:
    job = alone.submit("sleep.py", "12")
    alone.prints(job, "sleeps")
    alone.processes("-m forebay_pool")[-1].kill()
    time.sleep(1)
    alone.processes("-m jupyterhub")[-1].kill()
    row = alone.over(job)
    assert (row["state"], row["attempt"]) == ("succeeded", 1), row
    assert "slept" in alone.printed(job)


@pytest.mark.full_sweep
def test_a_run_whose_runner_is_killed_runs_again_and_leaves_no_program_behind(alone: Place) -> None:
    job = alone.submit("train.py")
    alone.prints(job, "attempt 1 8.0")
    runner = alone.runner(job)
    program = runner.children()[0]
    runner.kill()
    assert psutil.wait_procs([program], timeout=10)[1] == [], "the program outlives its runner"
    row = alone.over(job)
    assert (row["state"], row["attempt"]) == ("succeeded", 2), row

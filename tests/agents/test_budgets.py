"""What an experiment may cost is a wall: the pool takes the device back, tensors stay, and each run's cost is the ledger's."""

from __future__ import annotations

import contextlib
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from agent import ENDLESS, TICK_SECONDS, TORCH, Agent, Refusal, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

PRICE = Decimal("0.03") / 3600
"""Of a second of dev.1gb."""
LATE_SECONDS = 1.5
"""What a machine may take beyond the tick until the pool has heard, and the worker has let go."""
TINY = "0.000012"
"""1.4 s of it."""


@pytest.fixture(autouse=True, scope="module")
def paid(agent: Agent) -> None:
    """What is not of the experiment that a test is about."""
    agent.budget("setting-up", "5")


def spent(agent: Agent, *experiments: str) -> Decimal:
    """What billing has posted for them, exactly, once nothing of them runs."""
    time.sleep(TICK_SECONDS)
    costs = [agent.call("experiment_cost", experiment=name)["total"].get("USD", "0") for name in experiments]
    return sum(map(Decimal, costs), Decimal(0))


def most(budget: str, kernels: int = 1) -> Decimal:
    """What may be spent at a budget's end: it, and a tick of what runs."""
    return Decimal(budget) + kernels * PRICE * Decimal(TICK_SECONDS + LATE_SECONDS)


def test_what_is_no_budget_is_refused_and_nothing_runs_without_one(agent: Agent) -> None:
    for bad in ("-1", "", " ", "nan", "inf", "1e3", "0.0000000001", "1,5", "0x1", "\u0661", "1" * 13, "1 USD"):
        with pytest.raises(Refusal, match="is no amount"):
            agent.budget("odd", bad)
    for bad in ("", "a b", "x" * 65, "../a", "a\n", "실험"):
        with pytest.raises(Refusal, match="is no name of an experiment"):
            agent.budget(bad, "1")
    with pytest.raises(Refusal, match="has no budget"):
        agent.run("1", "odd")
    nothing = agent.budget("nothing", "0")
    assert (nothing["budget"], nothing["may_run"]) == ("0.00", False)
    with pytest.raises(Refusal, match=r"The budget of the experiment nothing is used up: 0.00 of 0.00 USD"):
        agent.run("1", "nothing")
    with pytest.raises(Refusal, match="used up"):
        agent.run("1", "nothing", kernel="unneeded")
    assert "unneeded" not in [row["name"] for row in agent.call("list_kernels")], "it was started for nothing"


def test_a_run_stops_at_its_budget_keeps_its_tensors_and_goes_on_once_it_is_raised(agent: Agent) -> None:
    agent.run(TORCH, "setting-up")
    agent.budget("tiny", TINY)
    stopped = agent.run(ENDLESS, "tiny")
    assert stopped["status"] == "budget_used_up" and "Variables and tensors stay" in stopped["explanation"], stopped
    assert Decimal(TINY) * Decimal("0.1") < spent(agent, "tiny") <= most(TINY)
    with pytest.raises(Refusal, match="The budget of the experiment tiny is used up"):
        agent.run("1", "tiny")
    agent.budget("tiny", "1")
    assert agent.experiment("tiny")["may_run"]
    after = agent.run("x.sum().item()", "tiny", timeout_seconds=60)
    assert after["status"] == "ok" and after["output"].endswith("90000.0\n"), after["output"]


@pytest.mark.full_sweep
def test_a_budget_that_is_raised_midway_lets_the_run_go_on(agent: Agent) -> None:
    agent.budget("raised", TINY)
    code = "import time\nfor _ in range(40):\n    y = x @ x\n    y.sum().item()\n    time.sleep(0.1)"
    call = agent.begin("run_code", code=code, experiment="raised")
    agent.budget("raised", "1")
    assert call.result()["status"] == "ok"


@pytest.mark.full_sweep
def test_two_kernels_and_a_flood_of_short_runs_share_one_budget(agent: Agent) -> None:
    for kernel in ("first", "second"):
        agent.run(TORCH, "setting-up", kernel=kernel)
    agent.budget("shared", TINY)
    calls = [agent.begin("run_code", code=ENDLESS, experiment="shared", kernel=kernel) for kernel in ("first", "second")]
    assert {call.result()["status"] for call in calls} == {"budget_used_up"}
    assert spent(agent, "shared") <= most(TINY, 2)
    agent.run(TORCH, "setting-up", kernel="third")
    agent.budget("flood", TINY)
    runs, end = 0, time.monotonic() + 60
    with pytest.raises(Refusal, match="used up"):
        while time.monotonic() < end:
            agent.run(SHORT, "flood", kernel="third")
            runs += 1
    assert runs and spent(agent, "flood") <= most(TINY)


TRIALS, LONG_TRIALS = 4, 1000
SHORT = "for _ in range(20): y = x @ x\ny.sum().item()"
FORKING = f"""
import os, signal
children = []
for _ in range(2):
    pid = os.fork()
    if pid == 0:
        try:
            {ENDLESS.replace(chr(10), chr(10) + 12 * " ")}
        finally:
            os._exit(0)
    children.append(pid)
try:
    {ENDLESS.replace(chr(10), chr(10) + 4 * " ")}
finally:
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
"""
"""Processes with sessions of their own compute for the same run."""


@pytest.mark.timeout(6 * 3600)
def test_no_trial_spends_more_than_its_budget_and_a_tick(agent: Agent, full_sweep: bool) -> None:
    chance, trials = random.Random(50), LONG_TRIALS if full_sweep else TRIALS
    for kernel in ("trial-0", "trial-1"):
        agent.run(TORCH, "setting-up", kernel=kernel)
    above = []
    for trial in range(trials):
        name, budget = f"trial-{trial}", f"{chance.choice((0, 1, chance.randrange(100), chance.randrange(20_000))) / 1e9:.9f}"
        kernels = ["trial-0", "trial-1"][: chance.choice((1, 1, 2))]
        agent.budget(name, budget)
        stopped = spend_all(agent, name, kernels, chance.choice((ENDLESS, ENDLESS, SHORT, SHORT, FORKING)))
        agent.budget(name, "1")
        for kernel in kernels:
            after = agent.run("x.sum().item()", name, kernel=kernel)
            assert after["status"] == "ok" and after["output"].endswith("90000.0\n"), after["output"]
        time.sleep(TICK_SECONDS)
        cost = sum(Decimal(run["cost"]) for run in agent.call("experiment_cost", experiment=name)["runs"] if run["id"] in stopped)
        assert cost <= most(budget, len(kernels)), (name, budget, cost)
        above.append((cost - Decimal(budget)) / (PRICE * len(kernels)))
        agent.call("end_experiment", experiment=name)
    most_seconds, median_seconds = max(above), statistics.median(above)
    print(f"{trials} trials: above the budget at most {most_seconds:.3f} s of a kernel's price, {median_seconds:.3f} s by the median")


@pytest.mark.timeout(300)
def test_a_job_of_an_experiment_waits_where_its_budget_is_used_up_and_goes_on_once_it_is_raised(
    agent: Agent, variables: dict[str, str]
) -> None:
    script, over = Path(variables["HOME"]) / "steps.py", Path(variables["HOME"]) / "over"
    loop = ENDLESS.replace("while True", f"while not __import__('os').path.exists({str(over)!r})")
    script.write_text(f"{TORCH}\n{loop}\nprint(x.sum().item())\n", encoding="utf-8")
    with pytest.raises(Refusal, match="has no budget"):
        agent.call("submit_job", file=str(script), experiment="of-jobs")
    agent.budget("of-jobs", TINY)
    job = agent.call("submit_job", file=str(script), experiment="of-jobs")
    assert job["experiment"] == "of-jobs"
    with running_job(agent, variables, job["job"]):
        until(lambda: spent(agent, "of-jobs") > 0, "it costs nothing")
        until(lambda: [row for row in agent.call("list_sessions") if row["experiment"] == "of-jobs" and row["why_it_waits"]], "it goes on")
        assert 0 < spent(agent, "of-jobs") <= most(TINY)
        with pytest.raises(Refusal, match="The budget of the experiment of-jobs is used up"):
            agent.call("submit_job", file=str(script), experiment="of-jobs")
        agent.budget("of-jobs", "1")
        over.touch()
        ended = until(lambda: (row := agent.call("show_job", job=job["job"]))["ended"] and row, "it does not end")
    assert ended["state"] == "succeeded" and "90000.0" in agent.call("follow_job", job=job["job"])["text"]
    cost = until(lambda: Decimal(agent.call("show_job", job=job["job"])["cost"]["USD"]), "it is not billed")
    assert abs(cost - spent(agent, "of-jobs")) < Decimal("1e-15") < cost, "both are exact to their last digit"


@contextlib.contextmanager
def running_job(agent: Agent, variables: dict[str, str], job: int) -> Iterator[None]:
    """With the runner that the hub would start."""
    until(lambda: agent.call("show_job", job=job)["state"] == "starting", "it is not to be started")
    told = {**variables, "JUPYTERHUB_SERVER_NAME": f"job-{job}", "JUPYTERHUB_USER": "acme-member"}
    with subprocess.Popen([sys.executable, "-m", "forebay.toolkit.jobs"], env=told, cwd=variables["HOME"]) as runner:
        try:
            yield
            assert runner.wait(60) == 0
        finally:
            runner.terminate()


def spend_all(agent: Agent, name: str, kernels: Sequence[str], code: str) -> set[str]:
    """Runs code in kernels side by side, again and again, until nothing may run any more; the ids of the runs."""
    found, end = set(), time.monotonic() + 60
    while agent.experiment(name)["may_run"]:
        assert time.monotonic() < end, f"{name} goes on"
        calls = [agent.begin("run_code", code=code, experiment=name, kernel=kernel) for kernel in kernels]
        for call in calls:
            with contextlib.suppress(Refusal):  # the other kernel has used it up
                found.add(call.result()["id"])
    return found


@pytest.fixture(scope="module")
def trials(request: pytest.FixtureRequest) -> int:
    return 900 if request.config.getoption("--full-sweep") else 30


def test_short_experiments_cost_exactly_what_the_ledger_says_and_little_time(agent: Agent, trials: int, cloud: Any) -> None:
    agent.run(TORCH, "setting-up", kernel="replay")
    names, overheads = [f"replay-{n}" for n in range(trials)], []
    for name in names:
        began = time.monotonic()
        agent.budget(name, "0.01")
        found = agent.run("y = x @ x\ny.sum().item()", name, kernel="replay")
        agent.call("end_experiment", experiment=name)
        overheads.append(time.monotonic() - began - found["seconds"])
        assert (found["status"], found["output"]) == ("ok", "27000000.0\n"), found
    print(f"{trials} experiments: {statistics.median(overheads) * 1000:.1f} ms beside each, at most {max(overheads) * 1000:.1f} ms")
    assert statistics.median(overheads) < 0.5
    billed = until(lambda: all_runs(agent, names), "not all is posted")
    assert len(billed) == trials and all(Decimal(run["cost"]) > 0 for run in billed)
    of_the_kernel = agent.call("kernel_cost", kernel="replay")["total"]["USD"]
    assert sum(Decimal(run["cost"]) for run in billed) + before_here(agent) == Decimal(of_the_kernel)
    check_ledger(cloud)


def all_runs(agent: Agent, names: Sequence[str]) -> list[Any]:
    """The cost of each, once all are posted."""
    found = [run for name in names for run in agent.call("experiment_cost", experiment=name)["runs"]]
    return found if len(found) >= len(names) else []


def before_here(agent: Agent) -> Decimal:
    """What the kernel of the replay cost before."""
    runs = agent.call("experiment_cost", experiment="setting-up")["runs"]
    return sum((Decimal(run["cost"]) for run in runs if run["id"].startswith("replay-")), Decimal(0))


def check_ledger(cloud: Any) -> None:
    """All experiments together are what the tenant owes: nothing else was used here."""
    records, cursor = [], None
    while True:
        asked = {"limit": 1000} | ({"cursor": cursor} if cursor else {})
        page = cloud.ask("billing", "operator", "GET", "api/usage", params=asked)
        records += page["records"]
        cursor = page["next"]
        if cursor is None:
            break
    assert all(record["span"]["label"].startswith("experiment ") for record in records)
    total = sum(Decimal(record["cost_exact"]) for record in records)
    (balance,) = cloud.ask("billing", "operator", "GET", "api/balance", params={"tenant": "acme"})["balances"]
    assert balance["owed_nano"] == round(total * 10**9)

"""What an experiment may cost is a wall: the pool takes the device back, tensors stay, and each run's cost is the ledger's."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from decimal import Decimal
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
    agent.budget("setting-up", "1")
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
    assert after["status"] == "ok" and after["output"].endswith("90000.0\n"), after


@pytest.mark.full_sweep
def test_a_budget_that_is_raised_midway_lets_the_run_go_on(agent: Agent) -> None:
    agent.budget("raised", TINY)
    code = "import time\nfor _ in range(40):\n    y = x @ x\n    y.sum().item()\n    time.sleep(0.1)"
    call = agent.begin("run_code", code=code, experiment="raised")
    agent.budget("raised", "1")
    assert call.result()["status"] == "ok"


@pytest.mark.full_sweep
def test_two_kernels_and_a_flood_of_short_runs_share_one_budget(agent: Agent) -> None:
    agent.run(TORCH, "setting-up", kernel="second")
    agent.budget("shared", TINY)
    calls = [agent.begin("run_code", code=ENDLESS, experiment="shared", kernel=kernel) for kernel in ("main", "second")]
    assert {call.result()["status"] for call in calls} == {"budget_used_up"}
    assert spent(agent, "shared") <= most(TINY, 2)
    agent.run(TORCH, "setting-up", kernel="third")
    agent.budget("flood", TINY)
    runs, end = 0, time.monotonic() + 60
    with pytest.raises(Refusal, match="used up"):
        while time.monotonic() < end:
            agent.run("for _ in range(20): y = x @ x\ny.sum().item()", "flood", kernel="third")
            runs += 1
    assert runs > 1 and spent(agent, "flood") <= most(TINY)


@pytest.fixture(scope="module")
def trials(request: pytest.FixtureRequest) -> int:
    return 900 if request.config.getoption("--full-sweep") else 30


def test_short_experiments_cost_exactly_what_the_ledger_says_and_little_time(agent: Agent, trials: int, cloud: Any) -> None:
    agent.budget("setting-up", "1")
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

"""What a person sees before and while a server starts."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from forebay_spawner.budgets import read_budgets
from forebay_spawner.local import LocalVirtualGpuSpawner
from forebay_spawner.mixin import ASKING_SECONDS
from forebay_spawner.steps import Steps

LEFT = {
    "user": "acme-member", "notebook": None, "currency": "USD", "period": "2026-11", "limit_nano": 10 * 10**9, "left_nano": 3_200_000_000,
    "state": "open", "sentence": None,
}  # fmt: skip
STOPPED = LEFT | {"user": None, "limit_nano": None, "left_nano": None, "state": "refuse", "sentence": "Acme has spent what it may."}


@pytest.fixture
def spawner(hub: Any, user: Any, pool: Any) -> LocalVirtualGpuSpawner:
    billing_url = pool.url.replace("pool", "billing")
    return LocalVirtualGpuSpawner(hub=hub, user=user, api_token="server-token", pool_url=pool.url, billing_url=billing_url)


def page(spawner: LocalVirtualGpuSpawner) -> str:
    return asyncio.run(spawner.flavor_form())


def test_a_card_says_size_rate_who_serves_it_and_the_wait(spawner: LocalVirtualGpuSpawner) -> None:
    form = page(spawner)
    assert "L4" not in form, "there is none here"
    for fact in ("1 GiB, 0.036 USD an hour", "Served by 0.25 cpu-dev", "Served by 1 cpu-dev or 2 T4"):
        assert fact in form
    assert form.index("dev.1gb") < form.index("Now: no wait") < form.index("Now: a wait of about 2 min (3 are waiting)")
    assert form.index("1 more flavor, which") < form.index("needs 1 MI250, of which there are none")


def test_the_choice_made_last_anywhere_is_preselected(spawner: LocalVirtualGpuSpawner, pool: Any) -> None:
    pool.choice = b'{"flavor": "dev.1gb"}'
    spawner.user_options = {"flavor": "dev.4gb"}
    checked = [card for card in page(spawner).split("<label") if " checked>" in card]
    assert len(checked) == 1 and 'value="dev.1gb"' in checked[0]


def test_pool_and_billing_are_asked_in_the_visitors_name_with_a_token_that_is_good_for_a_moment(
    spawner: LocalVirtualGpuSpawner, user: Any, pool: Any
) -> None:
    page(spawner)
    assert pool.tokens == ["token visitors-token"] * 3
    assert [(how["scopes"], how["expires_in"]) for how in user.asked] == [(["custom:forebay:compute!user"], ASKING_SECONDS)]


def test_what_is_left_of_the_budget_is_shown_and_what_stops_leases_in_words(spawner: LocalVirtualGpuSpawner, pool: Any) -> None:
    pool.budgets = json.dumps([LEFT, STOPPED]).encode()
    form = page(spawner)
    assert "Your budget, 2026-11: 3.20 USD of 10.00 USD left" in form
    assert form.index('role="alert"') < form.index("Acme has spent what it may.") < form.index("Your budget")
    assert "tenant&#39;s budget" not in form, "its amounts are not for the visitor"


@pytest.mark.parametrize("answer", [b"", b"<html>", b'[{"left": 1}]'])
def test_billing_that_does_not_answer_keeps_nobody_from_starting(spawner: LocalVirtualGpuSpawner, pool: Any, answer: bytes) -> None:
    pool.budgets = answer
    form = page(spawner)
    assert 'value="dev.4gb"' in form and "Billing does not answer: what is left of your budgets is not known now." in form


def test_an_overspent_budget_has_nothing_left() -> None:
    (budget,) = read_budgets(json.dumps([LEFT | {"left_nano": -5}]).encode())
    assert budget.left == "Your budget, 2026-11: 0.00 USD of 10.00 USD left"


def test_who_has_no_tenant_or_no_role_reads_why_instead_of_cards(spawner: LocalVirtualGpuSpawner, user: Any) -> None:
    def refuse(**_how: Any) -> str:
        raise ValueError("no such scope")

    user.new_api_token = refuse
    assert "may not hold devices" in page(spawner)
    user.groups = []
    form = page(spawner)
    assert "belongs to no tenant" in form and "#spawn_form [type=submit] { display: none }" in form, "no button to press in vain"
    user.roles = [SimpleNamespace(name="forebay-operator")]
    assert "You run this installation" in page(spawner)
    user.groups = [SimpleNamespace(name="tenant-a"), SimpleNamespace(name="tenant-b")]
    assert 'role="alert"' in page(spawner)


def test_the_start_is_told_in_steps_to_everybody_who_watches(spawner: LocalVirtualGpuSpawner, tmp_path: Any) -> None:
    spawner.home_dir_template = str(tmp_path / "homes" / "{username}")
    spawner.notebook_prefix, spawner.cmd = "/venv", ["true"]

    async def watch() -> list[dict[str, Any]]:
        return [event async for event in spawner.progress()]

    async def go() -> list[list[dict[str, Any]]]:
        early = asyncio.create_task(watch())
        await asyncio.sleep(0)
        await spawner.start()
        told = [await early, await watch()]
        while await spawner.poll() is None:
            await asyncio.sleep(0.01)
        return told

    early, late = asyncio.run(go())
    assert early == late
    assert [step["progress"] for step in early] == [5, 20, 50, 80]
    assert "dev.4gb" in early[1]["message"]
    assert not spawner.steps.over, "the next start's are its own"


def test_steps_that_ended_are_all_told() -> None:
    async def go() -> list[str]:
        steps = Steps()
        steps.tell(1, "one")
        steps.end()
        return [step["message"] async for step in steps.follow()]

    assert asyncio.run(go()) == ["one"]

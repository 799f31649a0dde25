"""The spawn page and the steps of a start in the language of who asks; what is logged stays English."""

from __future__ import annotations

import asyncio
import json
import re
from types import SimpleNamespace
from typing import Any

import pytest
from forebay_service.languages import COOKIE
from forebay_spawner.local import LocalVirtualGpuSpawner
from jupyterhub.spawner import SpawnException

BUDGETS = [
    {"user": "acme-member", "currency": "USD", "period": "total", "limit_nano": 10**10, "left_nano": 10**9, "state": "open"},
    {"user": None, "currency": "USD", "period": "2026-11", "state": "refuse", "sentence": "The budget for acme is used up."},
]
DATA = re.compile(r"dev\.1gb|dev\.4gb|small\.64gb|cpu-dev|T4|MI250|GiB|USD|2026-11")


@pytest.fixture
def spawner(hub: Any, user: Any, pool: Any) -> LocalVirtualGpuSpawner:
    billing_url = pool.url.replace("pool", "billing")
    return LocalVirtualGpuSpawner(hub=hub, user=user, api_token="server-token", pool_url=pool.url, billing_url=billing_url)


def asked_by(cookie: str | None, accepted: str) -> Any:
    """JupyterHub's handler of the request."""
    headers = {"Accept-Language": accepted} if accepted else {}
    return SimpleNamespace(get_cookie=lambda name: cookie if name == COOKIE else None, request=SimpleNamespace(headers=headers))


def latin(form: str) -> list[str]:
    """Words of a page in Latin letters that are no data."""
    return re.findall("[A-Za-z]{2,}", DATA.sub("", re.sub("<style>.*</style>|<[^>]*>", " ", form)))


def test_the_whole_form_is_in_the_visitors_language(spawner: LocalVirtualGpuSpawner, pool: Any) -> None:
    offers = json.loads(pool.body)
    offers[2]["equivalents"] = [{"model": "MI250", "devices": 0}]
    pool.body, pool.budgets = json.dumps(offers).encode(), json.dumps(BUDGETS).encode()
    english = asyncio.run(spawner.flavor_form())
    assert '<div lang="en">' in english and latin(english)
    for handler in (asked_by("ko", "en"), asked_by(None, "ko-KR,ko;q=0.9,en;q=0.1")):
        spawner.handler = handler
        korean = asyncio.run(spawner.flavor_form())
        assert '<div lang="ko">' in korean
        assert latin(korean) == []
        assert "내 예산, 전체 기간: 10.00 USD 중 1.00 USD 남음" in korean
        assert "현재: 대기 약 2분 (3명 대기 중)" in korean
        assert re.findall('value="([^"]*)"', korean) == re.findall('value="([^"]*)"', english)


def test_why_a_flavor_is_not_served_and_a_budget_stops_is_told_by_codes_and_values(spawner: LocalVirtualGpuSpawner, pool: Any) -> None:
    offers = json.loads(pool.body)
    way = {"message": "2 MI250", "code": "way", "values": {"count": 2, "model": "MI250"}, "parts": []}
    values = {"flavor": "small.64gb", "found": "1 cpu-dev"}
    offers[2]["cause"] = {"message": offers[2]["reason"], "code": "flavor_absent", "values": values, "parts": [way]}
    stops = {**BUDGETS[1], "tenant": "acme", "origin": "owner", "code": "used_up"}
    pool.body, pool.budgets = json.dumps(offers).encode(), json.dumps([stops]).encode()
    spawner.handler = asked_by("ko", "")
    korean = asyncio.run(spawner.flavor_form())
    assert "small.64gb에는 2 MI250가 필요하지만, 이 환경에는 1 cpu-dev가 있습니다." in korean
    assert "테넌트 acme의 2026-11 예산을 모두 썼습니다. 테넌트 소유자가 늘릴 수 있습니다." in korean
    assert latin(korean) == ["acme"]


def test_a_refusal_is_told_in_the_visitors_language_and_logged_in_english(spawner: LocalVirtualGpuSpawner, user: Any) -> None:
    user.groups = []
    spawner.handler = asked_by("ko", "")
    assert latin(asyncio.run(spawner.flavor_form())) == ["acme", "member"]
    with pytest.raises(SpawnException) as refused:
        asyncio.run(spawner.start())
    assert "테넌트에 속해 있지 않습니다" in refused.value.message
    assert "belongs to no tenant" in refused.value.log_message


@pytest.mark.parametrize("option", ["tiny", "small.64gb", 7])
def test_a_flavor_that_cannot_be_had_is_refused_in_the_visitors_language(spawner: LocalVirtualGpuSpawner, option: Any) -> None:
    spawner.user_options, spawner.handler = {"flavor": option}, asked_by("ko", "")
    with pytest.raises(SpawnException) as refused:
        asyncio.run(spawner.start())
    assert re.search("[가-힣]", refused.value.message)
    assert not re.search("[가-힣]", refused.value.log_message)


def test_the_steps_of_a_start_are_in_the_language_of_who_asked_for_it(spawner: LocalVirtualGpuSpawner, tmp_path: Any) -> None:
    spawner.home_dir_template = str(tmp_path / "homes" / "{username}")
    spawner.notebook_prefix, spawner.cmd, spawner.handler = "/venv", ["true"], asked_by("ko", "")

    async def go() -> list[str]:
        followed = spawner.steps
        await spawner.start()
        while await spawner.poll() is None:
            await asyncio.sleep(0.01)
        return [step["message"] async for step in followed.follow()]

    messages = asyncio.run(go())
    assert len(messages) == 3
    assert [word for message in messages for word in latin(message)] == ["JupyterLab"]

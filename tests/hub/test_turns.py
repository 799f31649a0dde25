"""JupyterHub has everybody take turns: who sends too much waits and is refused, and nobody else is."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from forebay_hub.turns import READ_SECONDS, STATIC_SECONDS, WRITE_SECONDS, cost
from forebay_service.peers.front import STRANGERS_WAITING_MAX
from forebay_service.peers.rate_limit import WAITING_MAX
from tornado.httputil import RequestStartLine

CLASS = 50
FLOOD = 90
"""Requests that one user has under way at a time."""
LOOKS = 4


@pytest.mark.parametrize(
    ("method", "path", "seconds"),
    [
        ("GET", "/hub/static/css/style.min.css?v=1", STATIC_SECONDS),
        ("GET", "/hub/api/users/ada?x=/static/", READ_SECONDS),
        ("HEAD", "/hub/home", READ_SECONDS),
        ("POST", "/hub/api/users/ada/tokens", WRITE_SECONDS),
        ("DELETE", "/hub/static/x", WRITE_SECONDS),
        ("BREW", "/hub/api", WRITE_SECONDS),
    ],
)
def test_what_a_request_takes_is_told_by_its_first_line(method: str, path: str, seconds: float) -> None:
    assert cost(RequestStartLine(method, path, "HTTP/1.1")) == seconds


@asynccontextmanager
async def flooding(url: str, token: str, refused: Counter[int]) -> AsyncIterator[None]:
    """One user asks for tokens, servers and lists as fast as there are answers."""
    asks = (("GET", "user"), ("POST", "users/acme-member/tokens"), ("DELETE", "users/acme-member/server"), ("GET", "users/acme-member"))
    limits = httpx.Limits(max_connections=FLOOD, max_keepalive_connections=FLOOD)

    async def ask_on(client: httpx.AsyncClient, number: int) -> None:
        while True:
            method, path = asks[number % len(asks)]
            number += 1
            try:
                answer = await client.request(method, f"{url}/{path}", json={"note": "flood"} if method == "POST" else None)
            except httpx.TransportError:  # a refusal closes the connection
                continue
            refused[answer.status_code] += 1

    async with httpx.AsyncClient(headers={"Authorization": f"token {token}"}, limits=limits, timeout=120) as client:
        first = await client.get(f"{url}/user")  # from now on it is known whose token that is
        assert first.status_code == 200
        tasks = [asyncio.create_task(ask_on(client, number)) for number in range(FLOOD)]
        try:
            while not refused[429]:
                await asyncio.sleep(0.1)
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def test_a_user_who_floods_the_hub_is_refused_and_a_class_behind_one_address_signs_in_meanwhile(hub: Any) -> None:
    answers: Counter[int] = Counter()
    tokens = {name: hub.new_token(name) for name in ("acme-member", "globex-owner")}

    async def look(client: httpx.AsyncClient) -> list[int]:
        headers = {"Authorization": f"token {tokens['globex-owner']}"}
        return [(await client.get(f"{hub.api_url}/user", headers=headers)).status_code for _ in range(LOOKS)]

    async def open_page(client: httpx.AsyncClient) -> int:
        page = await client.get(f"{hub.api_url.removesuffix('/api')}/login", headers={"X-Forwarded-For": "10.8.0.1"})
        return page.status_code

    async def scenario() -> None:
        async with flooding(hub.api_url, tokens["acme-member"], answers), httpx.AsyncClient(timeout=120) as client:
            seen, *pages = await asyncio.gather(look(client), *(open_page(client) for _ in range(CLASS)))
            assert seen == [200] * LOOKS
            assert pages == [200] * CLASS

    asyncio.run(scenario())
    assert answers[429] > 0 and answers[200] > 0, answers
    assert CLASS < STRANGERS_WAITING_MAX and FLOOD > WAITING_MAX
    later = httpx.get(f"{hub.api_url}/user", headers={"Authorization": f"token {tokens['acme-member']}"}, timeout=60)
    assert later.status_code == 200, "who floods no more is refused no more"

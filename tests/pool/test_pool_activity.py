"""Whose notebook servers are in use, as the pool tells the hub: of people who compute, wait, or left tensors not long ago."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from forebay_pool.errors import HubRefused, HubUnavailable
from forebay_pool.jobs.activity import Activity, in_use
from forebay_pool.jobs.hub import Servers
from forebay_pool.model.types import Session

SECOND = 10**9
HELD = 100 * SECOND
NOW = 1_000 * SECOND


def session(doing: str, ago: int, user: str = "ann") -> Session:
    return cast(Session, SimpleNamespace(user=user, doing=doing, used_ns=NOW - ago * SECOND))


@pytest.mark.parametrize(
    ("doing", "ago", "counts"),
    [
        ("active", 10_000, True),
        ("queued", 10_000, True),
        ("resident", 99, True),
        ("resident", 100, False),
        ("parked", 0, True),
        ("parked", 99, True),
        ("parked", 100, False),
        ("idle", 0, False),
        ("lost", 0, False),
        ("ended", 0, False),
    ],
)
def test_a_session_counts_while_it_computes_or_waits_and_for_some_time_while_it_holds(doing: str, ago: int, counts: bool) -> None:
    assert in_use([session(doing, ago)], NOW, HELD) == ({"ann"} if counts else set())


def test_one_session_in_use_is_enough() -> None:
    assert in_use([session("idle", 0), session("active", 500), session("parked", 500, "bob")], NOW, HELD) == {"ann"}


def test_nothing_that_only_holds_counts_where_the_time_is_none() -> None:
    assert in_use([session("parked", 0), session("queued", 0, "bob")], NOW, 0) == {"bob"}


class Hub:
    """Takes what it is told, but of those that it refuses or does not answer for."""

    def __init__(self, **answers: Exception) -> None:
        self.told: list[tuple[str, str]] = []
        self.answers = answers

    async def tell_active(self, user: str, when: str) -> None:
        self.told.append((user, when))
        if user in self.answers:
            raise self.answers[user]


def told(hub: Any, *users: str) -> list[str]:
    asyncio.run(Activity(lambda: set(users), cast(Servers, hub), lambda: 1_700_000_000.5).tell())
    assert all(when == "2023-11-14T22:13:20.500000+00:00" for _, when in hub.told)
    return [user for user, _ in hub.told]


def test_who_has_no_server_keeps_nobody_else_from_being_told() -> None:
    assert told(Hub(ann=HubRefused("No such server")), "bob", "ann", "cyd") == ["ann", "bob", "cyd"]


def test_a_hub_that_does_not_answer_is_asked_again_later() -> None:
    assert told(Hub(bob=HubUnavailable("cannot be asked")), "ann", "bob", "cyd") == ["ann", "bob"]

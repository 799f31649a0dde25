"""Notebooks that are shared to be read: within the tenant alone, by who has the link, until they expire or are taken back."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from forebay_pool.errors import TooManyShared
from forebay_pool.http.shared_notebooks import BODY_BYTES_MAX, DAY_NS, PAGE_BYTES_MAX
from forebay_pool.store.database import Store
from forebay_pool.store.shared_notebooks import SharedNotebookStore, packed
from forebay_pool.store.tables import SHARED_NOTEBOOKS
from sqlalchemy import update

PATH = "api/shared-notebooks"
PAGE = "<!DOCTYPE html><p>손실 0.5</p>"
NOW = 1_700_000_000 * 10**9
Make = Callable[..., Any]


async def shared(running: Any, who: str = "ada", **more: Any) -> dict[str, Any]:
    response = await running.call("POST", PATH, who, {"name": "digits.ipynb", "page": PAGE, **more})
    assert response.code == 201, response.body
    row: dict[str, Any] = json.loads(response.body)
    return row


async def opened(running: Any, row: dict[str, Any], who: str, key: str | None = None) -> tuple[int, str]:
    """The status of what the link opens, and the page or the code of the refusal."""
    answers = [
        await running.call("GET", f"{PATH}/{row['id']}{part}?key={row['key'] if key is None else key}", who) for part in ("", "/page")
    ]
    fact, page = ({"code": answer.code, **json.loads(answer.body)} for answer in answers)
    return (200, page["page"]) if answers[0].code == answers[1].code == 200 else (answers[1].code, fact["error"]["code"])


def test_a_link_opens_for_members_of_the_tenant_and_for_nobody_else(pool: Make) -> None:
    async def scenario() -> None:
        async with pool(warm_workers=0) as running:
            row = await shared(running)
            assert (row["name"], row["user"], row["tenant"]) == ("digits.ipynb", "ada", "acme")
            for who in ("ada", "ben", "olga"):
                assert await opened(running, row, who) == (200, PAGE), who
            for who in ("other-ada", "loner"):
                assert await opened(running, row, who) == (404, "no_shared_notebook"), who
            for who in ("operator", "dashboards", "guest"):
                assert await opened(running, row, who) == (403, "forbidden"), who

    asyncio.run(scenario())


def test_who_has_not_the_link_opens_nothing_but_who_shares_the_notebook(pool: Make) -> None:
    async def scenario() -> None:
        async with pool(warm_workers=0) as running:
            row, other = await shared(running), await shared(running, "ben")
            for key in ("", "x", other["key"], row["key"][:-1]):
                for who in ("ben", "olga"):
                    assert (await opened(running, row, who, key))[0] == 404, (who, key)
            assert await opened(running, row, "ada", "") == (200, PAGE)
            assert row["key"] not in str(running.rows("shared_notebooks")), "the key is kept nowhere"
            assert PAGE not in str(running.rows("shared_notebooks"))

    asyncio.run(scenario())


def test_each_lists_the_own_ones_an_owner_the_tenants_and_an_operator_all(pool: Make) -> None:
    async def scenario() -> None:
        async with pool(warm_workers=0) as running:
            mine, bens, theirs = [(await shared(running, who))["id"] for who in ("ada", "ben", "other-ada")]
            asked = [("ada", ""), ("other-ada", ""), ("olga", ""), ("olga", "?everybody=true"), ("operator", "?everybody=true")]
            seen = [[row["id"] for row in await running.get(PATH + query, who)] for who, query in asked]
            assert seen == [[mine], [theirs], [], [bens, mine], [theirs, bens, mine]]
            assert all("key" not in row and "page" not in row for row in await running.get(PATH, "ada"))
            assert (await running.call("GET", f"{PATH}?everybody=true", "ben")).code == 403

    asyncio.run(scenario())


def test_who_shares_it_takes_it_back_and_so_do_owners_and_operators_who_are_written_down(pool: Make) -> None:
    async def scenario() -> None:
        async with pool(warm_workers=0) as running:
            for who, audited in (("ada", 0), ("olga", 1), ("operator", 2)):
                row = await shared(running)
                for other in ("ben", "other-ada", "loner"):
                    assert (await running.call("DELETE", f"{PATH}/{row['id']}", other)).code == 404, other
                assert (await running.call("DELETE", f"{PATH}/{row['id']}", who)).code == 204
                assert await opened(running, row, "ben") == (404, "no_shared_notebook")
                assert await opened(running, row, "ada") == (404, "no_shared_notebook")
                assert (await running.call("DELETE", f"{PATH}/{row['id']}", who)).code == 404
                deeds = [deed for deed in running.rows("audit") if deed["action"] == "notebook.unshare"]
                assert len(deeds) == audited
            assert [(deed["who"], deed["subject"]) for deed in deeds] == [
                ("olga", "acme/ada/notebook #2"),
                ("operator", "acme/ada/notebook #3"),
            ]
            assert running.rows("shared_notebooks") == []

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("body", "who", "status", "said"),
    [
        ({"name": "n", "page": ""}, "ada", 400, "page: "),
        ({"name": "", "page": PAGE}, "ada", 400, "name: "),
        ({"name": "a\nb", "page": PAGE}, "ada", 400, "name: "),
        ({"name": "n"}, "ada", 400, "page: "),
        ({"name": "n", "page": PAGE, "days": 0}, "ada", 400, "days: "),
        ({"name": "n", "page": PAGE, "days": 91}, "ada", 400, "days: "),
        ('{"name": "n", "page": "\\ud800"}', "ada", 400, "body: "),
        ({"name": "n", "page": "x" * (PAGE_BYTES_MAX + 1)}, "ada", 413, "clear outputs that are large"),
        ({"name": "n", "page": "x" * BODY_BYTES_MAX}, "ada", 413, "The body is longer than"),
        ({"name": "n", "page": PAGE}, "loner", 403, "loner belongs to no tenant"),
        ({"name": "n", "page": PAGE}, "operator", 403, "needs the scope"),
    ],
)
def test_what_cannot_be_shared_is_refused_in_one_sentence(pool: Make, body: Any, who: str, status: int, said: str) -> None:
    async def scenario() -> None:
        async with pool(warm_workers=0) as running:
            response = await running.call("POST", PATH, who, body)
            message = json.loads(response.body)["error"]["message"]
            assert response.code == status and said in message and message.endswith(".")
            assert running.rows("shared_notebooks") == []

    asyncio.run(scenario())


def test_a_page_as_long_as_may_be_in_korean_is_shared_and_comes_back(pool: Make) -> None:
    async def scenario() -> None:
        async with pool(warm_workers=0) as running:
            page = "가" * (PAGE_BYTES_MAX // 3)
            row = await shared(running, page=page, days=90)
            assert await opened(running, row, "ben") == (200, page)
            assert row["expires_at_ns"] - row["shared_at_ns"] == 90 * DAY_NS

    asyncio.run(scenario())


def test_an_expired_link_opens_nothing(pool: Make) -> None:
    async def scenario() -> None:
        async with pool(warm_workers=0) as running:
            row = await shared(running)
            with running.service.store.writing() as connection:
                connection.execute(update(SHARED_NOTEBOOKS).values(expires_ns=time.time_ns()))
            for who in ("ada", "ben"):
                assert await opened(running, row, who) == (404, "no_shared_notebook")
            assert await running.get(PATH, "ada") == []

    asyncio.run(scenario())


@pytest.mark.parametrize("number", ["0", "-1", "x", "9" * 19, "1.5", "²"])
def test_what_is_no_number_opens_nothing(pool: Make, number: str) -> None:
    async def scenario() -> None:
        async with pool(warm_workers=0) as running:
            for method in ("GET", "DELETE"):
                response = await running.call(method, f"{PATH}/{number}".encode().decode("latin-1"), "ada")
                assert (response.code, json.loads(response.body)["error"]["code"]) == (404, "no_shared_notebook")

    asyncio.run(scenario())


def test_who_shares_as_many_as_may_be_goes_on_once_one_has_expired_or_is_taken_back(store: Store) -> None:
    notebooks = SharedNotebookStore(store, per_user_max=3)
    page = packed(PAGE)
    made = [notebooks.add("acme", "ada", "n", page, NOW, NOW + DAY_NS)[0] for _ in range(3)]
    with pytest.raises(TooManyShared, match="ada shares 3 notebooks"):
        notebooks.add("acme", "ada", "n", page, NOW, NOW + DAY_NS)
    notebooks.add("acme", "ben", "n", page, NOW, NOW + DAY_NS)
    notebooks.add("globex", "ada", "n", page, NOW, NOW + DAY_NS)
    notebooks.remove(made[0].id)
    notebooks.add("acme", "ada", "n", page, NOW, NOW + DAY_NS)
    newest, _ = notebooks.add("acme", "ada", "n", page, NOW + DAY_NS, NOW + 2 * DAY_NS)
    assert notebooks.shared(None, None, NOW) == [newest], "what has expired is forgotten"
    assert newest.id > made[-1].id

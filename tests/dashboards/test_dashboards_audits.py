"""The audit of all services is one list: nothing is shown twice or left out, whatever the pages' sizes and whoever does not answer."""

from __future__ import annotations

import random

import pytest
from forebay_dashboards.errors import FormError
from forebay_dashboards.rows.pool import AuditEntry, AuditPage
from forebay_dashboards.tables.audit import DONE, ENTRIES_PER_PAGE, Service, merge, read_cursor

Books = dict[Service, list[AuditEntry]]


def entry(number: int, at_ns: int) -> AuditEntry:
    return AuditEntry(id=number, at_ns=at_ns, who="operator", action="quota.set", subject="acme", after={})


def page(entries: list[AuditEntry], cursor: str | None) -> AuditPage:
    """What a service answers: the newest that are older than the cursor."""
    if cursor == DONE:
        return AuditPage(entries=())
    older = [one for one in sorted(entries, key=lambda one: -one.id) if cursor is None or one.id < int(cursor)]
    shown = older[:ENTRIES_PER_PAGE]
    return AuditPage(entries=tuple(shown), next=str(shown[-1].id) if len(older) > len(shown) else None)


@pytest.mark.parametrize("sizes", [(0, 0, 0), (1, 0, 0), (0, 130, 1), (200, 3, 0), (50, 50, 50), (160, 170, 60)])
def test_all_entries_come_once_in_order(sizes: tuple[int, ...]) -> None:
    chance = random.Random(str(sizes))
    books: Books = {"pool": [], "billing": [], "hub": []}
    for service, size in zip(books, sizes, strict=True):
        times = sorted(chance.randrange(1000) for _ in range(size))
        books[service] = [entry(number, at_ns) for number, at_ns in enumerate(times, 1)]
    seen: list[tuple[str, int, int]] = []
    cursor: str | None = ""
    while cursor is not None:
        cursors = read_cursor(cursor)
        shown, cursor = merge({service: page(books[service], cursors[service]) for service in books}, cursors)
        seen += [(told.service, told.entry.id, told.entry.at_ns) for told in shown]
    assert len(seen) == len(set(seen)) == sum(sizes)
    assert [at_ns for _, _, at_ns in seen] == sorted((at_ns for _, _, at_ns in seen), reverse=True)


def test_a_service_that_does_not_answer_goes_on_where_it_stood() -> None:
    entries = [entry(number, number) for number in range(1, 80)]
    pages: dict[Service, AuditPage | None] = {"pool": page(entries, None), "billing": None, "hub": page([], None)}
    shown, cursor = merge(pages, {"pool": None, "billing": "77", "hub": None})
    assert (len(shown), cursor) == (ENTRIES_PER_PAGE, f"30.77.{DONE}")


@pytest.mark.parametrize("text", ["x", "1", "1.2", "1.2.3.4", "-1.2.3", "1.2.3 ", "9" * 30 + "..", "done"])
def test_a_cursor_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(FormError):
        read_cursor(text)

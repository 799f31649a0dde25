"""Tables are searched, sorted and paged on the server: the rules, and that a hundred thousand rows are no trouble."""

from __future__ import annotations

import time
from urllib.parse import parse_qsl

import pytest
from dashboards_installation import Installation
from forebay_dashboards.errors import FormError
from forebay_dashboards.live.pool_copy import PoolCopy, Seen, Snapshot
from forebay_dashboards.rows.pool import Lease, Session, Span
from forebay_dashboards.tables.activity import LEASES, QUEUE, SESSIONS
from forebay_dashboards.tables.table import PACE_MS_MAX, PACE_MS_MIN, ROWS_PER_PAGE, Query, Table, pace_ms, read_query, select

SPAN = Span(id="x", kind="cell", label="digits.ipynb", cell=1)


def session(number: int, **fields: object) -> Session:
    return Session.model_validate(
        {"session": f"s{number}", "tenant": f"t{number % 7}", "user": f"u{number % 1000}", "flavor": "dev.1gb", "state": "idle"}
        | {"process": f"python job-{number}.py", "since_ns": number, "memory_bytes": number % 13, **fields}
    )


def pool_copy_of(*sessions: Session) -> PoolCopy:
    pool_copy = PoolCopy()
    pool_copy.replace(Snapshot((), sessions, ()), 0)
    return pool_copy


def names(rows: list[Seen[Session]]) -> list[str]:
    return [seen.row.session for seen in rows]


def test_every_word_of_a_search_must_occur_in_whatever_field() -> None:
    rows = pool_copy_of(session(1, user="Ada"), session(2, user="ada", state="queued"), session(3)).seen_sessions()
    assert names(select(SESSIONS, rows, Query("ADA queued", "since", "asc")).rows) == ["s2"]
    assert names(select(SESSIONS, rows, Query("ada", "since", "asc")).rows) == ["s1", "s2"]
    assert select(SESSIONS, rows, Query("ada nobody", "since", "asc")).count == 0


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("table", [SESSIONS, QUEUE])
def test_every_column_puts_rows_in_order_and_what_is_missing_before_all_else(table: Table[Session], order: str) -> None:
    missing = ("reason", "estimate_seconds", "position", "device_model", "memory_bytes")
    fields = (dict.fromkeys(missing) if n % 2 else {"reason": f"{n}", "position": n} for n in range(600))
    rows = pool_copy_of(*(session(n, **more) for n, more in enumerate(fields))).seen_sessions()
    for column in table.columns:
        sort = column.sort
        if sort is None:  # what may be done with a row
            continue
        page = select(table, rows, read_query({"sort": column.name, "order": order}, table))
        whole = sorted(((sort(seen.row) is not None, sort(seen.row)) for seen in rows), reverse=order == "desc")
        assert [sort(seen.row) for seen in page.rows] == [value for _, value in whole[:ROWS_PER_PAGE]]


def test_pages_together_hold_every_row_once_and_one_behind_the_last_is_the_last() -> None:
    rows = pool_copy_of(*(session(n) for n in range(ROWS_PER_PAGE * 9 + 3))).seen_sessions()
    pages = [select(SESSIONS, rows, Query("", "memory", "desc", number)) for number in range(1, 11)]
    found = [name for page in pages for name in names(page.rows)]
    assert len(found) == len(set(found)) == len(rows)
    assert pages[-1].pages == 10
    last = select(SESSIONS, rows, Query("", "memory", "desc", 99))
    assert (last.query.page, names(last.rows)) == (10, names(pages[-1].rows))


def test_an_address_says_what_is_not_usual_and_reads_back_the_same() -> None:
    assert read_query({}, SESSIONS).address(SESSIONS) == ""
    for query in (Query("a b", "since", "desc", 3), Query("", "user", "asc", 1), Query("ü&x=1", "memory", "desc", 2)):
        assert read_query(dict(parse_qsl(query.address(SESSIONS))), SESSIONS) == query
    assert Query("", "user", "asc", 4).turned("user") == Query("", "user", "desc", 1)
    assert Query("", "user", "desc", 4).turned("memory") == Query("", "memory", "asc", 1)


@pytest.mark.parametrize("arguments", [{"sort": "secret"}, {"order": "up"}, {"page": "0"}, {"page": "-1"}, {"page": "x"}, {"page": "²"}])
def test_an_address_that_asks_nonsense_gets_a_sentence(arguments: dict[str, str], cloud: Installation) -> None:
    with pytest.raises(FormError):
        read_query(arguments, LEASES)
    answer = cloud.get("operator", "operator/leases", params=arguments)
    assert answer.status_code == 400
    assert "That cannot be done" in answer.text


def test_what_took_long_to_make_is_asked_for_more_seldom() -> None:
    assert (pace_ms(0.001), pace_ms(0.1), pace_ms(60)) == (PACE_MS_MIN, 1000, PACE_MS_MAX)


@pytest.mark.full_sweep
def test_a_hundred_thousand_rows_are_searched_sorted_and_paged_in_a_fraction_of_a_second() -> None:
    pool_copy = pool_copy_of(*(session(n) for n in range(100_000)))
    took = []
    wanted = (("u77", "user", "asc", 1), ("", "memory", "desc", 1), ("", "user", "asc", 1000), ("job-9999", "since", "desc", 1))
    for search, sort, order, number in wanted:
        query = read_query({"q": search, "sort": sort, "order": order, "page": str(number)}, SESSIONS)
        begun = time.process_time()
        page = select(SESSIONS, pool_copy.seen_sessions(), query)
        took.append(time.process_time() - begun)
        assert len(page.rows) == min(ROWS_PER_PAGE, page.count) > 0
    assert max(took) < 1.0, took


def test_a_lease_is_found_by_who_what_and_where() -> None:
    pool_copy = PoolCopy()
    row = Lease(
        lease="l1", session="s1", tenant="acme", user="ada", flavor="small.64gb", device_model="H200", node="n1", span=SPAN, opened_at_ns=0,
        duration_ns=0,
    )  # fmt: skip
    pool_copy.replace(Snapshot((row,), (), ()), 0)
    for words in ("ada", "acme", "digits", "h200", "n1", "64gb", "s1"):
        assert select(LEASES, pool_copy.seen_leases(), Query(words, "opened", "asc")).count == 1

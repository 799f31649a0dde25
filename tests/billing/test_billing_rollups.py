"""Sums of usage by hour, day and month are those of the records, to the last nanosecond and grain, whatever came in which order."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from forebay_billing.ledger.access import Scope
from forebay_billing.ledger.books import Books
from forebay_billing.model.months import Month
from forebay_billing.model.types import PARKED, UsageRecord
from forebay_billing.reads import rollups as reads
from forebay_billing.reads.rollups import HOURS, Key, Sums, cover, levels_for
from forebay_billing.rules.rating import parked_segments_of, segments_of
from forebay_billing.tables import rollups as tables
from forebay_billing.tables.engines import Engines, open_engines, reading, writing
from forebay_billing.writes import prices as prices_writes
from forebay_billing.writes import rollups
from forebay_billing.writes import usage as usage_writes
from running_billing import Running
from sqlalchemy import select

Make = Callable[..., UsageRecord]
HOUR_NS, DAY_NS = 3_600 * 10**9, 86_400 * 10**9
NOVEMBER = Month(2026, 11)
FIRST_NS = NOVEMBER.start_ns - 40 * DAY_NS
LAST_NS = NOVEMBER.start_ns + 30 * DAY_NS
KEYS: tuple[tuple[str, ...], ...] = (
    (), ("tenant",), ("flavor",), ("tenant", "flavor"), ("tenant", "day"), ("user", "flavor"), ("day",), ("hour",),
)  # fmt: skip
SCOPES = (Scope(None, None), Scope("acme", None), Scope("acme", "ann"), Scope(None, None, ("acme", "globex")))


@pytest.fixture
def engines(migrated_url: str) -> Iterator[Engines]:
    engines = open_engines(migrated_url, 2)
    with writing(engines) as connection:
        prices_writes.seed(Books(connection), 0)
    yield engines
    engines.dispose()


def record(usage: Make, number: int, chance: random.Random) -> UsageRecord:
    """Of any time, some over midnight or the end of a month, some parked, some a later part of a lease."""
    parked, part = chance.random() < 0.15, chance.choice((1, 1, 2, 11))
    started_ns = chance.randrange(FIRST_NS, LAST_NS)
    if chance.random() < 0.3:
        started_ns = chance.choice((NOVEMBER.start_ns, NOVEMBER.start_ns + 3 * DAY_NS)) + chance.randrange(-2 * HOUR_NS, HOUR_NS)
    one = usage(
        f"lease-{number}/{part}", tenant=chance.choice(("acme", "globex", "a_me")), user=chance.choice(("ann", "bob")),
        flavor=PARKED if parked else chance.choice(("small.64gb", "dev.1gb")), started_at_ns=started_ns,
        duration_ns=chance.choice((0, 1, chance.randrange(HOUR_NS), chance.randrange(5 * HOUR_NS))),
        energy_mj=None if parked or chance.random() < 0.5 else chance.randrange(10**12),
    )  # fmt: skip
    return replace(one, parked_bytes=2**30 * chance.randrange(1, 9)) if parked else one


def summed(
    books: Books, records: Sequence[UsageRecord], scope: Scope, since_ns: int, until_ns: int, keys: Sequence[str]
) -> dict[Key, Sums]:
    """What the records come to, added up one by one."""
    found: dict[Key, Sums] = {}
    for one in records:
        tenants = scope.among or ((scope.tenant,) if scope.tenant else (one.tenant,))
        if one.tenant not in tenants or scope.user not in (None, one.user) or not since_ns <= one.started_at_ns < until_ns:
            continue
        parked = one.parked_bytes is not None
        pieces: Sequence[Any] = (
            segments_of(one, books.price_book(), "USD", ())
            if one.parked_bytes is None
            else parked_segments_of(one, one.parked_bytes, books.parked_book(), "USD", ())
        )
        for piece in pieces:
            of = {"tenant": one.tenant, "user": one.user, "flavor": one.flavor, "day": piece.started_at_ns // DAY_NS}
            of["hour"] = one.started_at_ns - one.started_at_ns % HOUR_NS
            first, told = piece.position == 0, one.energy_mj is not None
            found.setdefault((*(of[key] for key in keys), "USD"), Sums()).add(
                Sums(
                    1, int(first and not parked and one.id.endswith("/1")), 0 if parked else piece.duration_ns, piece.amount_grains,
                    piece.amount_grains if parked else 0, int(told), (one.energy_mj or 0) if first else 0, piece.duration_ns if told else 0,
                )
            )  # fmt: skip
    return found


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.full_sweep)])
def test_sums_are_those_of_the_records_at_every_moment(engines: Engines, usage: Make, seed: int) -> None:
    """Late, repeated and corrected records, with the marks anywhere."""
    chance = random.Random(seed)
    kept: list[UsageRecord] = []
    posted: list[UsageRecord] = []
    for turn in range(12):
        with writing(engines) as connection:
            books = Books(connection)
            batch = [record(usage, turn * 100 + number, chance) for number in range(chance.randrange(1, 12))]
            repeated = chance.sample(posted, min(2, len(posted)))
            usage_writes.post_usage(books, [*batch, *repeated], lambda tenant: "USD", lambda: LAST_NS)
            posted += batch
            kept += batch
            for wrong in chance.sample(kept, min(len(kept), chance.choice((0, 1, 3)))):
                usage_writes.correct(books, wrong.source, wrong.id, "test", lambda: LAST_NS, "operator")
                kept.remove(wrong)
        if chance.random() < 0.6:
            with writing(engines) as connection:
                rollups.fold(Books(connection))
                assert {(one.tenant, one.user_name): one.start_ns for one in connection.execute(select(tables.people))} == latest(kept)
        assert not differing(engines, kept, chance)


def latest(records: Sequence[UsageRecord]) -> dict[tuple[str, str], int]:
    """Where the last month begins in which somebody used something."""
    found: dict[tuple[str, str], int] = {}
    for one in records:
        found[one.tenant, one.user] = max(found.get((one.tenant, one.user), 0), Month.of(one.started_at_ns).start_ns)
    return found


def differing(engines: Engines, kept: Sequence[UsageRecord], chance: random.Random) -> list[object]:
    """A few questions, to each of which there are two answers; those to which they differ."""
    found: list[object] = []
    with reading(engines) as connection:
        books = Books(connection)
        for _ in range(4):
            scope, keys = chance.choice(SCOPES), chance.choice(KEYS)
            moments = (FIRST_NS, NOVEMBER.start_ns, NOVEMBER.start_ns + 9 * HOUR_NS, chance.randrange(FIRST_NS, LAST_NS), LAST_NS)
            since_ns, until_ns = sorted(chance.choices(moments, k=2))
            if reads.sums(connection, scope, since_ns, until_ns, keys) != summed(books, kept, scope, since_ns, until_ns, keys):
                found.append((scope, keys, since_ns, until_ns))
            of_all = summed(books, kept, SCOPES[0], since_ns, LAST_NS, ("hour",))
            if reads.drawn_by_hour(connection, since_ns) != {hour_ns: drawn(one) for (hour_ns, _), one in of_all.items()}:
                found.append(("drawn by hour", since_ns))
            before = set(summed(books, kept, scope, 0, NOVEMBER.start_ns, keys))
            if "user" not in keys and reads.used_before(connection, scope, NOVEMBER.start_ns, keys) != before:
                found.append((scope, keys, "before"))
    return found


def drawn(one: Sums) -> Sums:
    """Of the sums those that are kept of all tenants."""
    return replace(one, leases=0, grains=0, parked_grains=0)


def test_what_is_folded_in_parts_or_anew_is_the_same_and_nothing_is_left_of_what_was_taken_back(
    engines: Engines, usage: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(3)
    records = [record(usage, number, chance) for number in range(40)]
    with writing(engines) as connection:
        usage_writes.post_usage(Books(connection), records, lambda tenant: "USD", lambda: LAST_NS)
    whole = folded(engines)
    assert sum(len(rows) for rows in whole) > 60
    monkeypatch.setattr(rollups, "FOLDED_MAX", 7)
    with writing(engines) as connection:
        rollups.rebuild(Books(connection))
    assert folded(engines) == whole
    with writing(engines) as connection:
        for one in records:
            usage_writes.correct(Books(connection), one.source, one.id, "test", lambda: LAST_NS, "operator")
    assert folded(engines) == [[], [], [], [], []]


def folded(engines: Engines) -> list[list[tuple[Any, ...]]]:
    """All rows of each, once all is summed up."""
    while True:
        with writing(engines) as connection:
            if not rollups.fold(Books(connection)):
                break
    with reading(engines) as connection:
        kept = (tables.hours, tables.all_hours, tables.days, tables.months, tables.people)
        return [sorted(map(tuple, connection.execute(select(table)))) for table in kept]


def test_sums_far_behind_are_read_from_the_records(engines: Engines, usage: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """As just after an upgrade: what is there of the rollups is not looked at."""
    monkeypatch.setattr(reads, "BEHIND_MAX", 3)
    chance = random.Random(4)
    records = [record(usage, number, chance) for number in range(5)]
    with writing(engines) as connection:
        usage_writes.post_usage(Books(connection), records, lambda tenant: "USD", lambda: LAST_NS)
    with reading(engines) as connection:
        found = reads.sums(connection, Scope(None, None), FIRST_NS, LAST_NS, ("tenant",))
        assert found == summed(Books(connection), records, Scope(None, None), FIRST_NS, LAST_NS, ("tenant",))


def test_a_window_is_covered_once_by_the_largest_stretches() -> None:
    since_ns, until_ns = NOVEMBER.start_ns - 9 * HOUR_NS + 5, NOVEMBER.end_ns - 9 * HOUR_NS
    parts = list(cover(since_ns, until_ns, levels_for(("tenant",))))
    assert [(level and level.table.name, end_ns - start_ns) for level, start_ns, end_ns in parts] == [
        (None, HOUR_NS - 5), ("usage_hours", 8 * HOUR_NS), ("usage_days", 29 * DAY_NS), ("usage_hours", 15 * HOUR_NS),
    ]  # fmt: skip
    assert [end_ns for _, _, end_ns in parts][:-1] == [start_ns for _, start_ns, _ in parts][1:]
    assert list(cover(5, 9, (HOURS,))) == [(None, 5, 9)] and not list(cover(9, 9, (HOURS,)))
    assert levels_for(("notebook",)) == levels_for(("user", "day")) == ()


def test_operators_find_tenants_users_and_invoices_by_words(running_anywhere: Running, usage: Make) -> None:
    run = running_anywhere
    then_ns = NOVEMBER.start_ns - DAY_NS
    records = [usage(f"{n}/1", tenant="acme", user=f"User_{n}", started_at_ns=then_ns, duration_ns=HOUR_NS) for n in range(12)]
    run.post_usage(*records, usage("x/1", tenant="globex", user="userX1"))
    while run._run(run.service.rollups.step()):
        pass
    run.request("operator", "POST", "/api/invoices", json={"tenant": "acme", "month": "2026-10"})
    found = run.get("operator", "/api/search", q="ACME user_1", limit=2).json()
    assert (found["user_count"], found["users"]) == (3, [{"tenant": "acme", "user": f"User_{n}"} for n in (1, 10)])
    assert found["tenants"] == [] and found["tenant_count"] == 0, "an underscore is no wildcard, and users' names are not tenants'"
    found = run.get("operator", "/api/search", q="acme").json()
    assert (found["tenants"], found["invoice_count"], found["invoices"][0]["tenant"]) == (["acme"], 1, "acme")
    assert run.get("operator", "/api/search", q="acme", since_ns=NOVEMBER.start_ns).json()["tenants"] == []
    assert run.get("acme-owner", "/api/search", q="acme").status_code == 403

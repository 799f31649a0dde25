"""The audit of pool and billing is asked in one way, whatever their tables call the time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from forebay_service.audit import AuditQuery, entries, page_of
from pydantic import ValidationError
from sqlalchemy import BigInteger, Column, Connection, Integer, MetaData, String, Table, create_engine, insert

AUDIT = Table(
    "audit",
    MetaData(),
    Column("id", Integer, primary_key=True),
    Column("written_at_ns", BigInteger),
    *(Column(name, String) for name in ("who", "action", "subject", "before", "after")),
)
ROWS = (
    ("ada", "quota.set", "acme", None),
    ("ada", "quota.set", "acme/ada", '{"weight": 1}'),
    ("ben", "quota.set", "acme_2", None),
    ("ben", "device.set", "acme/#7", None),
)


@pytest.fixture
def connection() -> Iterator[Connection]:
    """Four rows, a nanosecond apart."""
    engine = create_engine("sqlite://")
    AUDIT.metadata.create_all(engine)
    with engine.begin() as connection:
        for at_ns, (who, action, subject, before) in enumerate(ROWS):
            row = {"written_at_ns": at_ns, "who": who, "action": action, "subject": subject, "before": before, "after": '{"weight": 2}'}
            connection.execute(insert(AUDIT).values(row))
        yield connection
    engine.dispose()


@pytest.mark.parametrize(
    ("asked", "ids"),
    [
        ({}, [4, 3, 2, 1]),
        ({"who": "ada"}, [2, 1]),
        ({"action": "device.set"}, [4]),
        ({"subject": "acme"}, [4, 2, 1]),
        ({"subject": "acme_2"}, [3]),
        ({"since_ns": 1, "until_ns": 3}, [3, 2]),
        ({"cursor": 3}, [2, 1]),
    ],
)
def test_entries_are_found_newest_first(connection: Connection, asked: dict[str, object], ids: list[int]) -> None:
    query = AuditQuery.model_validate(asked)
    found = entries(connection, AUDIT, AUDIT.c.written_at_ns, query.wanted, query.limit, query.cursor)
    assert [entry.id for entry in found] == ids


def test_pages_lead_from_one_to_the_next_until_there_is_none(connection: Connection) -> None:
    seen, cursor = [], None
    while True:
        query = AuditQuery.model_validate({"limit": 3, "cursor": cursor})
        page = page_of(entries(connection, AUDIT, AUDIT.c.written_at_ns, query.wanted, query.limit + 1, query.cursor), query.limit)
        seen.append([row["id"] for row in page["entries"]])
        if page["next"] is None:
            break
        cursor = page["next"]
    assert seen == [[4, 3, 2], [1]]
    assert page["entries"][0]["after"] == {"weight": 2} and page["entries"][0]["before"] is None


@pytest.mark.parametrize("asked", [{"limit": 0}, {"limit": 1001}, {"who": ""}, {"subject": "a\0"}, {"cursor": -1}, {"other": 1}])
def test_a_question_out_of_bounds_is_refused(asked: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        AuditQuery.model_validate(asked)

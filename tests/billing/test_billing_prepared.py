"""Statements are built once for all values, and find what one that is built for these would."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from forebay_billing.tables.prepared import execute
from forebay_billing.tables.tenants_filter import Tenants, of_tenants
from sqlalchemy import BigInteger, Column, Connection, MetaData, Select, String, Table, create_engine, select

NUMBERS = range(2**62, 2**62 + 4)
rows = Table("rows", MetaData(), Column("tenant", String), Column("number", BigInteger))


@dataclass(frozen=True)
class Asked:
    tenant: Tenants
    since: int | None = None


class Build:
    """Counts how often it is asked."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, columns: tuple[str, ...], asked: Asked, most: int) -> Select[Any]:
        self.times += 1
        query = select(*(rows.c[name] for name in columns)).where(*of_tenants(rows.c.tenant, asked.tenant)).order_by(rows.c.number)
        return (query if asked.since is None else query.where(rows.c.number >= asked.since)).limit(most)


@pytest.fixture
def connection() -> Iterator[Connection]:
    with create_engine("sqlite://").connect() as connection:
        rows.create(connection)
        connection.execute(rows.insert(), [{"tenant": tenant, "number": number} for tenant in ("lab", "shop") for number in NUMBERS])
        yield connection


def test_a_statement_is_built_once_for_all_numbers_and_texts(connection: Connection) -> None:
    build = Build()
    for tenant, since, most in (("lab", 2**62 + 1, 9), ("shop", 2**62 + 2, 9), ("lab", 0, 1), ("none", 0, 9)):
        found = execute(connection, build, (("tenant", "number"),), Asked(tenant, since), most).all()
        assert found == [(tenant, number) for number in NUMBERS if number >= since and tenant != "none"][:most]
    assert build.times == 1


@pytest.mark.parametrize(
    ("asked", "count"), [(Asked(None), 8), (Asked("lab"), 4), (Asked(["lab"]), 4), (Asked(["lab", "shop"]), 8), (Asked([]), 0)]
)
def test_of_one_of_several_and_of_all_are_statements_of_their_own(connection: Connection, asked: Asked, count: int) -> None:
    build = Build()
    execute(connection, build, (("number",),), Asked("shop"), 20).all()
    assert len(execute(connection, build, (("number",),), asked, 20).all()) == count
    assert build.times == (1 if asked.tenant == "lab" else 2)


def test_another_shape_is_another_statement(connection: Connection) -> None:
    build = Build()
    assert execute(connection, build, (("number",),), Asked("lab"), 1).one() == (2**62,)
    assert execute(connection, build, (("tenant",),), Asked("lab"), 1).one() == ("lab",)
    assert build.times == 2

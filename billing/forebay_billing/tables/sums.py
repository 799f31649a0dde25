"""Sums of 64-bit columns. They can pass 64 bits, so each is summed as two: the billions and the rest."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Row, cast, func

_BILLION = 10**9


def halved(column: ColumnElement[int], name: str) -> tuple[ColumnElement[int], ColumnElement[int]]:
    """Sums of the billions and of the rest; :func:`joined` puts them together. PostgreSQL's own are decimals, which take longer to read."""
    billions, rest = (cast(func.sum(half), BigInteger) for half in (column // _BILLION, column % _BILLION))
    return billions.label(f"{name}_billions"), rest.label(f"{name}_rest")


def joined(row: Row[*tuple[Any, ...]], name: str) -> int:
    return int(row._mapping[f"{name}_billions"]) * _BILLION + int(row._mapping[f"{name}_rest"])

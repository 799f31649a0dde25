"""Whose rows are read: those of one tenant, of some, or of all (None)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement

Tenants = str | Sequence[str] | None


def of_tenants(column: ColumnElement[Any], tenants: Tenants) -> list[ColumnElement[bool]]:
    """The condition on the column that has the tenant's name; none for all."""
    if tenants is None:
        return []
    several = isinstance(tenants, Sequence) and not isinstance(tenants, str)
    return [column.in_(list(tenants)) if several else column == tenants]

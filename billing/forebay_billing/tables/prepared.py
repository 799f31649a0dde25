"""Statements that are built once: SQLAlchemy takes longer to build one of many columns than the database takes to find a few rows by it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import lru_cache
from typing import Any

from sqlalchemy import BigInteger, BindParameter, Connection, Result, Select, String, bindparam

KEPT_MAX = 128
"""Statements that are kept, of all threads together."""

Build = Callable[..., Select[Any]]


@dataclass(frozen=True)
class _Named:
    """A number or a text that another time may be another one."""

    name: str
    type: type[BigInteger | String]


def execute(connection: Connection, build: Build, shape: tuple[Hashable, ...], *values: Any) -> Result[Any]:
    """Executes ``build(*shape, *values)``, which is kept for the same shape. For a number or a text among the values, or in a data class
    among them, ``build`` gets a bound parameter; None is None, and whatever else there is belongs to the shape."""
    parameters: dict[str, int | str] = {}
    named = tuple(_named(value, f"value_{number}", parameters) for number, value in enumerate(values))
    return connection.execute(_built(build, shape, named), parameters)


def _named(value: Any, name: str, parameters: dict[str, int | str]) -> Hashable:
    if isinstance(value, int | str):
        parameters[name] = value
        return _Named(name, BigInteger if isinstance(value, int) else String)
    if is_dataclass(value):
        value = _with_fields(value, lambda field, one: _named(one, f"{name}_{field}", parameters))
    kept: Hashable = tuple(value) if isinstance(value, Sequence) else value
    return kept


@lru_cache(KEPT_MAX)
def _built(build: Build, shape: tuple[Hashable, ...], named: tuple[Hashable, ...]) -> Select[Any]:
    return build(*shape, *(_bound(one) for one in named))


def _bound(value: Any) -> Any:
    if isinstance(value, _Named):
        parameter: BindParameter[Any] = bindparam(value.name, type_=value.type())
        return parameter
    return _with_fields(value, lambda _, one: _bound(one)) if is_dataclass(value) else value


def _with_fields(value: Any, change: Callable[[str, Any], Any]) -> Any:
    """The same data class with other values in its fields."""
    return replace(value, **{field.name: change(field.name, getattr(value, field.name)) for field in fields(value)})

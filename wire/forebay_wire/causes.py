"""Causes in the rows that pool and billing answer over HTTP, as those of the links have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from forebay_wire.messages import Cause

TOTAL = "total"
"""The period of a budget that is for all time; others are months."""
_USES = {"used_up": "used", "nearly_used_up": "nearly"}
_RAISERS = {"operator": "raised_by_operator", "owner": "raised_by_owner"}


def cause_of(row: Mapping[str, Any] | None) -> Cause | None:
    """Of a row ``{message, code, values, parts}``: what somebody typed has no code. None where there is none, or none that can be read."""
    try:
        return None if row is None else _cause(row)
    except (ValidationError, KeyError, TypeError, AttributeError):
        return None


def _cause(row: Mapping[str, Any]) -> Cause:
    if row["code"] is None:
        return Cause(code="text", values={"text": row["message"]})
    return Cause(code=row["code"], values=dict(row["values"]), parts=tuple(_cause(part) for part in row["parts"]))


def cause_of_budget(row: Mapping[str, Any]) -> Cause | None:
    """Why a budget stops somebody, of billing's row: ``tenant``, ``user``, ``notebook``, ``period``, ``origin``, ``code``.

    None where it stops nobody, and where billing is of a release that says it in English alone.
    """
    use, raiser = _USES.get(str(row.get("code"))), _raiser(row)
    if use is None or raiser is None or row.get("period") is None:
        return None
    parts = (_whom(row), raiser)
    if row["period"] == TOTAL:
        return Cause(code=f"budget_total_{use}", parts=parts)
    return Cause(code=f"budget_month_{use}", values={"period": str(row["period"])}, parts=parts)


def _raiser(row: Mapping[str, Any]) -> Cause | None:
    """Who can raise it; a user does where that user set it."""
    if row.get("origin") == "user":
        return _whom({**row, "notebook": None})
    code = _RAISERS.get(str(row.get("origin")))
    return None if code is None else Cause(code=code)


def _whom(row: Mapping[str, Any]) -> Cause:
    whom = {name: str(row[name]) for name in ("tenant", "user", "notebook") if row.get(name) is not None}
    return Cause(code=f"whom_{'notebook' if 'notebook' in whom else 'user' if 'user' in whom else 'tenant'}", values={**whom})

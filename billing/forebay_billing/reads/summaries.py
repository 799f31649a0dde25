"""Usage summed up, by whatever tells it apart: who, what, where it was computed, and on which day."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Any, Literal

from sqlalchemy import BigInteger, ColumnElement, Connection, Select, case, func, literal, select

from forebay_billing.errors import InvalidRequest
from forebay_billing.ledger.access import Scope
from forebay_billing.model.months import Month
from forebay_billing.reads.rated_rows import BOTH, CELL, Columns, Kind, everything
from forebay_billing.reads.rollups import Key, Sums, costs_by_day, levels_for, measures, sums, sums_of, uncorrected, used_before
from forebay_billing.reads.usage import Window, visible, within
from forebay_billing.rules.budgets import DAY_NS, FORECAST_DAYS, SECOND_NS, forecast, forecast_range
from forebay_billing.tables import schema
from forebay_billing.tables.prepared import execute

By = Literal["tenant", "user", "flavor", "kind", "notebook", "cell", "day"]
KEYS: tuple[By, ...] = ("tenant", "user", "flavor", "kind", "notebook", "cell", "day")
DAYS_MAX = 400
"""The most days that are told apart in one answer."""

_usage = schema.usage.c
_COLUMNS = {
    "tenant": "tenant", "user": "user_name", "flavor": "priced", "kind": "span_kind", "notebook": "span_label", "cell": "cell_key",
}  # fmt: skip
_CELLS_ASKED = 500
"""Cells whose latest run is read at a time."""


@dataclass(frozen=True)
class SummaryRow:
    """Usage that was not corrected, summed, with the keys that were asked for: a day as ``2026-11-21``, a cell as the number
    of its latest run, with its id and how it began then."""

    keys: dict[str, str | int | None]
    currency: str
    duration_ns: int
    """Of leases alone: what was parked held no device."""
    cost_grains: int
    leases: int
    """Those that began then."""
    parked_grains: int
    """What parked bytes have of the cost."""
    energy_mj: int | None = None
    """What devices drew, in millijoules, where their drivers told; None where none did."""
    energy_duration_ns: int = 0
    """The part of ``duration_ns`` that ``energy_mj`` is of."""


@dataclass(frozen=True)
class Outlook:
    """What this month cost so far, in UTC, and what it will have cost at its end, in grains."""

    currency: str
    spent_grains: int
    forecast_grains: int
    forecast_range: tuple[int, int] | None = None
    """Between which it will be; None before a whole day."""
    keys: dict[str, str | int | None] = field(default_factory=dict)
    """Whose it is, as far as that was asked for."""


def summary(connection: Connection, scope: Scope, window: Window, by: Sequence[By], zone: tzinfo = UTC) -> list[SummaryRow]:
    """Durations, costs and leases of usage that was not corrected, grouped by the keys in ``by`` and the currency, in their order.

    A record's energy counts where its first segment does, and so does a lease that begins with it.

    A day is the ``zone``'s; what lasts over midnight counts on each day with the segments (an hour at most) that begin on it. Raises
    InvalidRequest for days of a window that is open or longer than DAYS_MAX.
    """
    days = _days(window, zone) if "day" in by else []
    latest: dict[Key, int] = {}
    if window.notebook is None and levels_for(by) and all(start_ns % DAY_NS == 0 for _, start_ns in days):
        found = _on_days(by, days, sums(connection, scope, window.since_ns, window.until_ns, by))
    else:
        found = {}
        shape = tuple(by), tuple(days)
        for row in (row for kind in BOTH for row in execute(connection, _of_records, (kind, *shape), scope, window)):
            key = tuple(row[: len(by) + 1])
            found.setdefault(key, Sums()).add(sums_of(row[len(key) : -1]))
            latest[key] = max(row.latest, latest.get(key, 0))
    keys = sorted(found, key=lambda key: [(value is not None, value) for value in key])
    rows = [_summary_row(by, days, key, found[key]) for key in keys]
    return _with_cells(connection, rows, [latest[key] for key in keys]) if "cell" in by else rows


def _of_records(kind: Kind, by: Sequence[By], days: Sequence[tuple[date, int]], scope: Scope, window: Window) -> Select[Any]:
    """What no rollup tells apart; ``latest`` is the record that came last."""
    columns = [_column_of(key) for key in by if key not in ("flavor", "day")]
    piece = uncorrected(everything, columns, (*visible(scope), *within(window)), (kind,))
    keys = [_day_of(piece, days) if key == "day" else piece[_COLUMNS[key]].label(key) for key in by]
    return select(*keys, piece.currency, *measures(piece), func.max(piece.usage_id).label("latest")).group_by(*keys, piece.currency)


def _on_days(by: Sequence[By], days: Sequence[tuple[date, int]], found: Mapping[Key, Sums]) -> dict[Key, Sums]:
    """Places in ``days`` instead of days since 1970; see :func:`_day_of`."""
    if "day" not in by:
        return dict(found)
    at, first = by.index("day"), days[0][1] // DAY_NS
    placed: dict[Key, Sums] = {}
    for key, one in found.items():
        place = min(int(key[at]) - first, len(days) - 1)
        placed.setdefault((*key[:at], place, *key[at + 1 :]), Sums()).add(one)
    return placed


def outlooks(connection: Connection, scope: Scope, now_ns: int, by: Sequence[By] = ()) -> list[Outlook]:
    """How this month goes, by the keys in ``by`` and the currency; see :func:`forebay_billing.rules.budgets.forecast`."""
    today = now_ns // DAY_NS
    month_ns, week_ns = Month.of(now_ns).start_ns, (today - FORECAST_DAYS) * DAY_NS
    since_ns = max(0, min(month_ns, week_ns))
    by_day: dict[Key, dict[int, int]] = {}
    found_by_day = costs_by_day(connection, scope, since_ns, (today + 1) * DAY_NS, by, today - FORECAST_DAYS)
    for (*whose, on, currency), grains in found_by_day.items():
        days, place = by_day.setdefault((*whose, currency), {}), min(int(on), today)
        days[place] = days.get(place, 0) + grains
    for key in used_before(connection, scope, since_ns, by):
        by_day.setdefault(key, {})[-1] = 0
    found = []
    for (*whose, currency), days in sorted(by_day.items()):
        spent = sum(grains for day, grains in days.items() if day * DAY_NS >= month_ns)
        expected = forecast(spent, days, now_ns), forecast_range(spent, days, now_ns)
        found.append(Outlook(currency, spent, *expected, dict(zip(by, whose, strict=True))))
    return found


def _column_of(key: By) -> ColumnElement[Any]:
    return CELL.label("cell_key") if key == "cell" else _usage[_COLUMNS[key]]


def _with_cells(connection: Connection, rows: Sequence[SummaryRow], latest: Sequence[int]) -> list[SummaryRow]:
    """The rows with what people know their cells by, as it was at the latest run of each."""
    known: dict[int, tuple[int | None, str | None]] = {}
    for start in range(0, len(latest), _CELLS_ASKED):
        of_these = _usage.id.in_(latest[start : start + _CELLS_ASKED])
        query = select(_usage.id, _usage.span_cell, _usage.span_first_line).where(of_these)
        known.update((row.id, (row.span_cell, row.span_first_line)) for row in connection.execute(query))
    return [_with_cell(row, *known[usage_id]) for row, usage_id in zip(rows, latest, strict=True)]


def _with_cell(row: SummaryRow, number: int | None, first_line: str | None) -> SummaryRow:
    return replace(row, keys=row.keys | {"cell": number, "cell_id": row.keys["cell"], "first_line": first_line})


def _days(window: Window, zone: tzinfo) -> list[tuple[date, int]]:
    """The days that touch the window, each with the Unix time of its midnight."""
    if window.since_ns is None or window.until_ns is None:
        raise InvalidRequest("by: days need since_ns and until_ns.")
    day = datetime.fromtimestamp(window.since_ns // SECOND_NS, zone).date()
    found: list[tuple[date, int]] = []
    while not found or found[-1][1] < window.until_ns:
        if len(found) > DAYS_MAX:
            raise InvalidRequest(f"by: from since_ns to until_ns there are more than {DAYS_MAX} days.")
        found.append((day, int(datetime(day.year, day.month, day.day, tzinfo=zone).timestamp()) * SECOND_NS))
        day += timedelta(days=1)
    return found


def _day_of(piece: Columns, days: Sequence[tuple[date, int]]) -> ColumnElement[int]:
    """The place in ``days`` of the one that a piece began on; one that began after them counts on the last. Days that are as long as one
    another are counted: to compare with each midnight takes longer than all else."""
    last, place = len(days) - 1, 0
    runs: list[tuple[ColumnElement[bool], ColumnElement[int]]] = []
    while place < last:
        start_ns, end = days[place][1], place + 1
        length_ns = days[end][1] - start_ns
        while end < last and days[end + 1][1] - days[end][1] == length_ns:
            end += 1
        counted = literal(place) + (piece.started_at_ns - literal(start_ns, BigInteger)) // literal(length_ns, BigInteger)
        runs.append((piece.started_at_ns < literal(days[end][1], BigInteger), counted))
        place = end
    return (case(*runs, else_=last) if runs else literal(0)).label("day")


def _summary_row(by: Sequence[By], days: Sequence[tuple[date, int]], key: Key, found: Sums) -> SummaryRow:
    keys: dict[str, str | int | None] = dict(zip(by, key, strict=False))
    if "day" in keys:
        keys["day"] = days[int(keys["day"] or 0)][0].isoformat()
    energy_mj = found.energy_mj if found.told else None
    return SummaryRow(
        keys, key[-1], found.duration_ns, found.grains, found.leases, found.parked_grains, energy_mj, found.energy_duration_ns
    )

"""Usage summed up, by whatever tells it apart: who, what, where it was computed, and on which day."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Any, Literal

from sqlalchemy import BigInteger, ColumnElement, Connection, case, distinct, func, literal, select

from forebay_billing.errors import InvalidRequest
from forebay_billing.ledger.access import Scope
from forebay_billing.model.money import whole
from forebay_billing.model.months import Month
from forebay_billing.reads.rated_rows import CELL, Columns, pieces
from forebay_billing.reads.usage import Window, visible, within
from forebay_billing.rules.budgets import DAY_NS, FORECAST_DAYS, SECOND_NS, forecast
from forebay_billing.tables import schema
from forebay_billing.tables.sums import halved, joined

By = Literal["tenant", "user", "flavor", "kind", "notebook", "cell", "day"]
KEYS: tuple[By, ...] = ("tenant", "user", "flavor", "kind", "notebook", "cell", "day")
DAYS_MAX = 400
"""The most days that are told apart in one answer."""

_usage = schema.usage.c
_reversals = schema.reversals.c
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
    keys: dict[str, str | int | None] = field(default_factory=dict)
    """Whose it is, as far as that was asked for."""


def summary(connection: Connection, scope: Scope, window: Window, by: Sequence[By], zone: tzinfo = UTC) -> list[SummaryRow]:
    """Durations, costs and leases of usage that was not corrected, grouped by the keys in ``by`` and the currency, in their order.

    A record's energy counts where its first segment does.

    A day is the ``zone``'s; what lasts over midnight counts on each day with the segments (an hour at most) that begin on it. Raises
    InvalidRequest for days of a window that is open or longer than DAYS_MAX.
    """
    piece = _uncorrected(scope, window, by)
    days = _days(window, zone) if "day" in by else []
    keys = [_day_of(piece, days) if key == "day" else piece[_COLUMNS[key]].label(key) for key in by]
    query = select(
        *keys, piece.currency,
        *halved(case((piece.is_parked, 0), else_=piece.duration_ns), "duration"),
        *halved(piece.milli, "milli"), *halved(piece.grains, "grains"),
        *halved(case((piece.is_parked, piece.milli), else_=0), "parked_milli"),
        *halved(case((piece.is_parked, piece.grains), else_=0), "parked_grains"),
        *halved(case((piece.position == 0, piece.energy_mj), else_=0), "energy"), func.count(piece.energy_mj).label("told"),
        *halved(case((piece.energy_mj.is_(None), 0), else_=piece.duration_ns), "energy_duration"),
        func.count(distinct(case((piece.is_parked, None), else_=piece.lease))).label("leases"),
        func.max(piece.usage_id).label("latest"),
    ).group_by(*keys, piece.currency)  # fmt: skip
    rows = sorted(connection.execute(query), key=lambda row: [(value is not None, value) for value in row[: len(keys) + 1]])
    found = [_summary_row(by, days, row) for row in rows]
    return _with_cells(connection, found, [row.latest for row in rows]) if "cell" in by else found


def outlooks(connection: Connection, scope: Scope, now_ns: int, by: Sequence[By] = ()) -> list[Outlook]:
    """How this month goes, by the keys in ``by`` and the currency; see :func:`forebay_billing.rules.budgets.forecast`."""
    today = now_ns // DAY_NS
    month_ns, week_ns = Month.of(now_ns).start_ns, (today - FORECAST_DAYS) * DAY_NS
    window = Window(max(0, min(month_ns, week_ns)), (today + 1) * DAY_NS)
    by_day: dict[tuple[str, ...], dict[int, int]] = {}
    piece = _uncorrected(scope, window, by)
    keys, day = [*(piece[_COLUMNS[key]] for key in by), piece.currency], piece.started_at_ns // literal(DAY_NS, BigInteger)
    sums = (*halved(piece.milli, "milli"), *halved(piece.grains, "grains"))
    for row in connection.execute(select(*keys, day, *sums).group_by(*keys, day)):
        days, place = by_day.setdefault(tuple(row[: len(keys)]), {}), min(int(row[len(keys)]), today)
        days[place] = days.get(place, 0) + whole(joined(row, "milli"), joined(row, "grains"))
    piece = _uncorrected(scope, Window(None, window.since_ns), by)
    for row in connection.execute(select(*(piece[_COLUMNS[key]] for key in by), piece.currency).distinct()):
        by_day.setdefault(tuple(row), {})[-1] = 0
    found = []
    for (*whose, currency), days in sorted(by_day.items()):
        spent = sum(grains for day, grains in days.items() if day * DAY_NS >= month_ns)
        found.append(Outlook(currency, spent, forecast(spent, days, now_ns), dict(zip(by, whose, strict=True))))
    return found


def _uncorrected(scope: Scope, window: Window, by: Sequence[By]) -> Columns:
    """Pieces of usage that was not corrected, with the keys of their records."""
    corrected = select(_reversals.usage_id).where(_reversals.usage_id == _usage.id).exists()
    columns = [_usage.lease, _usage.energy_mj, *(_column_of(key) for key in by if key not in ("flavor", "day"))]
    return pieces(usage=columns, of_usage=(*visible(scope), *within(window), ~corrected))


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
    """The place in ``days`` of the one that a piece began on; one that began after them counts on the last."""
    ends = [(piece.started_at_ns < literal(end_ns, BigInteger), place) for place, (_, end_ns) in enumerate(days[1:])]
    return (case(*ends, else_=len(days) - 1) if ends else literal(0)).label("day")


def _summary_row(by: Sequence[By], days: Sequence[tuple[date, int]], row: Any) -> SummaryRow:
    keys: dict[str, str | int | None] = dict(zip(by, row, strict=False))
    if "day" in keys:
        keys["day"] = days[int(row.day)][0].isoformat()
    cost, parked = (whole(joined(row, f"{of}milli"), joined(row, f"{of}grains")) for of in ("", "parked_"))
    energy_mj = joined(row, "energy") if row.told else None
    return SummaryRow(keys, row.currency, joined(row, "duration"), cost, row.leases, parked, energy_mj, joined(row, "energy_duration"))

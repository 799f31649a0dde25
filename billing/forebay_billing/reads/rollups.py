"""Sums of usage, of its rollups as far as these go and of the records for the rest: exact at every moment.

A window is covered by the largest stretches that a rollup has, down to single records at its ends. What was posted after the rollups'
marks is added, and what was taken back after them is taken off. Where they lag too far behind, all is read from the records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    CTE,
    BigInteger,
    ColumnElement,
    Connection,
    Row,
    Select,
    String,
    Table,
    and_,
    case,
    func,
    literal,
    or_,
    select,
    type_coerce,
    union_all,
)

from forebay_billing.ledger.access import Scope
from forebay_billing.model.money import whole
from forebay_billing.model.months import Month
from forebay_billing.model.types import PARKED
from forebay_billing.reads.rated_rows import BOTH, Columns, Kind, Where, everything, pieces
from forebay_billing.reads.usage import visible
from forebay_billing.rules.budgets import DAY_NS
from forebay_billing.rules.rating import HOUR_NS
from forebay_billing.tables import rollups, schema
from forebay_billing.tables.prepared import execute
from forebay_billing.tables.sums import halved
from forebay_billing.tables.tenants_filter import of_tenants

BEHIND_MAX = 50_000
"""Records that may lie beyond the marks while sums are still made of the rollups."""
FOREVER_NS = 2**63 - 1
_BILLION = 10**9

_usage, _reversals = schema.usage.c, schema.reversals.c
_HEADS = select(
    select(func.max(_usage.id)).scalar_subquery().label("usage_id"),
    select(func.max(_reversals.transaction_id)).scalar_subquery().label("transaction_id"),
)
_OF_USAGE = (_usage.lease, _usage.record_id, _usage.energy_mj)
"""Columns of usage that :func:`measures` needs."""


@dataclass
class Sums:
    """What usage comes to: see :data:`forebay_billing.tables.rollups.MEASURES`. ``grains`` is the exact amount."""

    pieces: int = 0
    leases: int = 0
    duration_ns: int = 0
    grains: int = 0
    parked_grains: int = 0
    told: int = 0
    energy_mj: int = 0
    energy_duration_ns: int = 0

    def add(self, other: Sums, sign: int = 1) -> None:
        """Adds the other, or with ``sign`` -1 takes it off."""
        self.pieces += sign * other.pieces
        self.leases += sign * other.leases
        self.duration_ns += sign * other.duration_ns
        self.grains += sign * other.grains
        self.parked_grains += sign * other.parked_grains
        self.told += sign * other.told
        self.energy_mj += sign * other.energy_mj
        self.energy_duration_ns += sign * other.energy_duration_ns


Key = tuple[Any, ...]


@dataclass(frozen=True)
class Marks:
    """Ids of usage and of reversing transactions up to which a projection has come, or is to come."""

    usage_id: int
    transaction_id: int


@dataclass(frozen=True)
class Level:
    """A rollup, what it tells apart, and where the stretch begins and ends that a moment lies in."""

    table: Table
    keys: frozenset[str]
    start_of: Callable[[int], int]
    end_of: Callable[[int], int]


MONTHS = Level(
    rollups.months, frozenset({"tenant", "user", "flavor"}), lambda at: Month.of(at).start_ns, lambda at: Month.of(at).end_ns
)
DAYS = Level(rollups.days, frozenset({"tenant", "flavor", "day"}), lambda at: at - at % DAY_NS, lambda at: at - at % DAY_NS + DAY_NS)
HOURS = Level(rollups.hours, frozenset({"tenant", "flavor", "hour"}), lambda at: at - at % HOUR_NS, lambda at: at - at % HOUR_NS + HOUR_NS)
ALL_HOURS = Level(rollups.all_hours, frozenset({"hour"}), HOURS.start_of, HOURS.end_of)
"""Of all tenants together, whatever they pay in."""
_COLUMNS = {"tenant": "tenant", "user": "user_name", "flavor": "priced", "day": "day", "hour": "start_ns"}


def levels_for(keys: Iterable[str]) -> tuple[Level, ...]:
    """The rollups that tell these keys apart, those of the largest stretches first; one of users reads more for what is of none."""
    wanted = frozenset(keys)
    return (MONTHS,) if "user" in wanted and wanted <= MONTHS.keys else tuple(one for one in (DAYS, HOURS) if wanted <= one.keys)


def marks_of(connection: Connection) -> Marks:
    """How far the rollups have come."""
    row = connection.execute(select(rollups.marks)).one()
    return Marks(row.usage_id, row.transaction_id)


def heads_of(connection: Connection) -> Marks:
    """How far they could come."""
    row = connection.execute(_HEADS).one()
    return Marks(int(row.usage_id or 0), int(row.transaction_id or 0))


def records_behind(connection: Connection) -> int:
    """Usage records that the rollups do not hold yet."""
    return heads_of(connection).usage_id - marks_of(connection).usage_id


def sums(connection: Connection, scope: Scope, since_ns: int | None, until_ns: int | None, keys: Sequence[str]) -> dict[Key, Sums]:
    """Of the records of ``scope`` that started in [since, until), by ``keys`` and the currency: tenant, user, flavor, the UTC ``day``
    (days since 1970) on which pieces began, and the ``hour`` (Unix time) in which the record did."""
    found: dict[Key, Sums] = {}
    until_ns = FOREVER_NS if until_ns is None else until_ns
    for rows, sign in _read(connection, scope, since_ns or 0, until_ns, Wanted(tuple(keys), _measures_of_rollup, measures)):
        for row in rows:
            found.setdefault(tuple(row[:-_MEASURED]), Sums()).add(sums_of(row[-_MEASURED:]), sign)
    return {key: one for key, one in found.items() if one.pieces}


def drawn_by_hour(connection: Connection, since_ns: int) -> dict[int, Sums]:
    """Of all records that started from then on, by the hour (Unix time) in which they did: pieces, time and energy alone."""
    found: dict[int, Sums] = {}
    wanted = Wanted(("hour",), _drawn_of_rollup, _drawn, of_currency=False)
    for rows, sign in _read(connection, Scope(None, None), since_ns, FOREVER_NS, wanted, (ALL_HOURS,)):
        for row in rows:
            pieces, told, *halves = map(int, row[1:])
            duration, energy, of_energy = (billions * _BILLION + rest for billions, rest in zip(halves[::2], halves[1::2], strict=True))
            one = Sums(pieces, 0, duration, told=told, energy_mj=energy, energy_duration_ns=of_energy)
            found.setdefault(int(row[0]), Sums()).add(one, sign)
    return {hour_ns: one for hour_ns, one in found.items() if one.pieces}


def costs_by_day(
    connection: Connection, scope: Scope, since_ns: int, until_ns: int, keys: Sequence[str], first_day: int
) -> dict[Key, int]:
    """The same by ``keys`` and the day, and of it the cost in grains alone, where there is usage; all days before ``first_day`` are one,
    the day before it."""
    found: dict[Key, list[int]] = {}
    for rows, sign in _read(connection, scope, since_ns, until_ns, Wanted((*keys, "day"), _costs_of_rollup, _costs, first_day)):
        for row in rows:
            count, milli, milli_rest, grains, grains_rest = map(int, row[-_COSTS:])
            one = found.setdefault(tuple(row[:-_COSTS]), [0, 0])
            one[0] += sign * count
            one[1] += sign * whole(milli * _BILLION + milli_rest, grains * _BILLION + grains_rest)
    return {key: grains for key, (count, grains) in found.items() if count}


def used_before(connection: Connection, scope: Scope, until_ns: int, keys: Sequence[str]) -> set[Key]:
    """Of which keys and currencies there is usage that started before, and was not corrected; quick where the keys are tenants, or none."""
    marks, heads = marks_of(connection), heads_of(connection)
    few = heads.usage_id - marks.usage_id <= BEHIND_MAX and heads.transaction_id == marks.transaction_id
    if scope.user is not None or not few or until_ns % DAY_NS or not {*keys} <= {"tenant"}:
        return set(sums(connection, scope, None, until_ns, keys))
    found = execute(connection, _used_by_rollup, (tuple(keys),), scope, until_ns).all()
    wanted = Wanted(tuple(keys), _costs_of_rollup, _costs)
    posted = execute(connection, _posted_after, (wanted,), scope, 0, until_ns, marks) if heads != marks else ()
    return {*(tuple(one) for one in found), *(tuple(one[: len(keys) + 1]) for one in posted)}


def _used_by_rollup(keys: Sequence[str], scope: Scope, until_ns: int) -> Select[Any]:
    pair, day = _pairs(scope), rollups.days.c
    # The least of each is looked up in an index; of an EXISTS PostgreSQL makes a join with all days of all tenants
    first_ns = select(func.min(day.start_ns)).where(day.tenant == pair.c.tenant, day.currency == pair.c.currency).scalar_subquery()
    return select(*(pair.c[_COLUMNS[key]] for key in keys), pair.c.currency).where(first_ns < until_ns)


def _pairs(scope: Scope) -> CTE:
    """Tenants, of those that are in ``scope``, and currencies that there is usage of: each is looked up as the next one in an index, since
    a DISTINCT reads all that there is of each."""
    day, inner, names = rollups.days.c, rollups.days.alias(), _named(scope)
    if names is not None:
        tenants: CTE = union_all(*(select(type_coerce(name, String).label("tenant")) for name in names)).cte("tenants")
    else:
        tenants = select(func.min(day.tenant).label("tenant")).cte("tenants", recursive=True)
        following = select(func.min(inner.c.tenant)).where(inner.c.tenant > tenants.c.tenant).scalar_subquery()
        tenants = tenants.union_all(select(following).where(tenants.c.tenant.is_not(None)))
    least = select(func.min(inner.c.currency)).where(inner.c.tenant == tenants.c.tenant).scalar_subquery()
    pairs = select(tenants.c.tenant, least.label("currency")).where(tenants.c.tenant.is_not(None)).cte("pairs", recursive=True)
    further = select(func.min(inner.c.currency)).where(inner.c.tenant == pairs.c.tenant, inner.c.currency > pairs.c.currency)
    return pairs.union_all(select(pairs.c.tenant, further.scalar_subquery()).where(pairs.c.currency.is_not(None)))


def _named(scope: Scope) -> list[str] | None:
    """The tenants that are in ``scope``, each once; None where all are, or none."""
    names = list(scope.among or ()) if scope.tenant is None else [scope.tenant]
    return sorted({*names}) if names else None


@dataclass(frozen=True)
class Wanted:
    """The columns of a sum: ``keys``, with the currency unless sums are of all, and what is measured of rows of a rollup, and of pieces of
    records."""

    keys: tuple[str, ...]
    of_rollup: Callable[[Columns], tuple[ColumnElement[int], ...]]
    of_pieces: Callable[[Columns], tuple[ColumnElement[int], ...]]
    first_day: int | None = None
    of_currency: bool = True

    def columns(self, row: Columns, day: ColumnElement[int] | None = None) -> list[ColumnElement[Any]]:
        """The keys; of pieces, which have no column for it, the ``day`` is given."""
        keys = [self._day(row.day if day is None else day) if key == "day" else row[_COLUMNS[key]] for key in self.keys]
        return [*keys, row.currency] if self.of_currency else keys

    def _day(self, day: ColumnElement[int]) -> ColumnElement[int]:
        first = self.first_day
        return (day if first is None else case((day < first, first - 1), else_=day)).label("day")


def _read(
    connection: Connection, scope: Scope, since_ns: int, until_ns: int, wanted: Wanted, levels: Sequence[Level] | None = None
) -> Iterator[tuple[Iterable[Row[Any]], int]]:
    """Rows that add up to what is wanted, and whether they are added, 1, or taken off, -1. Of the rollups that tell its keys apart, or of
    those that are given."""
    marks, heads = marks_of(connection), heads_of(connection)
    if levels is None:
        levels = levels_for((*wanted.keys, *(("user",) if scope.user is not None else ())))
    if heads.usage_id - marks.usage_id > BEHIND_MAX:
        levels = ()
    for level, start_ns, end_ns in cover(since_ns, until_ns, levels):
        if level is None:
            for kind in BOTH:
                yield execute(connection, _of_records, (wanted, kind), scope, start_ns, end_ns), 1
            continue
        yield execute(connection, _of_rollup, (wanted, level), scope, start_ns, end_ns), 1
        if heads.usage_id > marks.usage_id:
            yield execute(connection, _posted_after, (wanted,), scope, start_ns, end_ns, marks), 1
        if heads.transaction_id > marks.transaction_id:
            yield execute(connection, _taken_back_after, (wanted,), scope, start_ns, end_ns, marks), -1


def cover(since_ns: int, until_ns: int, levels: Sequence[Level]) -> Iterator[tuple[Level | None, int, int]]:
    """The stretches that [since, until) is made of, each with the rollup that has it; without one it is of records."""
    if since_ns >= until_ns:
        return
    if not levels:
        yield None, since_ns, until_ns
        return
    level, *finer = levels
    start_ns = since_ns if level.start_of(since_ns) == since_ns else level.end_of(since_ns)
    end_ns = level.start_of(until_ns)
    if start_ns >= end_ns:
        yield from cover(since_ns, until_ns, finer)
        return
    yield from cover(since_ns, start_ns, finer)
    yield level, start_ns, end_ns
    yield from cover(end_ns, until_ns, finer)


def measures(piece: Columns) -> tuple[ColumnElement[int], ...]:
    """Sums of pieces that have the columns of ``_OF_USAGE`` beside them; :func:`sums_of` reads them. A record's energy, and the lease that
    begins with it, count where its first piece does."""
    first = piece.position == 0
    return (
        func.count().label("pieces"),
        func.sum(case((and_(first, ~piece.is_parked, begins_lease(piece)), 1), else_=0)).label("leases"),
        func.count(piece.energy_mj).label("told"),
        *halved(case((piece.is_parked, 0), else_=piece.duration_ns), "duration_ns"),
        *halved(piece.milli, "milli"), *halved(piece.grains, "grains"),
        *halved(case((first, func.coalesce(piece.energy_mj, 0)), else_=0), "energy_mj"),
        *halved(case((piece.energy_mj.is_(None), 0), else_=piece.duration_ns), "energy_duration_ns"),
        *halved(case((piece.is_parked, piece.milli), else_=0), "parked_milli"),
        *halved(case((piece.is_parked, piece.grains), else_=0), "parked_grains"),
    )  # fmt: skip


def begins_lease(piece: Columns) -> ColumnElement[bool]:
    """Whether a piece is of a lease's first record: the others are called after it with a number, as in ``lease/2``."""
    own, named = piece.lease + "/", func.substr(piece.record_id, 1, func.length(piece.lease) + 1)
    return or_(piece.record_id == piece.lease + "/1", named != own)


def sums_of(measured: Sequence[Any]) -> Sums:
    """What the columns of :func:`measures` have, in their order: thousands of rows are read for a page, so that names would take long."""
    pieces, leases, told, *halves = map(int, measured)
    duration_ns, milli, grains, energy_mj, energy_duration_ns, parked_milli, parked_grains = (
        billions * _BILLION + rest for billions, rest in zip(halves[::2], halves[1::2], strict=True)
    )
    cost, parked = whole(milli, grains), whole(parked_milli, parked_grains)
    return Sums(pieces, leases, duration_ns, cost, parked, told, energy_mj, energy_duration_ns)


def uncorrected(
    where: Where, usage: Sequence[ColumnElement[Any]], of_usage: Sequence[ColumnElement[bool]], kinds: Sequence[Kind] = BOTH
) -> Columns:
    """Pieces of usage that was not corrected, with what :func:`measures` needs and the wanted columns of their records. Many are read in
    less time kind by kind: SQLite adds up rows of one as it reads them, and writes down those of two first."""
    corrected = select(_reversals.usage_id).where(_reversals.usage_id == _usage.id).exists()
    return pieces(where, (*_OF_USAGE, *usage), (*of_usage, ~corrected), kinds)


def original(where: Where, usage: Sequence[ColumnElement[Any]], of_usage: Sequence[ColumnElement[bool]]) -> Columns:
    """The same of whatever was posted, corrected or not."""
    return pieces(lambda piece: (*where(piece), ~piece.reversal), (*_OF_USAGE, *usage), of_usage)


def _of_rollup(wanted: Wanted, level: Level, scope: Scope, start_ns: int, end_ns: int) -> Select[Any]:
    row = level.table.c
    chosen = wanted.columns(row)
    seen = () if level is ALL_HOURS else visible(scope, row)
    query = select(*chosen, *wanted.of_rollup(row)).where(row.start_ns >= start_ns, row.start_ns < end_ns, *seen)
    if level is DAYS and _named(scope) is not None:  # what is known of both is found by the index, which has the day last
        pair = _pairs(scope)
        query = query.join_from(level.table, pair, and_(row.tenant == pair.c.tenant, row.currency == pair.c.currency))
    return query.group_by(*chosen)


def _measures_of_rollup(row: Columns) -> tuple[ColumnElement[int], ...]:
    """As :func:`measures`."""
    parked, halves = row.priced == PARKED, ("duration_ns", "milli", "grains", "energy_mj", "energy_duration_ns")
    return (
        *(func.sum(row[name]).label(name) for name in ("pieces", "leases", "told")),
        *(half for name in halves for half in halved(row[name], name)),
        *halved(case((parked, row.milli), else_=0), "parked_milli"), *halved(case((parked, row.grains), else_=0), "parked_grains"),
    )  # fmt: skip


def _drawn_of_rollup(row: Columns) -> tuple[ColumnElement[int], ...]:
    """As :func:`_drawn`."""
    drawn = (half for name in ("duration_ns", "energy_mj", "energy_duration_ns") for half in halved(row[name], name))
    return (func.sum(row.pieces), func.sum(row.told), *drawn)


def _drawn(piece: Columns) -> tuple[ColumnElement[int], ...]:
    """How many there are, how many told energy, and their time and energy."""
    kept = {f"{name}{half}" for name in rollups.MEASURES_OF_ALL for half in ("", "_billions", "_rest")}
    return tuple(column for column in measures(piece) if column.key in kept)


def _costs_of_rollup(row: Columns) -> tuple[ColumnElement[int], ...]:
    """As :func:`_costs`."""
    return (func.sum(row.pieces), *halved(row.milli, "milli"), *halved(row.grains, "grains"))


def _costs(piece: Columns) -> tuple[ColumnElement[int], ...]:
    """How many there are, and what they cost."""
    return (func.count(), *halved(piece.milli, "milli"), *halved(piece.grains, "grains"))


def _of_records(wanted: Wanted, kind: Kind, scope: Scope, start_ns: int, end_ns: int) -> Select[Any]:
    conditions = (*visible(scope), _usage.started_at_ns >= start_ns, _usage.started_at_ns < end_ns)
    return _grouped(uncorrected(everything, _columns(wanted.keys), conditions, (kind,)), wanted)


def _posted_after(wanted: Wanted, scope: Scope, start_ns: int, end_ns: int, marks: Marks) -> Select[Any]:
    conditions = _beside(scope, start_ns, end_ns)
    where: Where = lambda piece: (piece.usage_id > marks.usage_id,)  # noqa: E731 - reads better
    return _grouped(uncorrected(where, _columns(wanted.keys), conditions), wanted)


def _taken_back_after(wanted: Wanted, scope: Scope, start_ns: int, end_ns: int, marks: Marks) -> Select[Any]:
    after = (_reversals.transaction_id > marks.transaction_id, _reversals.usage_id <= marks.usage_id)
    taken_back = select(_reversals.usage_id).where(*after)
    where: Where = lambda piece: (piece.usage_id.in_(taken_back),)  # noqa: E731 - reads better
    return _grouped(original(where, _columns(wanted.keys), _beside(scope, start_ns, end_ns)), wanted)


def _columns(keys: Sequence[str]) -> tuple[ColumnElement[Any], ...]:
    """Those of usage that tell the keys apart."""
    hour = (_usage.started_at_ns - _usage.started_at_ns % literal(HOUR_NS, BigInteger)).label("start_ns")
    return (_usage.tenant, _usage.user_name, *((hour,) if "hour" in keys else ()))


def _beside(scope: Scope, start_ns: int, end_ns: int) -> list[ColumnElement[bool]]:
    """The same conditions, written so that no index of theirs is used: the few rows are found by their ids."""
    started_ns, tenant = _usage.started_at_ns + literal(0, BigInteger), _usage.tenant + ""
    conditions = [started_ns >= start_ns, started_ns < end_ns, *of_tenants(tenant, scope.tenant), *of_tenants(tenant, scope.among)]
    return conditions if scope.user is None else [*conditions, _usage.user_name + "" == scope.user]


def _grouped(piece: Columns, wanted: Wanted) -> Select[Any]:
    chosen = wanted.columns(piece, piece.started_at_ns // literal(DAY_NS, BigInteger))
    return select(*chosen, *wanted.of_pieces(piece)).group_by(*chosen)


_MEASURED = 3 + 2 * 7
"""Columns of :func:`measures`."""
_COSTS = 1 + 2 * 2
"""Columns of :func:`_costs`."""

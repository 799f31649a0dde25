"""What reads invoices, drafts and credits. A finalised invoice is read as it was written; a draft is made anew from the books each time."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, case, distinct, exists, func, select

from forebay_billing.errors import UnknownInvoice
from forebay_billing.ledger.books import parked_price_ids, price_ids
from forebay_billing.ledger.postings import receivable
from forebay_billing.model.money import GRAINS_PER_NANO, minor_of, whole
from forebay_billing.model.months import Month
from forebay_billing.reads.parked import parked_totals
from forebay_billing.reads.plans import plan_of, plans_of
from forebay_billing.reads.profiles import profile_of
from forebay_billing.reads.rated_rows import LEASED, Columns, in_month, pieces
from forebay_billing.rules.credits import Balance, Grant, Use, after
from forebay_billing.rules.invoices import PLAN_KINDS, Basis, Draft, InvoiceLine, Profile, State, UsageTotal, draft
from forebay_billing.rules.parked import ParkedTotal
from forebay_billing.rules.plans import Plan, plan_in
from forebay_billing.rules.rating import HOUR_NS
from forebay_billing.tables import schema
from forebay_billing.tables.invoices import credit_grants, credit_moves, credit_notes, invoice_lines, invoices, settlements
from forebay_billing.tables.sums import halved, joined
from forebay_billing.tables.tenants_filter import Tenants, of_tenants

INVOICES_SHOWN_MAX = 1000

_usage, _accounts, _balances = schema.usage.c, schema.accounts.c, schema.balances.c


@dataclass(frozen=True)
class Issuer:
    """Who sends the invoices."""

    name: str
    address: str = ""
    tax_id: str = ""


@dataclass(frozen=True)
class CreditNote:
    """Takes a part of an invoice back, ``tax_minor`` of it tax."""

    name: str
    amount_minor: int
    tax_minor: int
    reason: str
    issued_at_ns: int

    @property
    def net_minor(self) -> int:
        return self.amount_minor - self.tax_minor


@dataclass(frozen=True)
class Settlement:
    """Money that came in (``payment``), went back (``refund``), or is no longer asked for (``void``)."""

    kind: str
    amount_minor: int
    method: str
    reference: str
    settled_at_ns: int
    settled_by: str


@dataclass(frozen=True)
class ListedInvoice:
    """A finalised invoice without what it says: how it stands."""

    name: str
    tenant: str
    month: str
    currency: str
    state: State
    issued_at_ns: int
    due_at_ns: int
    total_minor: int
    paid_minor: int
    credited_minor: int
    open_minor: int


@dataclass(frozen=True)
class Invoice:
    """A finalised invoice and what happened to it since."""

    id: int
    name: str
    draft: Draft
    issuer: Issuer
    issued_at_ns: int
    due_at_ns: int
    notes: tuple[CreditNote, ...]
    settlements: tuple[Settlement, ...]

    @property
    def tenant(self) -> str:
        return self.draft.profile.tenant

    @property
    def credited_minor(self) -> int:
        return sum(note.amount_minor for note in self.notes)

    @property
    def paid_minor(self) -> int:
        """What came in, less what went back."""
        signs = {"payment": 1, "refund": -1, "void": 0}
        return sum(signs[one.kind] * one.amount_minor for one in self.settlements)

    @property
    def voided_minor(self) -> int:
        return sum(one.amount_minor for one in self.settlements if one.kind == "void")

    @property
    def open_minor(self) -> int:
        """What is still asked for; below zero it is owed to the tenant."""
        return self.draft.total_minor - self.credited_minor - self.paid_minor - self.voided_minor

    @property
    def state(self) -> State:
        if any(one.kind == "void" for one in self.settlements):
            return "void"
        return "open" if self.open_minor > 0 else "paid"

    @property
    def listed(self) -> ListedInvoice:
        """As a list has it."""
        made = self.draft
        return ListedInvoice(
            self.name, self.tenant, str(made.month), made.currency, self.state, self.issued_at_ns, self.due_at_ns,
            made.total_minor, self.paid_minor, self.credited_minor, self.open_minor,
        )  # fmt: skip


@dataclass(frozen=True)
class Credit:
    """A grant with what is left of it, and what became of the rest."""

    grant: Grant
    tenant: str
    name: str
    granted_at_ns: int
    granted_by: str
    left_minor: int


def open_months(connection: Connection, tenant: str, until: Month) -> list[Month]:
    """The months to ``until`` for which ``tenant`` is to be invoiced and that are not finalised, in order."""
    periods = schema.periods.c
    closed = select(periods.period).where(periods.tenant == tenant)
    query = (
        select(_balances.period)
        .distinct()
        .select_from(schema.balances.join(schema.accounts, _accounts.id == _balances.account_id))
        .where(_accounts.name == receivable(tenant), _balances.period <= str(until), _balances.period.not_in(closed))
    )
    committed = committed_months(connection, tenant, until).get(tenant, set())
    if committed:
        committed -= set(map(Month.parse, connection.execute(closed).scalars()))
    return sorted(committed.union(map(Month.parse, connection.execute(query).scalars())))


def committed_months(connection: Connection, tenant: str | None, until: Month) -> dict[str, set[Month]]:
    """The months to ``until`` in which tenants owe a commitment, whether or not they used anything; of one tenant where given."""
    versions: dict[str, list[Plan]] = defaultdict(list)
    for plan in plans_of(connection, tenant):
        versions[plan.tenant].append(plan)
    found: dict[str, set[Month]] = defaultdict(set)
    for owner, plans in versions.items():
        month = min(plan.valid_from for plan in plans)
        while month <= until:
            plan_then = plan_in(month, plans)
            if plan_then is not None and minor_of(plan_then.terms.commitment_nano * GRAINS_PER_NANO, plan_then.terms.currency):
                found[owner].add(month)
            month = month.next
    return found


def is_finalised(connection: Connection, tenant: str, month: Month) -> bool:
    """Whether the month is closed for the tenant."""
    periods = schema.periods.c
    query = select(periods.id).where(periods.tenant == tenant, periods.period == str(month))
    return connection.execute(query).first() is not None


def tenants_with_open_months(connection: Connection, until: Month) -> list[str]:
    """The tenants that are to be invoiced for a month to ``until`` that is not finalised."""
    prefix, periods = receivable(""), schema.periods.c
    tenant = func.substr(_accounts.name, len(prefix) + 1)
    closed = select(periods.id).where(periods.tenant == tenant, periods.period == _balances.period).exists()
    query = (
        select(_accounts.name)
        .distinct()
        .select_from(schema.balances.join(schema.accounts, _accounts.id == _balances.account_id))
        .where(_accounts.name.startswith(prefix, autoescape=True), _balances.period <= str(until), ~closed)
    )
    used = {name.removeprefix(prefix) for name in connection.execute(query).scalars()}
    committed = {owner for owner in committed_months(connection, None, until) if open_months(connection, owner, until)}
    return sorted(used | committed)


def drafts(connection: Connection, tenant: str, month: Month) -> list[Draft]:
    """The invoices of an open month as they would be now, one a currency; months before it that are open use credits first.

    Where nothing was used and the plan asks for nothing there is none, and no tax on nothing either.
    """
    left = {credit.grant.id: Balance(credit.grant, credit.left_minor) for credit in credits_of(connection, tenant)}
    made: list[Draft] = []
    for each in [*(open_month for open_month in open_months(connection, tenant, month) if open_month != month), month]:
        made = [draft(basis) for basis in _bases(connection, tenant, each, list(left.values()))]
        for balance in after(left.values(), (use for one in made for use in uses(one, left))):
            left[balance.grant.id] = balance
    return [one for one in made if any(line.kind != "tax" for line in one.lines)]


def uses(made: Draft, balances: Mapping[int, Balance]) -> Iterator[Use]:
    """What the lines of a draft use of credits."""
    for line in made.lines:
        if line.grant_id is not None:
            yield Use(balances[line.grant_id].grant, -line.amount_minor)


def _bases(connection: Connection, tenant: str, month: Month, balances: Sequence[Balance]) -> Iterator[Basis]:
    profile, plan = profile_of(connection, tenant), plan_of(connection, tenant, month)
    terms = None if plan is None else plan.terms
    totals, hours = _totals(connection, tenant, month), _hours(connection, tenant, month)
    parked: dict[str, list[ParkedTotal]] = defaultdict(list)
    for total in parked_totals(connection, tenant, month):
        parked[total.currency].append(total)
    for currency in sorted({*totals, *parked, *([] if terms is None else [terms.currency])}):
        usable = [balance for balance in balances if balance.grant.currency == currency]
        yield Basis(profile, month, currency, totals.get(currency, ()), hours.get(currency, {}), terms, usable, parked[currency])


def _totals(connection: Connection, tenant: str, month: Month) -> dict[str, list[UsageTotal]]:
    piece = pieces(in_month(tenant, month), (_usage.user_name, _usage.lease), kinds=(LEASED,))
    group = (piece.user_name, piece.price_id, piece.surcharge_nano_per_hour, piece.reversal, piece.late)
    query = select(
        *group, *halved(piece.duration_ns, "duration"), func.count(distinct(piece.lease)).label("leases"),
        func.min(piece.started_at_ns).label("first"),
        func.max(piece.started_at_ns + func.abs(piece.duration_ns)).label("last"),
    ).group_by(*group)  # fmt: skip
    rows = connection.execute(query).all()
    prices = {id: price for price, id in price_ids(connection).items()} if rows else {}
    found: dict[str, list[UsageTotal]] = defaultdict(list)
    for row in rows:
        price = prices[row.price_id]
        found[price.currency].append(
            UsageTotal(
                row.user_name, price, row.surcharge_nano_per_hour, bool(row.reversal), bool(row.late), row.leases,
                joined(row, "duration"), row.first, row.last,
            )
        )  # fmt: skip
    return found


def _hours(connection: Connection, tenant: str, month: Month) -> dict[str, dict[int, int]]:
    """What the usage of each UTC hour cost, by currency and start."""
    piece = pieces(in_month(tenant, month))
    hour = (piece.started_at_ns // HOUR_NS).label("hour")
    sums = (*halved(piece.milli, "milli"), *halved(piece.grains, "grains"))
    query = select(piece.currency, hour, *sums).group_by(piece.currency, hour)
    found: dict[str, dict[int, int]] = defaultdict(dict)
    for row in connection.execute(query):
        found[row.currency][row.hour * HOUR_NS] = whole(joined(row, "milli"), joined(row, "grains"))
    return found


def credits_of(connection: Connection, tenant: str | None) -> list[Credit]:
    """All grants, the oldest first; of one tenant where one is given."""
    spent = (
        select(credit_moves.c.grant_id, func.sum(credit_moves.c.amount_minor).label("spent")).group_by(credit_moves.c.grant_id).subquery()
    )
    query = (
        select(credit_grants, func.coalesce(spent.c.spent, 0).label("spent"))
        .outerjoin(spent, spent.c.grant_id == credit_grants.c.id)
        .order_by(credit_grants.c.id)
    )
    if tenant is not None:
        query = query.where(credit_grants.c.tenant == tenant)
    return [_credit(row) for row in connection.execute(query)]


def credit(connection: Connection, grant_id: int, tenant: str | None) -> Credit:
    """One grant. Raises UnknownInvoice; also for another tenant's where one is given."""
    for found in credits_of(connection, tenant):
        if found.grant.id == grant_id:
            return found
    raise UnknownInvoice(f"There is no credit {grant_id}.")


def _credit(row: Row[Any]) -> Credit:
    grant = Grant(row.id, row.kind, row.currency, row.amount_minor, row.priority, row.effective_at_ns, row.expires_at_ns)
    return Credit(grant, row.tenant, row.name, row.granted_at_ns, row.granted_by, row.amount_minor - int(row.spent))


def invoice(connection: Connection, name: str, tenant: str | None) -> Invoice:
    """The invoice of a number. Raises UnknownInvoice; also for another tenant's where one is given."""
    for found in _invoices(connection, _of_tenant(select(invoices).where(invoices.c.name == name), tenant)):
        return found
    raise UnknownInvoice(f"There is no invoice {name!r:.80}.")


def credit_note(connection: Connection, name: str, tenant: str | None) -> tuple[Invoice, CreditNote]:
    """The credit note of a number, and its invoice. Raises UnknownInvoice; also for another tenant's where one is given."""
    its_invoice = select(credit_notes.c.invoice_id).where(credit_notes.c.name == name).scalar_subquery()
    for about in _invoices(connection, _of_tenant(select(invoices).where(invoices.c.id == its_invoice), tenant)):
        return about, next(note for note in about.notes if note.name == name)
    raise UnknownInvoice(f"There is no credit note {name!r:.80}.")


def noted_in(connection: Connection, tenant: str | None, month: Month) -> list[tuple[Invoice, CreditNote]]:
    """The credit notes that were issued in a month, in the order of their numbers; of one tenant where given."""
    issued = credit_notes.c.issued_at_ns >= month.start_ns, credit_notes.c.issued_at_ns < month.end_ns
    names = connection.execute(select(credit_notes.c.name).where(*issued).order_by(credit_notes.c.id)).scalars().all()
    noted = select(invoices).where(invoices.c.id.in_(select(credit_notes.c.invoice_id).where(*issued)))
    found = _invoices(connection, _of_tenant(noted, tenant))
    by_name = {note.name: (about, note) for about in found for note in about.notes}
    return [by_name[name] for name in names if name in by_name]


def _of_tenant(query: Select[Any], tenant: Tenants) -> Select[Any]:
    return query.where(*of_tenants(invoices.c.tenant, tenant))


def invoices_of(
    connection: Connection, tenant: Tenants, month: Month | None = None, issued: tuple[int, int] | None = None
) -> list[Invoice]:
    """The latest first; those of a tenant or some, of a month, or issued from the first until before the second moment, where given."""
    query = _of_tenant(select(invoices).order_by(invoices.c.id.desc()), tenant)
    if month is not None:
        query = query.where(invoices.c.period == str(month))
    if issued is not None:
        query = query.where(invoices.c.issued_at_ns >= issued[0], invoices.c.issued_at_ns < issued[1])
    return _invoices(connection, query)


def listed(
    connection: Connection, tenant: Tenants, month: Month | None = None, state: State | None = None, search: str = "",
    before: str | None = None, limit: int | None = None,
) -> list[ListedInvoice]:  # fmt: skip
    """How invoices stand, the latest first, at most ``limit``; those of a tenant or some, of a month or state, in whose number, tenant,
    month or state every word of ``search`` occurs, and that came before the one of a number, where given."""
    query = _of_tenant(_stands().order_by(invoices.c.id.desc()).limit(limit), tenant).where(*_found(search))
    if month is not None:
        query = query.where(invoices.c.period == str(month))
    if state is not None:
        query = query.where(_state() == state)
    if before is not None:
        query = query.where(invoices.c.id < select(invoices.c.id).where(invoices.c.name == before).scalar_subquery())
    return [_listed(row) for row in connection.execute(query)]


def _listed(row: Row[Any]) -> ListedInvoice:
    paid_minor, credited_minor = int(row.paid), int(row.credited)
    open_minor = row.total_minor - credited_minor - paid_minor - int(row.voided)
    return ListedInvoice(
        row.name, row.tenant, row.period, row.currency, row.state, row.issued_at_ns, row.due_at_ns,
        row.total_minor, paid_minor, credited_minor, open_minor,
    )  # fmt: skip


def count_found(connection: Connection, search: str) -> int:
    """How many invoices :func:`listed` finds so."""
    return int(connection.execute(select(func.count()).select_from(invoices).where(*_found(search))).scalar_one())


def open_amounts(connection: Connection) -> dict[str, dict[str, int]]:
    """What is still asked for of each tenant in each currency, in minor units."""
    notes = select(credit_notes.c.invoice_id, func.sum(credit_notes.c.amount_minor).label("credited")).group_by(credit_notes.c.invoice_id)
    noted, kind, amount = notes.subquery(), settlements.c.kind, settlements.c.amount_minor
    paid = func.sum(case((kind == "payment", amount), (kind == "refund", -amount), else_=0)).label("paid")
    void = func.max(case((kind == "void", 1), else_=0)).label("void")
    settled = select(settlements.c.invoice_id, paid, void).group_by(settlements.c.invoice_id).subquery()
    row = invoices.c
    left = row.total_minor - func.coalesce(noted.c.credited, 0) - func.coalesce(settled.c.paid, 0)
    joined = invoices.outerjoin(noted, noted.c.invoice_id == row.id).outerjoin(settled, settled.c.invoice_id == row.id)
    open_ones = select(row.tenant, row.currency, func.sum(left)).select_from(joined)
    open_ones = open_ones.where(func.coalesce(settled.c.void, 0) == 0, left > 0).group_by(row.tenant, row.currency)
    found: dict[str, dict[str, int]] = defaultdict(dict)
    for tenant, currency, open_minor in connection.execute(open_ones):
        found[tenant][currency] = int(open_minor)
    return found


def _found(search: str) -> list[ColumnElement[bool]]:
    """That every word occurs."""
    whole_text = func.lower(invoices.c.name + " " + invoices.c.tenant + " " + invoices.c.period + " " + _state())
    return [whole_text.contains(word, autoescape=True) for word in search.casefold().split()]


def _settled(*kinds: str) -> ColumnElement[int]:
    """What settlements of these kinds came to for an invoice."""
    sums = select(func.coalesce(func.sum(settlements.c.amount_minor), 0))
    return sums.where(settlements.c.invoice_id == invoices.c.id, settlements.c.kind.in_(kinds)).scalar_subquery()


def _credited() -> ColumnElement[int]:
    noted = select(func.coalesce(func.sum(credit_notes.c.amount_minor), 0)).where(credit_notes.c.invoice_id == invoices.c.id)
    return noted.scalar_subquery()


def _state() -> ColumnElement[str]:
    """See :class:`Invoice`."""
    void = exists().where(settlements.c.invoice_id == invoices.c.id, settlements.c.kind == "void")
    left = invoices.c.total_minor - _credited() - _settled("payment") + _settled("refund")
    return case((void, "void"), (left > 0, "open"), else_="paid")


def _stands() -> Select[Any]:
    """The columns of :class:`ListedInvoice`, but the last."""
    row = invoices.c
    return select(
        row.name, row.tenant, row.period, row.currency, _state().label("state"), row.issued_at_ns, row.due_at_ns, row.total_minor,
        (_settled("payment") - _settled("refund")).label("paid"), _credited().label("credited"), _settled("void").label("voided"),
    )  # fmt: skip


def _invoices(connection: Connection, query: Select[Any]) -> list[Invoice]:
    rows = connection.execute(query).all()
    ids = [row.id for row in rows]
    lines, notes, settled = _lines(connection, ids), _notes(connection, ids), _settlements(connection, ids)
    for row in rows:
        if any(line.kind == "parked" for line in lines[row.id]):
            lines[row.id] = _with_parked(connection, row, lines[row.id])
    return [
        Invoice(
            row.id, row.name,
            Draft(Profile(**json.loads(row.profile)), Month.parse(row.period), row.currency, tuple(lines[row.id])),
            Issuer(**json.loads(row.issuer)), row.issued_at_ns, row.due_at_ns, tuple(notes[row.id]), tuple(settled[row.id]),
        )
        for row in rows
    ]  # fmt: skip


def _batches(ids: Sequence[int]) -> Iterable[Sequence[int]]:
    return (ids[start : start + INVOICES_SHOWN_MAX] for start in range(0, len(ids), INVOICES_SHOWN_MAX))


def _lines(connection: Connection, ids: Sequence[int]) -> dict[int, list[InvoiceLine]]:
    prices = {id: price for price, id in price_ids(connection).items()} if ids else {}
    found: dict[int, list[InvoiceLine]] = defaultdict(list)
    for batch in _batches(ids):
        query = select(invoice_lines).where(invoice_lines.c.invoice_id.in_(batch)).order_by(invoice_lines.c.position)
        for row in connection.execute(query):
            total = None
            if row.price_id is not None:
                total = UsageTotal(
                    row.user_name, prices[row.price_id], row.surcharge_nano_per_hour, row.kind == "correction", bool(row.late),
                    row.leases, row.seconds * 10**9 + row.nanoseconds, row.started_at_ns, row.ended_at_ns,
                )  # fmt: skip
            cost = whole(row.milli, row.grains)
            line = InvoiceLine(
                row.key, row.kind, row.label, cost, row.amount_minor, row.started_at_ns, row.ended_at_ns, total, row.grant_id
            )
            found[row.invoice_id].append(line)
    return found


def _with_parked(connection: Connection, row: Row[Any], lines: Sequence[InvoiceLine]) -> list[InvoiceLine]:
    """The lines of a finalised invoice, with what those of parked memory are of: no more comes to a month that is closed."""
    found = parked_totals(connection, row.tenant, Month.parse(row.period))
    totals = {total.key: total for total in found if total.currency == row.currency}
    return [replace(line, parked=totals.get(line.key)) if line.kind == "parked" else line for line in lines]


def _notes(connection: Connection, ids: Sequence[int]) -> dict[int, list[CreditNote]]:
    found: dict[int, list[CreditNote]] = defaultdict(list)
    for batch in _batches(ids):
        for row in connection.execute(select(credit_notes).where(credit_notes.c.invoice_id.in_(batch)).order_by(credit_notes.c.id)):
            found[row.invoice_id].append(CreditNote(row.name, row.amount_minor, row.tax_minor, row.reason, row.issued_at_ns))
    return found


def _settlements(connection: Connection, ids: Sequence[int]) -> dict[int, list[Settlement]]:
    found: dict[int, list[Settlement]] = defaultdict(list)
    for batch in _batches(ids):
        for row in connection.execute(select(settlements).where(settlements.c.invoice_id.in_(batch)).order_by(settlements.c.id)):
            values = {name: getattr(row, name) for name in Settlement.__dataclass_fields__}
            found[row.invoice_id].append(Settlement(**values))
    return found


def line_of(made: Draft, key: str) -> InvoiceLine:
    """The line of a key. Raises UnknownInvoice."""
    for line in made.lines:
        if line.key == key:
            return line
    raise UnknownInvoice(f"There is no line {key!r:.80} here.")


@dataclass(frozen=True)
class Cell:
    """A part of a line: what one usage record has in it. ``label`` and ``cell`` say where it was caused."""

    usage_id: int
    source: str
    record_id: str
    session: str
    lease: str
    span_kind: str
    label: str
    cell: int | None
    cell_id: str | None
    first_line: str | None
    device_model: str
    devices: int
    started_at_ns: int
    duration_ns: int
    cost_grains: int
    parked_bytes: int | None


def cells(connection: Connection, made: Draft, line: InvoiceLine, limit: int, after_id: int) -> tuple[list[Cell], int | None]:
    """At most ``limit`` of what ``line`` was summed up from, and the id to go on after. Lines of plans are about all usage.

    Raises UnknownInvoice for lines that no usage stands behind: tax and credits.
    """
    of_record = [column for column in schema.usage.c if column.name not in ("started_at_ns", "duration_ns")]
    piece = pieces(in_month(made.profile.tenant, made.month), of_record, (_usage.id > after_id,))
    durations, milli, grains = halved(piece.duration_ns, "duration"), halved(piece.milli, "milli"), halved(piece.grains, "grains")
    record = [piece[column.name] for column in of_record]
    query = (
        select(*record, *durations, *milli, *grains, func.min(piece.started_at_ns).label("first"))
        .where(*_of_line(connection, made, line, piece))
        .group_by(*record)
        .order_by(piece.id)
        .limit(limit + 1)
    )
    rows = connection.execute(query).all()
    found = [_cell(row) for row in rows[:limit]]
    return found, found[-1].usage_id if len(rows) > limit else None


def _of_line(connection: Connection, made: Draft, line: InvoiceLine, piece: Columns) -> tuple[ColumnElement[bool], ...]:
    """Which pieces a line is made of."""
    if line.usage is not None:
        total = line.usage
        price_id = price_ids(connection)[total.price]
        of_price = (piece.price_id == price_id, piece.surcharge_nano_per_hour == total.surcharge_nano_per_hour)
        return *of_price, piece.user_name == total.user, piece.reversal.is_(total.correction), piece.late.is_(total.late)
    if line.kind in PLAN_KINDS:
        return (piece.currency == made.currency,)
    parked = line.parked
    if parked is not None:
        parked_id = None if parked.price is None else parked_price_ids(connection)[parked.price]
        of_parked = (piece.is_parked, piece.parked_price_id.is_not_distinct_from(parked_id), piece.currency == parked.currency)
        return *of_parked, piece.user_name == parked.user, piece.reversal.is_(parked.correction)
    raise UnknownInvoice(f"The line {line.key!r:.80} is of no usage: {line.label}.")


def _cell(row: Row[*tuple[Any, ...]]) -> Cell:
    return Cell(
        row.id, row.source, row.record_id, row.session, row.lease, row.span_kind, row.span_label, row.span_cell,
        row.span_cell_id, row.span_first_line, row.device_model, row.devices, row.first,
        joined(row, "duration"), whole(joined(row, "milli"), joined(row, "grains")), row.parked_bytes,
    )  # fmt: skip

"""The accountant: a slow, obvious account of money, from what the pool metered and what the operator set, held against everybody's books.

It shares no code with billing: it reads tables by name, and rates, splits and rounds by itself, with integers.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from forebay_pool.model.types import UsageRecord
from forebay_wire import messages as wire
from sqlalchemy import Connection, text
from stripe_emulator import Emulator

from simulation.auditor import Caught
from simulation.money.bills import Bill, Rules, Sheet, bills_of, check_all_closed, check_grants, check_invoices, check_items
from simulation.money.limits import Alert, LimitBook, Posted, Stretch
from simulation.money.months import month_after, month_of
from simulation.money.rounding import nearest

HOUR_NS = 3600 * 10**9
NANO = HOUR_NS
"""Grains in a nano-unit: one is what a nano-unit an hour costs in a nanosecond."""
MILLI = 10**6 * NANO
LAST = 3600
"""Grains in 1e-18 of a currency, to which what is divided is rounded."""
CURRENCIES = {"acme": ("USD", 10**7 * NANO), "bolt": ("JPY", 10**9 * NANO)}
"""What each tenant is billed in, and the grains of its smallest coin."""
PARKED_PRICES = {"USD": 7_000_000_000_003, "JPY": 900_000_000_000_001}
"""What a GiB costs in an hour in which it is parked, from the beginning on, in nano-units."""


@dataclass(frozen=True)
class Price:
    """A version, as billing answered when it was set."""

    flavor: str
    currency: str
    version: int
    nano_per_hour: int
    valid_from_ns: int


MODEL = "model "
"""Begins what the surcharge of a model is called among prices here."""
NO_SURCHARGE = Price("", "", 0, 0, 0)
VERSIONS = f"""(
    SELECT flavor, currency, version, price_nano_per_hour AS nano, valid_from_ns, changed_at_ns, changed_by FROM prices UNION ALL
    SELECT '{MODEL}' || model, currency, version, surcharge_nano_per_hour, valid_from_ns, changed_at_ns, changed_by FROM surcharges
) AS versions"""  # noqa: S608 - our own names


@dataclass(frozen=True)
class Part:
    """A stretch of a record at one rate."""

    started_at_ns: int
    duration_ns: int
    grains: int
    rate: tuple[int, int] = (0, 0)
    """The price's version, and the surcharge."""

    @property
    def month(self) -> str:
        return month_of(self.started_at_ns)


def parts_of(record: UsageRecord, prices: Sequence[Price]) -> list[Part]:
    """The record, split at full hours and where another price or surcharge holds."""
    if record.parked_bytes is not None:
        return parked_parts_of(record, record.parked_bytes)
    currency = CURRENCIES[record.tenant][0]
    mine, extra = ([price for price in prices if (price.flavor, price.currency) == (of, currency)] for of in (
        record.flavor, MODEL + record.device_model
    ))  # fmt: skip
    begin, end = record.started_at_unix_ns, record.started_at_unix_ns + record.duration_ns
    cuts = {price.valid_from_ns for price in mine + extra} | set(range(begin // HOUR_NS * HOUR_NS, end, HOUR_NS))
    moments = [begin, *sorted(cut for cut in cuts if begin < cut < end), end]
    parts = []
    for start, stop in pairwise(moments):
        price, beside = (
            max((price for price in some if price.valid_from_ns <= start), key=lambda price: (price.valid_from_ns, price.version))
            for some in (mine, [NO_SURCHARGE, *extra])
        )
        surcharge = nearest(beside.nano_per_hour * record.devices * record.share_milli, 1000)
        parts.append(Part(start, stop - start, (stop - start) * (price.nano_per_hour + surcharge), (price.version, surcharge)))
    return parts


def parked_parts_of(record: UsageRecord, parked_bytes: int) -> list[Part]:
    """The same of parked bytes: each part is rounded to 1e-18 of the currency."""
    begin, end = record.started_at_unix_ns, record.started_at_unix_ns + record.duration_ns
    hours = [hour for hour in range(begin // HOUR_NS * HOUR_NS, end, HOUR_NS) if hour > begin]
    price = PARKED_PRICES[CURRENCIES[record.tenant][0]]
    return [
        Part(start, stop - start, nearest(parked_bytes * (stop - start) * price * 10**9, 2**30 * HOUR_NS) * LAST)
        for start, stop in pairwise([begin, *hours, end])
    ]


class Accountant:
    """Raises Caught. ``metered`` is all that is to be billed, by id; ``corrected`` are ids that were taken back, with the transaction."""

    def __init__(self, metered: dict[str, UsageRecord], prices: list[Price], corrected: dict[str, int], rules: Rules) -> None:
        self._metered = metered
        self._prices = prices
        self._corrected = corrected
        self._rules = rules
        self._closed: list[tuple[str, str, int]] = []
        """Tenant, month, and when it was finalised."""
        self.bills: list[Bill] = []

    def check_pool(self, connection: Connection) -> None:
        """The pool's own tables hold what its state machine metered, and nothing waits."""
        rows = {row.id: row for row in connection.execute(text("SELECT * FROM lease_segments"))}
        self._same_ids(rows.keys(), "the pool's database")
        for id, record in self._metered.items():
            held = (rows[id].started_at_unix_ns, rows[id].duration_ns)
            if held != (record.started_at_unix_ns, record.duration_ns):
                raise Caught(f"the pool wrote {held} of {id}", record.session)
        left = connection.execute(text("SELECT segment, refused FROM usage_outbox")).all()
        for row in left:
            raise Caught(f"the pool never delivered {row.segment}: {row.refused}", self._metered[row.segment].session)

    def check_billing(self, connection: Connection, now_ns: int) -> dict[tuple[str, int], int]:
        """Usage, segments, invoices, ledger and balances; grains by tenant and hour."""
        self._closed = [tuple(row) for row in connection.execute(text("SELECT tenant, period, finalised_at_ns FROM periods"))]
        rows = {row.record_id: row for row in connection.execute(text("SELECT * FROM usage"))}
        self._same_ids(rows.keys(), "billing")
        self._check_prices(connection)
        segments = defaultdict(list)
        for table in ("segments", "parked_segments"):
            for row in connection.execute(text(f"SELECT * FROM {table} ORDER BY usage_id, position")):  # noqa: S608 - our own names
                segments[row.usage_id].append(row)
        hours: dict[tuple[str, int], int] = defaultdict(int)
        sheets: dict[tuple[str, str, str], Sheet] = defaultdict(Sheet)
        for id, record in self._metered.items():
            parts = parts_of(record, self._known_then(connection, rows[id].received_at_ns))
            self._check_record(record, rows[id], parts, segments[rows[id].id])
            currency = CURRENCIES[record.tenant][0]
            for part in parts:
                if id not in self._corrected:
                    hours[record.tenant, part.started_at_ns // HOUR_NS * HOUR_NS] += part.grains
                period = self._open_month(record.tenant, part.month, rows[id].received_at_ns)
                late = "late" if period != part.month else ""
                _enter(sheets[record.tenant, period, currency], record, part, late, 1)
            if id in self._corrected:
                taken_back_ns = self._posted_at(connection, self._corrected[id])
                period = self._open_month(record.tenant, month_of(taken_back_ns), taken_back_ns)
                for part in parts:
                    _enter(sheets[record.tenant, period, currency], record, part, "back", -1)
        coins = self._rules.coins
        self.bills = bills_of(connection, sheets, self._rules, now_ns)
        check_all_closed(self.bills, sheets, self._rules, month_of(now_ns))
        owed = {key: sum(sheet.lines.values()) for key, sheet in sheets.items()}
        owed |= {bill.key: bill.open * coins[bill.key[0]] for bill in self.bills}
        entries = defaultdict(int, {(f"receivable:{tenant}", period, currency): due for (tenant, period, currency), due in owed.items()})
        for bill in self.bills:
            entries["tax", bill.key[1], bill.key[2]] -= bill.tax_left * coins[bill.key[0]]
        self._check_ledger(connection, entries)
        return hours

    def _open_month(self, tenant: str, month: str, at_ns: int) -> str:
        """``month``, or the first after it that was not finalised then."""
        while any((tenant, month) == closed[:2] and closed[2] < at_ns for closed in self._closed):
            month = month_after(month)
        return month

    def _known_then(self, connection: Connection, at_ns: int) -> list[Price]:
        """The versions that were there when a record came: a record from the future, by a clock that is ahead, has the price of then."""
        query = text(f"SELECT flavor, currency, version FROM {VERSIONS} WHERE changed_at_ns <= :at_ns")  # noqa: S608 - ours
        known = {tuple(found) for found in connection.execute(query, {"at_ns": at_ns})}
        return [price for price in self._prices if (price.flavor, price.currency, price.version) in known]

    def _same_ids(self, found: Iterable[str], where: str) -> None:
        expected, there = set(self._metered), set(found)
        for id in sorted(expected - there):
            raise Caught(f"{where} does not have {id}", self._metered[id].session)
        for id in sorted(there - expected):
            raise Caught(f"{where} has {id}, which no pool metered", id.partition(".")[0])

    def _check_prices(self, connection: Connection) -> None:
        query = text(f"SELECT flavor, currency, version, nano, valid_from_ns FROM {VERSIONS} WHERE changed_by = 'operator'")  # noqa: S608 - ours
        found = sorted(tuple(row) for row in connection.execute(query))
        wanted = sorted((p.flavor, p.currency, p.version, p.nano_per_hour, p.valid_from_ns) for p in self._prices)
        if found != wanted:
            raise Caught(f"the price book holds {len(found)} versions, and {len(wanted)} were set: {found} / {wanted}")

    def _check_record(self, record: UsageRecord, row: Any, parts: list[Part], segments: list[Any]) -> None:
        same = (row.tenant, row.user_name, row.flavor, row.started_at_ns, row.duration_ns, row.devices, row.share_milli, row.parked_bytes)
        wanted = (
            record.tenant, record.user, record.flavor, record.started_at_unix_ns, record.duration_ns, record.devices, record.share_milli,
            record.parked_bytes,
        )  # fmt: skip
        if same != wanted:
            raise Caught(f"billing holds {same} of {record.id}, and {wanted} was metered", record.session)
        billed = [(s.started_at_ns, s.duration_ns, s.milli * MILLI + s.grains) for s in segments if not s.reversal]
        right = [(part.started_at_ns, part.duration_ns, part.grains) for part in parts]
        if billed != right:
            raise Caught(f"{record.id} is billed as {billed}; it is {right}", record.session)
        reversed_ = [(s.started_at_ns, -s.duration_ns, -(s.milli * MILLI + s.grains)) for s in segments if s.reversal]
        if reversed_ != (right if record.id in self._corrected else []):
            raise Caught(f"of {record.id} {reversed_} is taken back", record.session)

    def _check_ledger(self, connection: Connection, owed: dict[tuple[str, str, str], int]) -> None:
        sums: dict[tuple[int, str], int] = defaultdict(int)
        accounts: dict[tuple[str, str, str], int] = defaultdict(int)
        query = "SELECT transaction_id, name, period, currency, milli, grains FROM postings JOIN accounts ON accounts.id = account_id"
        for row in connection.execute(text(query)):
            sums[row.transaction_id, row.currency] += row.milli * MILLI + row.grains
            accounts[row.name, row.period, row.currency] += row.milli * MILLI + row.grains
        for (transaction, currency), grains in sums.items():
            if grains:
                raise Caught(f"transaction {transaction} sums to {grains} grains of {currency}")
        self._same_amounts("the ledger", _owed(accounts), owed)
        for row in connection.execute(text("SELECT record_id FROM holds WHERE closed_by IS NULL")):
            raise Caught(f"money is still held for {row.record_id}")
        self._same_amounts("what is held", {key: grains for key, grains in accounts.items() if re.match("held:|holds$", key[0])}, {})
        query = "SELECT name, period, currency, milli, grains FROM balances JOIN accounts ON accounts.id = account_id"
        balances = {(row.name, row.period, row.currency): row.milli * MILLI + row.grains for row in connection.execute(text(query))}
        self._same_amounts("the balances", _owed(balances), owed)

    def _same_amounts(self, where: str, found: dict[Any, int], wanted: dict[Any, int]) -> None:
        for key in sorted(found.keys() | wanted.keys()):
            if found.get(key, 0) != wanted.get(key, 0):
                raise Caught(f"{where}: {key} is {found.get(key, 0)} and ought to be {wanted.get(key, 0)}")

    def check_limits(self, connection: Connection, limits: LimitBook, began: dict[str, int], calm_ns: int) -> None:
        """Budgets stopped in time; see :mod:`simulation.money.limits`."""
        came = {name: received_ns for name, received_ns in connection.execute(text("SELECT record_id, received_at_ns FROM usage"))}
        gone = {id: self._posted_at(connection, transaction) for id, transaction in self._corrected.items()}
        stretches, posted = [], []
        for id, record in self._metered.items():
            if record.parked_bytes is None:
                subject, parts = (record.tenant, record.user, record.span.label), parts_of(record, self._known_then(connection, came[id]))
                ahead_ns = began[id] - record.started_at_unix_ns
                for part in parts:
                    start_ns = part.started_at_ns + ahead_ns
                    nano = part.grains // max(1, part.duration_ns)
                    stretches.append(Stretch(subject, start_ns, start_ns + part.duration_ns, nano, part.month))
                for month, grains in _by_month(parts).items():
                    posted.append(Posted(id, subject, came[id], grains, month))
                    if id in gone:
                        back = self._open_month(record.tenant, month_of(gone[id]), gone[id])
                        posted.append(Posted(id, subject, gone[id], -grains, back))

        def rate(record: UsageRecord, at_ns: int) -> tuple[dict[str, int], int] | None:
            prices = self._known_then(connection, at_ns)
            if not any((price.flavor, price.currency) == (record.flavor, CURRENCIES[record.tenant][0]) for price in prices):
                return None
            parts = parts_of(record, prices)
            return _by_month(parts), parts[-1].grains // max(1, parts[-1].duration_ns)

        limits.check(stretches, posted, rate, _record_of, _alerts(connection), calm_ns)

    def check_alerts(self, connection: Connection, heard: Mapping[str, int]) -> None:
        """Each threshold that was told of came to each channel that there was, at least once."""
        query = (
            "SELECT a.id AS alert, c.id AS channel, state FROM budget_alerts a JOIN budgets b ON b.id = a.budget_id"
            " JOIN alert_channels c ON (c.tenant IS NULL OR c.tenant = b.tenant) AND c.set_at_ns < a.at_ns"
            " LEFT JOIN alert_deliveries d ON d.alert_id = a.id AND d.channel_id = c.id"
        )
        for row in connection.execute(text(query)):
            id = f"forebay-alert-{row.alert}-{row.channel}"
            if row.state != "done" or not heard.get(id):
                raise Caught(f"the alert {row.alert} is {row.state} for channel {row.channel}, and came {heard.get(id, 0)} times")

    def reached(self, connection: Connection, limits: LimitBook) -> dict[str, int]:
        """How often a week came where it is to come."""

        def count(query: str) -> int:
            return int(connection.execute(text(f"SELECT count(*) FROM {query}")).scalar_one())  # noqa: S608 - our own names

        return {
            "invoices": len(self.bills),
            "notes": sum(len(bill.notes) for bill in self.bills),
            "late": sum(bill.late for bill in self.bills),
            "planned": sum(bill.planned != 0 for bill in self.bills),
            "taxed": sum(bill.tax != 0 for bill in self.bills),
            "credits used": sum(bill.used != 0 for bill in self.bills),
            "carried over": sum(bill.carried != 0 for bill in self.bills),
            "paid": sum(bill.paid != 0 for bill in self.bills),
            "void": sum(bill.voided != 0 for bill in self.bills),
            "corrections": len(self._corrected),
            "credits lapsed": count("credit_moves WHERE kind = 'expire'"),
            "credits refunded": count("credit_moves WHERE kind = 'refund'"),
            "credits never mirrored": count("payment_outbox WHERE kind = 'credit_grant' AND note LIKE '%expired%'"),
            "holds expired": count("holds JOIN transactions ON transactions.id = closed_by WHERE kind = 'expire'"),
            "closed by the clock": count("audit WHERE action = 'invoice.finalise' AND who = 'billing'"),
            "alerts": count("budget_alerts"),
            "alerts brought": count("alert_deliveries WHERE state = 'done'"),
            "alerts brought again": count("alert_deliveries WHERE state = 'done' AND attempts > 1"),
            "paid at Stripe": count("settlements WHERE method = 'stripe'"),
            "reports": count("payment_events WHERE type LIKE 'v1.billing.meter.%'"),
            "drained": len(limits.drained),
            "drained in a month": sum(window == "month" for _, window in limits.drained),
            "drained notebooks": sum(subject[2] is not None for subject, _ in limits.drained),
            "overspent within the bound": sum(over > 0 for over in limits.overspent),
        }  # fmt: skip

    def _posted_at(self, connection: Connection, transaction: int) -> int:
        query = text("SELECT posted_at_ns FROM transactions WHERE id = :id")
        return int(connection.execute(query, {"id": transaction}).scalar_one())

    def check_stripe(self, emulator: Emulator, connection: Connection, hours: dict[tuple[str, int], int], mode: str) -> None:
        """Stripe has our invoices; or each hour once, to the nano-unit, at the meter or in an item of the next invoice."""
        if emulator.shape_faults:
            raise Caught(f"Stripe was called wrongly: {emulator.shape_faults[0]}")
        check_grants(emulator, connection)
        if mode == "invoices":
            check_invoices(emulator, self.bills, connection)
        else:
            check_items(emulator, self.bills)
            self._check_hours(emulator, connection, hours)

    def _check_hours(self, emulator: Emulator, connection: Connection, hours: dict[tuple[str, int], int]) -> None:
        tenants = {c["id"]: c["metadata"]["forebay_tenant"] for c in emulator.account.of("customer")}
        if len(set(tenants.values())) != len(tenants):
            raise Caught(f"a tenant is more than one customer: {sorted(tenants.values())}")
        counted: dict[tuple[str, int], int] = defaultdict(int)
        for event in emulator.meters.counted:
            counted[tenants[event.customer], event.timestamp * 10**9] += event.value
        late: dict[str, int] = defaultdict(int)
        known = "SELECT tenant, hour_ns, value FROM payment_meter_hours WHERE late IS NOT NULL AND sequence > 0"
        for row in connection.execute(text(known)):
            counted[row.tenant, row.hour_ns] += row.value
            late[row.tenant] += row.value
        self._same_amounts("Stripe's hours", counted, {key: nearest(grains, NANO) for key, grains in hours.items()})
        items = [item for item in emulator.account.of("invoiceitem") if "forebay_late" in item["metadata"]]
        if len({item["metadata"]["forebay_late"] for item in items}) != len(items):
            raise Caught("an item is twice at Stripe")
        asked: dict[str, int] = defaultdict(int)
        for item in items:
            asked[tenants[item["customer"]]] += item["amount"]
        coins = {tenant: nearest(nano * NANO, CURRENCIES[tenant][1]) for tenant, nano in late.items()}
        self._same_amounts("Stripe's items", asked, coins)


def _record_of(lease: Mapping[str, Any]) -> UsageRecord:
    """An open lease of a heartbeat as the record that it would make."""
    span = wire.Span(**lease["span"])
    return UsageRecord(
        lease["record"], lease["tenant"], lease["user"], lease["session"], lease["lease"], span, lease["flavor"], lease["device_model"],
        lease["devices"], lease["started_at_ns"], lease["duration_ns"], "drained", share_milli=lease["share_milli"],
    )  # fmt: skip


def _by_month(parts: Sequence[Part]) -> dict[str, int]:
    """Grains."""
    found: dict[str, int] = defaultdict(int)
    for part in parts:
        found[part.month] += part.grains
    return found


def _alerts(connection: Connection) -> dict[Alert, int]:
    """When each threshold of a budget was first told of."""
    query = (
        "SELECT tenant, user_name, notebook, period, threshold, budget_alerts.limit_milli AS milli, "
        "budget_alerts.limit_grains AS grains, at_ns FROM budget_alerts JOIN budgets ON budgets.id = budget_id"
    )
    return {
        ((row.tenant, row.user_name, row.notebook), row.period, row.threshold, (row.milli * MILLI + row.grains) // NANO): row.at_ns
        for row in connection.execute(text(query))
    }


def _enter(sheet: Sheet, record: UsageRecord, part: Part, why: str, sign: int) -> None:
    """A part that counts, or is taken back."""
    if record.parked_bytes is not None:
        sheet.lines[record.user, record.flavor, why.replace("late", "")] += sign * part.grains
        sheet.parked += sign * part.grains
    else:
        sheet.lines[record.user, record.flavor, *part.rate, why] += sign * part.grains
        sheet.held[record.flavor, part.grains // max(1, part.duration_ns)] += sign * part.duration_ns
    sheet.hours[part.started_at_ns // HOUR_NS * HOUR_NS] += sign * part.grains


def _owed(accounts: dict[tuple[str, str, str], int]) -> dict[tuple[str, str, str], int]:
    """By tenants, and to who levies the tax."""
    return {key: grains for key, grains in accounts.items() if re.match("receivable:|tax$", key[0])}


def prices_of(answers: Iterable[dict[str, Any]]) -> Iterator[Price]:
    """From what billing answered to who set them: prices of flavors and surcharges of models."""
    for answer in answers:
        of_model = "model" in answer
        name = MODEL + answer["model"] if of_model else answer["flavor"]
        amount = answer["surcharge_nano_per_hour" if of_model else "price_nano_per_hour"]
        yield Price(name, answer["currency"], answer["version"], amount, answer["valid_from_ns"])

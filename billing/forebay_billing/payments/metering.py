"""Billing Meters: hourly sums of money, late hours another way.

A meter counts nano-units of its currency, so that surcharges, shares of devices and price changes within the hour are in it exactly, and
one price at Stripe (one nano-unit costs one nano-unit) serves for ever. Device time would need a meter and a price for each of
our price versions. Values are whole numbers, since the books' grains are rounded half-even once per tenant, meter and hour.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product

import stripe
from sqlalchemy import ColumnElement, Connection, delete, func, insert, select

from forebay_billing.payments.amounts import meter_parts, minor_of_nano, nano_of_minor
from forebay_billing.payments.gateway import PAGE_OBJECTS, Gateway
from forebay_billing.rules.retries import StripeFailure
from forebay_billing.tables.payments import marks, meter_hours
from forebay_billing.tables.payments import outbox as outbox_table
from forebay_billing.writes import payment_outbox
from forebay_billing.writes.payment_orders import ChangedHour, LateUsage, Mark, MeterEvent, MeterHour, order_of
from forebay_billing.writes.payment_outbox import Claim

HOUR_NS = 3600 * 10**9
PAST_NS_MAX = 35 * 86_400 * 10**9
"""Stripe takes timestamps of the past 35 calendar days …"""
PAST_NS_KEPT_BACK = 86_400 * 10**9
"""… of which a day is kept back, for retries and days of other lengths. It takes 5 minutes ahead too; hours are sent once they are over."""
COUNTED_NS = 3600 * 10**9
"""Stripe counts what it took after a while; its sum of an hour proves something once it has had so long for the last event of the hour,
also one of which nobody knows whether it came."""
NEVER = "never"
"""Marks what an hour had before these payments began: no item, and none of the meter's."""
UNCERTAIN_MAX = 12
"""Events of an hour of which nobody knows whether Stripe took them: more cannot be told apart by the sum."""


def too_old(hour_ns: int, now_ns: int) -> bool:
    """Whether the hour must go another way than the meter's."""
    return hour_ns < now_ns - PAST_NS_MAX + PAST_NS_KEPT_BACK


def identifier(held: Claim) -> str:
    """The meter event's identifier: the same for every try of a row until an operator asks for another."""
    return f"forebay-{held.idempotency}"


def late_usage(events: Sequence[MeterEvent], carried_nano: int = 0) -> LateUsage:
    """One item for the hours of one tenant and currency, named after the first of them; with what earlier items were rounded by."""
    first = min(events, key=lambda event: (event.hour_ns, event.meter, event.sequence))
    last = max(event.hour_ns for event in events)
    total = sum(event.value for event in events) + carried_nano
    return LateUsage(
        id=first.subject,
        tenant=first.tenant,
        currency=first.currency,
        amount_minor=minor_of_nano(total, first.currency),
        description=f"Usage of {len({event.hour_ns for event in events})} earlier hours",
        started_at_ns=first.hour_ns,
        ended_at_ns=last + HOUR_NS,
    )


@dataclass(frozen=True)
class News:
    """``hours``: all of the window in which something was used; ``changed``: earlier ones to which something came; read up to ``mark``."""

    hours: Sequence[MeterHour]
    changed: Sequence[ChangedHour]
    mark: Mark


def mark_of(connection: Connection) -> Mark | None:
    """How far the books were read before; None where they never were."""
    found: dict[str, int] = {row.name: row.value for row in connection.execute(select(marks.c.name, marks.c.value))}
    return Mark(found["usage"], found["transaction"]) if found else None


def collect(connection: Connection, news: News, since_ns: int, now_ns: int) -> int:
    """Puts into the outbox what the hours have more (or less) than was handed over before; gives the number of new rows.

    Only hours that are over count. Records that come late make further events of their hour, those too late for the meter one item.
    """
    made = 0
    late: dict[tuple[str, str], list[MeterEvent]] = {}
    present = {(hour.tenant, hour.meter, hour.hour_ns): hour for hour in news.hours}
    for known in _handed_over(connection, since_ns, now_ns, meter_hours.c.sequence > 0):
        present.setdefault((known.tenant, known.meter, known.hour_ns), replace(known, value=0))
    for changed in news.changed:
        present[changed.hour.tenant, changed.hour.meter, changed.hour.hour_ns] = changed.hour
        _begin_with(connection, changed)
    for _, hour in sorted(present.items()):
        if hour.hour_ns + HOUR_NS > now_ns:
            continue
        for event in _missing(connection, hour):
            if too_old(hour.hour_ns, now_ns):
                late.setdefault((hour.tenant, hour.currency), []).append(event)
                continue
            payment_outbox.put(connection, event, now_ns)
            _note(connection, event, None)
            made += 1
    for (tenant, currency), events in late.items():
        item = late_usage(events, _carried_nano(connection, tenant, currency))
        for event in events:
            _note(connection, event, item.id)
        if item.amount_minor:
            payment_outbox.put(connection, item, now_ns)
            made += 1
    _put_mark(connection, news.mark)
    return made


def _missing(connection: Connection, hour: MeterHour) -> list[MeterEvent]:
    """What was not handed over of an hour yet."""
    key = (meter_hours.c.tenant == hour.tenant) & (meter_hours.c.meter == hour.meter) & (meter_hours.c.hour_ns == hour.hour_ns)
    rows = connection.execute(select(meter_hours.c.value, meter_hours.c.sequence).where(key)).all()
    sequence = max((row.sequence for row in rows), default=0)
    return [
        MeterEvent(hour.tenant, hour.meter, hour.currency, hour.hour_ns, sequence + position, part)
        for position, part in enumerate(meter_parts(hour.value - sum(row.value for row in rows)), 1)
    ]


def _begin_with(connection: Connection, changed: ChangedHour) -> None:
    """Of an hour that was never handed over, since it was before these payments began, only what came after is Stripe's."""
    hour = changed.hour
    key = (meter_hours.c.tenant == hour.tenant) & (meter_hours.c.meter == hour.meter) & (meter_hours.c.hour_ns == hour.hour_ns)
    if connection.execute(select(meter_hours.c.sequence).where(key).limit(1)).first() is None:
        _note(connection, MeterEvent(hour.tenant, hour.meter, hour.currency, hour.hour_ns, 0, changed.before), NEVER)


def _carried_nano(connection: Connection, tenant: str, currency: str) -> int:
    """What the items of late usage so far have asked for too little, or too much where it is below zero."""
    c, o = meter_hours.c, outbox_table.c
    own = (c.tenant == tenant) & (c.currency == currency) & _of_items()
    exact = connection.execute(select(func.coalesce(func.sum(c.value), 0)).where(own)).scalar_one()
    bodies = connection.execute(select(o.body).where(o.tenant == tenant, o.kind == "late_usage")).scalars()
    asked = (order for order in map(order_of, bodies) if isinstance(order, LateUsage) and order.currency == currency)
    return int(exact) - nano_of_minor(sum(order.amount_minor for order in asked), currency)


def _put_mark(connection: Connection, mark: Mark) -> None:
    connection.execute(delete(marks))
    values = {"usage": mark.usage_id, "transaction": mark.transaction_id}
    connection.execute(insert(marks), [{"name": name, "value": value} for name, value in values.items()])


@dataclass(frozen=True)
class HourFacts:
    """The sum of an hour's events that Stripe has taken for sure, those (sequence, value) of which nobody knows, by sequence, and when
    any of all these was sent last, Unix time in nanoseconds."""

    taken: int
    uncertain: tuple[tuple[int, int], ...]
    sent_at_ns: int = 0


def hour_facts(connection: Connection, event: MeterEvent) -> HourFacts:
    """What became of the hour's events that were sent."""
    c, o = meter_hours.c, outbox_table.c
    of_hour = (c.tenant == event.tenant) & (c.meter == event.meter) & (c.hour_ns == event.hour_ns) & c.late.is_(None)
    values: dict[int, int] = {row.sequence: row.value for row in connection.execute(select(c.sequence, c.value).where(of_hour))}
    subjects = {replace(event, sequence=sequence).subject: sequence for sequence in values}
    rows = connection.execute(
        select(o.subject, o.state, o.sent_at_ns)
        .where(o.kind == "meter_event", o.subject.in_(sorted(subjects)), o.state != "skipped", o.sent_at_ns.is_not(None))
    )
    found = sorted(rows.all(), key=lambda row: subjects[row.subject])
    done = sum(values[subjects[row.subject]] for row in found if row.state == "done")
    unknown = [subjects[row.subject] for row in found if row.state != "done"]
    last_ns = max((row.sent_at_ns for row in found), default=0)
    return HourFacts(done, tuple((sequence, values[sequence]) for sequence in unknown), last_ns)


def taken_of(counted: int, facts: HourFacts) -> frozenset[int] | None:
    """Which of the uncertain events Stripe's sum has in it: the first subset that explains it, None where none does.

    Where several do, any of them gives the right sum, as long as everybody chooses the same.
    """
    if len(facts.uncertain) > UNCERTAIN_MAX:
        return None
    for chosen in product((True, False), repeat=len(facts.uncertain)):
        inside = [event for event, is_in in zip(facts.uncertain, chosen, strict=True) if is_in]
        if facts.taken + sum(value for _, value in inside) == counted:
            return frozenset(sequence for sequence, _ in inside)
    return None


def due_at_stripe(connection: Connection, hours: Iterable[MeterHour], since_ns: int, until_ns: int) -> list[MeterHour]:
    """What the meters ought to count of ``hours``: all but what went as items."""
    gone = _handed_over(connection, since_ns, until_ns, meter_hours.c.late.is_not(None))
    late = {(hour.tenant, hour.meter, hour.hour_ns): hour.value for hour in gone}
    return [replace(hour, value=hour.value - late.get((hour.tenant, hour.meter, hour.hour_ns), 0)) for hour in hours]


def _handed_over(connection: Connection, since_ns: int, until_ns: int, which: ColumnElement[bool]) -> list[MeterHour]:
    """What was handed over, by hour."""
    c = meter_hours.c
    query = (
        select(c.tenant, c.meter, c.currency, c.hour_ns, func.sum(c.value))
        .where(c.hour_ns >= since_ns, c.hour_ns < until_ns, which)
        .group_by(c.tenant, c.meter, c.currency, c.hour_ns)
    )
    rows = connection.execute(query)
    return [MeterHour(tenant, meter, currency, hour_ns, int(value)) for tenant, meter, currency, hour_ns, value in rows]


def move_to_item(connection: Connection, event: MeterEvent, now_ns: int) -> None:
    """Hands ``event`` over as an item after all."""
    c, item = meter_hours.c, late_usage([event], _carried_nano(connection, event.tenant, event.currency))
    condition = (c.tenant == event.tenant) & (c.meter == event.meter) & (c.hour_ns == event.hour_ns) & (c.sequence == event.sequence)
    connection.execute(meter_hours.update().where(condition).values(late=item.id))
    if item.amount_minor:
        payment_outbox.put(connection, item, now_ns)


def late_minor(connection: Connection) -> dict[tuple[str, str], int]:
    """What the items of late usage ought to sum to, by tenant and currency: rounded half-even once, however many they are."""
    c = meter_hours.c
    query = select(c.tenant, c.currency, func.sum(c.value)).where(_of_items()).group_by(c.tenant, c.currency)
    return {(tenant, currency): minor_of_nano(int(nano), currency) for tenant, currency, nano in connection.execute(query)}


def _of_items() -> ColumnElement[bool]:
    return meter_hours.c.late.is_not(None) & (meter_hours.c.late != NEVER)


def _note(connection: Connection, event: MeterEvent, late: str | None) -> None:
    connection.execute(
        insert(meter_hours).values(
            tenant=event.tenant, meter=event.meter, hour_ns=event.hour_ns, sequence=event.sequence, currency=event.currency,
            value=event.value, late=late,
        )
    )  # fmt: skip


class Meters:
    """Meters and their events at Stripe. Methods raise StripeFailure."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._ids: dict[str, str] = {}
        self._lock = threading.Lock()

    def ensure(self, name: str, held: Claim) -> str:
        """The id of the meter that takes events called ``name``; makes one where there is none. Asks again where the row failed before."""
        with self._lock:
            if held.look or name not in self._ids:
                self._ids[name] = self.find(name) or self._create(name, held)
            return self._ids[name]

    def find(self, name: str) -> str | None:
        """Its id, None where there is none. Refuses one that was deactivated: whoever did that had a reason."""

        def read(client: stripe.StripeClient) -> tuple[str, str] | None:
            meters = client.v1.billing.meters.list({"limit": PAGE_OBJECTS}).auto_paging_iter()
            return next(((meter.id, str(meter.status)) for meter in meters if meter.event_name == name), None)

        found = self._gateway.call("meter.look", read)
        if found is not None and found[1] != "active":
            raise StripeFailure("refused", f"The meter {name} was deactivated at Stripe; reactivate it, then retry.")
        return None if found is None else found[0]

    def _create(self, name: str, held: Claim) -> str:
        params: stripe.params.billing.MeterCreateParams = {
            "display_name": f"{name} (nano-units)",
            "event_name": name,
            "default_aggregation": {"formula": "sum"},
            "customer_mapping": {"type": "by_id", "event_payload_key": "stripe_customer_id"},
            "value_settings": {"event_payload_key": "value"},
        }
        options: stripe.RequestOptions = {"idempotency_key": held.key("meter")}
        return self._gateway.call("meter.create", lambda client: client.v1.billing.meters.create(params, options)).id

    def send(self, held: Claim, order: MeterEvent, customer: str) -> None:
        """One event, timed at its hour's start."""
        params: stripe.params.billing.MeterEventCreateParams = {
            "event_name": order.meter,
            "identifier": identifier(held),
            "timestamp": order.hour_ns // 10**9,
            "payload": {"stripe_customer_id": customer, "value": str(order.value)},
        }
        try:
            self._gateway.call(
                "meter_event.create", lambda client: client.v1.billing.meter_events.create(params, {"idempotency_key": held.key("event")})
            )
        except StripeFailure as failure:
            if failure.cause != "refused" or "already exists" not in str(failure):
                raise

    def hour_sum(self, meter: str, customer: str, hour_ns: int) -> int:
        """What Stripe has counted in the hour; it counts after a while."""

        def read(client: stripe.StripeClient) -> int:
            params: stripe.params.billing.MeterEventSummaryListParams = {
                "customer": customer,
                "start_time": hour_ns // 10**9,
                "end_time": (hour_ns + HOUR_NS) // 10**9,
                "value_grouping_window": "hour",
                "limit": PAGE_OBJECTS,
            }
            summaries = client.v1.billing.meters.event_summaries.list(meter, params)
            return sum(round(summary.aggregated_value) for summary in summaries.auto_paging_iter())

        return self._gateway.call("meter_event.look", read)

    def taken(self, meter: str, order: MeterEvent, customer: str, facts: HourFacts, now_ns: int) -> bool:
        """Whether the hour's sum has the event in it already. Where the sum is not to be explained, it may be by and by."""
        if order.sequence not in dict(facts.uncertain):
            return False
        if now_ns < facts.sent_at_ns + COUNTED_NS:
            raise StripeFailure("conflict", f"Stripe may not have counted all of the hour of {order.subject} yet: its sum proves nothing.")
        counted = self.hour_sum(meter, customer, order.hour_ns)
        inside = taken_of(counted, facts)
        if inside is None:
            raise StripeFailure(
                "conflict",
                f"Stripe counts {counted} in the hour of {order.subject}; {facts.taken} was taken, and no part of what is uncertain "
                "makes up for the rest. Compare with the reconciliation, then skip this or try again.",
            )
        return order.sequence in inside

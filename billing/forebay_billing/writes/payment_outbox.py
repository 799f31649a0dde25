"""The transactional outbox: rows written with their cause, claimed with a token, settled only by whoever holds it.

A tenant's rows go out in order, with two exceptions: sums do not mind the order of meter events, so one that fails holds nothing up; and a
changed contact overtakes what failed for want of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from forebay_service.claims import Claims
from sqlalchemy import Connection, Integer, Select, and_, bindparam, func, insert, or_, select, update

from forebay_billing.errors import RecordConflict, UnknownRecord
from forebay_billing.rules.retries import KEYS_KEPT_NS
from forebay_billing.tables.payments import outbox
from forebay_billing.writes.payment_orders import Customer, Order, order_of, text_of

NOTE_CHARS_MAX = 2000
CLAIMS = Claims(outbox, claim_seconds=300, note_characters_max=NOTE_CHARS_MAX)
CLAIMED_MAX = 64
LOOK_BACK_SECONDS = 3600
EXPIRED = "expired before Stripe could be told of it"
"""The note of a credit that was never mirrored."""
VOID = "its invoice is void at Stripe, where nothing is left to be taken back"
"""The note of a credit note that was never mirrored."""
ROWS_SHOWN_MAX = 500


@dataclass(frozen=True)
class Claim:
    """A row that is being sent. ``attempt`` is the token: whoever claims it again has a higher one."""

    id: int
    order: Order
    idempotency: str
    generation: int
    attempt: int
    created_at_ns: int
    first_tried_at_ns: int
    look: bool
    """Whether an earlier try may have happened without the idempotency key saying so: look for its traces before sending."""

    @property
    def row(self) -> dict[str, object]:
        """The columns of its primary key."""
        return {"id": self.id}

    def key(self, step: str) -> str:
        """The idempotency key of one call."""
        return f"forebay-{self.idempotency}-{self.generation}-{step}"

    @property
    def created_since(self) -> int:
        """Unix seconds before which nothing of the row can have been created, with slack between our clock and Stripe's."""
        return max(0, self.created_at_ns // 10**9 - LOOK_BACK_SECONDS)


def put(connection: Connection, order: Order, now_ns: int) -> int:
    """Writes ``order`` in the caller's transaction and gives the row's id; the same again changes nothing.

    A tenant's first order is preceded by its customer. Raises RecordConflict where another order has the same name.
    """
    text = text_of(order)
    named = (outbox.c.kind == order.kind) & (outbox.c.subject == order.subject)
    found = connection.execute(select(outbox.c.id, outbox.c.body).where(named)).first()
    if found is not None:
        if found.body != text:
            raise RecordConflict(f"The {order.kind} {order.subject} was handed over before with another content; both stay as they are.")
        return int(found.id)
    if not isinstance(order, Customer) and not _has_customer(connection, order.tenant):
        put(connection, Customer(order.tenant, order.tenant, None, order.currency, 0), now_ns)
    look = _supersede(connection, order, now_ns) if isinstance(order, Customer) else 0
    row_id = _next_id(connection)
    idempotency = hashlib.sha256(f"{row_id}\n{now_ns}\n{text}".encode()).hexdigest()[:40]
    connection.execute(
        insert(outbox).values(
            id=row_id, tenant=order.tenant, kind=order.kind, subject=order.subject, body=text, idempotency=idempotency, generation=0,
            look=look, state="waiting", attempts=0, created_at_ns=now_ns, next_at_ns=now_ns,
        )
    )  # fmt: skip
    return row_id


def _due() -> Select[Any]:
    """Rows that are due at ``now_ns``, oldest first, ``most`` of them, at most one of a tenant unless they are meter events."""
    earlier = outbox.alias("earlier")
    blocked = (
        select(earlier.c.id)
        .where(
            earlier.c.tenant == outbox.c.tenant,
            earlier.c.id < outbox.c.id,
            or_(
                and_(earlier.c.kind == "customer", earlier.c.state == "waiting"),
                and_(outbox.c.kind != "customer", earlier.c.kind != "meter_event", earlier.c.state.in_(("waiting", "dead"))),
            ),
        )
        .exists()
    )
    return (
        select(outbox)
        .where(outbox.c.state == "waiting", outbox.c.next_at_ns <= bindparam("now_ns"), ~blocked)
        .order_by(outbox.c.next_at_ns, outbox.c.id)
        .limit(bindparam("most", type_=Integer))
    )


_DUE = _due()


def claim(connection: Connection, now_ns: int, limit: int = CLAIMED_MAX) -> list[Claim]:
    """The rows that are due. Each is the caller's for ``CLAIMS.claim_ns``."""
    due = [_claim_of(row, now_ns) for row in connection.execute(_DUE, {"now_ns": now_ns, "most": limit})]
    return [held for held in due if CLAIMS.claim(connection, held, now_ns, first_tried_at_ns=held.first_tried_at_ns)]


def later(connection: Connection, held: Claim, at_ns: int, look: bool, reason: str) -> bool:
    """Tries again from ``at_ns`` on; with ``look`` under a new key, after a look whether it happened."""
    anew = {"look": 1, "generation": held.generation + 1} if look else {}
    return CLAIMS.later(connection, held, at_ns, reason, **anew)


def bury(connection: Connection, idempotency: str, now_ns: int, error: str) -> bool:
    """Makes a dead letter of what Stripe took and threw away later, even while its answer is awaited; false where no row has that name."""
    changed = connection.execute(
        update(outbox)
        .where(outbox.c.idempotency == idempotency, outbox.c.state.in_(("done", "waiting")))
        .values(state="dead", settled_at_ns=now_ns, note=error[:NOTE_CHARS_MAX])
    )
    return changed.rowcount == 1


def retry(connection: Connection, row_id: int, now_ns: int) -> None:
    """Sends a dead letter again, under new keys and after a look. Raises UnknownRecord where there is none."""
    row = _dead_row(connection, row_id)
    fresh = hashlib.sha256(f"{row.idempotency}\n{now_ns}".encode()).hexdigest()[:40]
    values = {"state": "waiting", "idempotency": fresh, "generation": 0, "look": 1, "next_at_ns": now_ns, "first_tried_at_ns": None}
    connection.execute(update(outbox).where(outbox.c.id == row_id).values(**values, settled_at_ns=None))


def skip(connection: Connection, row_id: int, now_ns: int, reason: str) -> None:
    """Gives a dead letter up, so that the tenant's later rows go on. Raises UnknownRecord where there is none."""
    _dead_row(connection, row_id)
    values = {"state": "skipped", "settled_at_ns": now_ns, "note": reason[:NOTE_CHARS_MAX]}
    connection.execute(update(outbox).where(outbox.c.id == row_id).values(**values))


def rows(connection: Connection, state: str | None, tenant: str | None) -> Sequence[Any]:
    """The newest rows, as an operator sees them."""
    query = select(outbox).order_by(outbox.c.id.desc()).limit(ROWS_SHOWN_MAX)
    if state is not None:
        query = query.where(outbox.c.state == state)
    if tenant is not None:
        query = query.where(outbox.c.tenant == tenant)
    return connection.execute(query).all()


def counts(connection: Connection) -> dict[str, int]:
    """How many rows are in each state."""
    return {state: count for state, count in connection.execute(select(outbox.c.state, func.count()).group_by(outbox.c.state))}


def never_mirrored(connection: Connection) -> set[str]:
    """The credits, and credit notes, that Stripe had no use for when they could be sent."""
    settled = (outbox.c.state == "done") & outbox.c.note.in_((EXPIRED, VOID))
    return set(connection.execute(select(outbox.c.subject).where(settled)).scalars())


def _claim_of(row: Any, now_ns: int) -> Claim:
    first = now_ns if row.first_tried_at_ns is None else row.first_tried_at_ns
    look = bool(row.look) or now_ns - first >= KEYS_KEPT_NS
    return Claim(row.id, order_of(row.body), row.idempotency, row.generation, row.attempts + 1, row.created_at_ns, first, look)


def _dead_row(connection: Connection, row_id: int) -> Any:
    row = connection.execute(select(outbox).where(outbox.c.id == row_id)).first()
    if row is None or row.state != "dead":
        raise UnknownRecord(f"There is no dead letter {row_id}; list them with api/payments/outbox?state=dead.")
    return row


def _supersede(connection: Connection, order: Customer, now_ns: int) -> int:
    """Gives up older versions of a contact that failed; 1 where one of them may have happened."""
    older = (outbox.c.tenant == order.tenant) & (outbox.c.kind == "customer") & (outbox.c.state == "dead")
    values = {"state": "skipped", "settled_at_ns": now_ns, "note": f"superseded by version {order.version}"}
    return min(1, connection.execute(update(outbox).where(older).values(**values)).rowcount)


def _has_customer(connection: Connection, tenant: str) -> bool:
    query = select(outbox.c.id).where(outbox.c.tenant == tenant, outbox.c.kind == "customer").limit(1)
    return connection.execute(query).first() is not None


def _next_id(connection: Connection) -> int:
    largest: int | None = connection.execute(select(func.max(outbox.c.id))).scalar_one()
    return 1 if largest is None else largest + 1

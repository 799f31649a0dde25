"""Who is asked to pay for a tenant: name and address for Stripe, versioned, each change audited and sent."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from sqlalchemy import Connection, insert, select, update

from forebay_billing.ledger.books import Books
from forebay_billing.tables.payments import contacts
from forebay_billing.writes import payment_outbox
from forebay_billing.writes.payment_orders import Customer


@dataclass(frozen=True)
class Contact:
    """The latest version."""

    tenant: str
    version: int
    name: str
    email: str | None
    changed_at_ns: int
    changed_by: str


def all_of(connection: Connection) -> list[Contact]:
    """The contacts of all tenants that have one."""
    return [Contact(**row._mapping) for row in connection.execute(select(contacts))]


def find(connection: Connection, tenant: str) -> Contact | None:
    """The contact of ``tenant``, None where none was set."""
    row = connection.execute(select(contacts).where(contacts.c.tenant == tenant)).first()
    return None if row is None else Contact(row.tenant, row.version, row.name, row.email, row.changed_at_ns, row.changed_by)


def change(books: Books, tenant: str, name: str, email: str | None, currency: str, who: str, now_ns: int) -> Contact:
    """Sets the contact and hands it over to be sent; the same again still sends it, which makes a customer anew that Stripe lost."""
    connection = books.connection
    before = find(connection, tenant)
    after = Contact(tenant, 1 if before is None else before.version + 1, name, email, now_ns, who)
    if before is None:
        connection.execute(insert(contacts).values(**asdict(after)))
    else:
        connection.execute(update(contacts).where(contacts.c.tenant == tenant).values(**asdict(after)))
    books.append_audit(now_ns, who, "payments.contact", tenant, None if before is None else asdict(before), asdict(after))
    payment_outbox.put(connection, Customer(tenant, name, email, currency, after.version), now_ns)
    return after

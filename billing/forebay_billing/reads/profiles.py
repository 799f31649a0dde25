"""Whom invoices are made out to: a billing profile per tenant, in versions, each change audited."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from forebay_service.errors import Fault
from forebay_service.preconditions import ANYHOW, Precondition
from sqlalchemy import Connection, Row, select

from forebay_billing.errors import NotNow
from forebay_billing.ledger.books import Books
from forebay_billing.ledger.postings import receivable
from forebay_billing.rules.etags import check_expected
from forebay_billing.rules.invoices import Profile, check_profile
from forebay_billing.tables import schema
from forebay_billing.tables.invoices import credit_grants, profiles


@dataclass(frozen=True)
class Version:
    """A profile as it was changed."""

    profile: Profile
    version: int
    changed_at_ns: int
    changed_by: str

    @property
    def tag(self) -> str:
        """What a change may expect to stand."""
        return f'"{self.version}"'


def find(connection: Connection, tenant: str) -> Version | None:
    """The latest version; None where none was set."""
    query = select(profiles).where(profiles.c.tenant == tenant).order_by(profiles.c.version.desc()).limit(1)
    row = connection.execute(query).first()
    return None if row is None else version_of(row)


def version_of(row: Row[Any]) -> Version:
    """The version in a row of ``profiles``."""
    return Version(_profile(row), row.version, row.changed_at_ns, row.changed_by)


def profile_of(connection: Connection, tenant: str) -> Profile:
    """The tenant's profile; its name alone, without tax, where none was set."""
    found = find(connection, tenant)
    return Profile(tenant, tenant) if found is None else found.profile


def change(books: Books, profile: Profile, who: str, now_ns: int, expected: Precondition = ANYHOW) -> Version:
    """Appends a version; it counts for what is finalised from then on. Raises PreconditionFailed, InvalidProfile, NotNow.

    The currency stays once anything was recorded in it: what a record costs must not depend on when it arrives.
    """
    before = find(books.connection, profile.tenant)
    check_expected(expected, None if before is None else before.tag)
    check_profile(profile)
    if (None if before is None else before.profile.currency) != profile.currency and _has_books(books.connection, profile.tenant):
        sentence = f"The tenant {profile.tenant} has usage or credits already, so its currency stays as it is; leave it out."
        raise NotNow(sentence, Fault("currency_fixed"))
    made = Version(profile, 1 if before is None else before.version + 1, now_ns, who)
    books.append_profile(asdict(profile) | {"version": made.version, "changed_at_ns": now_ns, "changed_by": who})
    was = None if before is None else asdict(before.profile)
    books.append_audit(now_ns, who, "profile.change", profile.tenant, was, asdict(profile))
    return made


def _has_books(connection: Connection, tenant: str) -> bool:
    used = select(schema.accounts.c.id).where(schema.accounts.c.name == receivable(tenant))
    granted = select(credit_grants.c.id).where(credit_grants.c.tenant == tenant).limit(1)
    return any(connection.execute(query).first() is not None for query in (used, granted))


def _profile(row: Row[Any]) -> Profile:
    return Profile(**{name: getattr(row, name) for name in Profile.__dataclass_fields__})

"""Changes prices of flavors, models and parked bytes. Every function runs in the writer's transaction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

from forebay_service.preconditions import ANYHOW, Precondition

from forebay_billing.ledger.books import Books
from forebay_billing.model.types import PARKED, AnyPrice, ParkedPrice, PriceVersion, SurchargeVersion, priced_model
from forebay_billing.rules.etags import check_expected
from forebay_billing.rules.price_list import Change, PriceList, changes, prices_tag
from forebay_billing.rules.prices import seed_prices


def seed(books: Books, now_ns: int) -> int:
    """Writes version 1 of all prices where the book is empty; returns how many."""
    if books.prices():
        return 0
    versions = seed_prices(now_ns)
    for version in versions:
        append_price(books, None, version)
    return len(versions)


def change_price(
    books: Books,
    flavor: str,
    currency: str,
    price_nano_per_hour: int,
    valid_from_ns: int | None,
    clock_ns: Callable[[], int],
    who: str,
    new: bool = False,
    expected: Precondition = ANYHOW,
) -> PriceVersion:
    """Appends a version, and says so in the audit. ``expected`` is of all versions in the currency.

    Raises PreconditionFailed; see :meth:`PriceBook.next_version`.
    """
    book, past = books.price_book(), books.past(flavor, currency)
    check_expected(expected, book.tag(flavor, currency))
    version = book.next_version(flavor, currency, price_nano_per_hour, valid_from_ns, clock_ns(), who, new, past)
    append_price(books, book.at(flavor, currency, version.valid_from_ns), version)
    return version


def change_parked_price(
    books: Books, currency: str, price_nano_per_gib_hour: int, valid_from_ns: int | None, clock_ns: Callable[[], int], who: str,
    expected: Precondition = ANYHOW,
) -> ParkedPrice:  # fmt: skip
    """Appends a version, and says so in the audit. ``expected`` is of all versions in the currency.

    Raises PreconditionFailed; see :meth:`ParkedBook.next_version`.
    """
    book, past = books.parked_book(), books.past(PARKED, currency)
    check_expected(expected, book.tag(PARKED, currency))
    version = book.next_version(currency, price_nano_per_gib_hour, valid_from_ns, clock_ns(), who, past)
    append_price(books, book.at(PARKED, currency, version.valid_from_ns), version)
    return version


def change_surcharge(
    books: Books, model: str, currency: str, nano_per_hour: int, valid_from_ns: int | None, clock_ns: Callable[[], int], who: str,
    expected: Precondition = ANYHOW,
) -> SurchargeVersion:  # fmt: skip
    """Appends a version, and says so in the audit. ``expected`` is of all versions in the currency.

    Raises PreconditionFailed; see :meth:`SurchargeBook.next_version`.
    """
    book, key = books.price_book().surcharges, priced_model(model)
    check_expected(expected, book.tag(key, currency))
    version = book.next_version(model, currency, nano_per_hour, valid_from_ns, clock_ns(), who, books.past(key, currency))
    append_price(books, book.at(key, currency, version.valid_from_ns), version)
    return version


def apply_price_list(
    books: Books, wanted: PriceList, clock_ns: Callable[[], int], who: str, expected: Precondition = ANYHOW
) -> list[Change]:
    """Makes the price book say what the list says, all of it or nothing; returns what that changed. ``expected`` is of all prices.

    Raises PreconditionFailed; see :func:`price_list.changes`.
    """
    book, parked = books.price_book(), books.parked_book()
    check_expected(expected, prices_tag(book, parked))
    found = changes(wanted, book, parked, books.past, clock_ns(), who)
    for change in found:
        append_price(books, change.before, change.after)
    return found


def append_price(books: Books, before: AnyPrice | None, version: AnyPrice) -> None:
    """Writes a version that its book has made; ``before`` is what was in force at its start."""
    if isinstance(version, ParkedPrice):
        books.append_parked_price(version)
    elif isinstance(version, SurchargeVersion):
        books.append_surcharge(version)
    else:
        books.append_price(version)
    subject = f"{version.flavor}/{version.currency}"
    was = None if before is None else asdict(before)
    books.append_audit(version.changed_at_ns, version.changed_by, "price.change", subject, was, asdict(version))

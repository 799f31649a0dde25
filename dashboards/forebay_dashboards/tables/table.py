"""Tables that are searched, sorted and paged here, so that a browser gets one page of however many rows. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nlargest, nsmallest
from typing import Any, Generic, Literal
from urllib.parse import urlencode

from forebay_service.languages import Text

from forebay_dashboards.errors import FormError
from forebay_dashboards.live.pool_copy import R, Seen

ROWS_PER_PAGE = 50
SEARCH_CHARACTERS_MAX = 200
PAGE_MAX = 10**6
PACE_MS_MIN = 500
PACE_MS_MAX = 10_000
SHARE_MAX = 0.1
"""A browser asks for a page so seldom that making it takes at most this part of a core."""

Order = Literal["asc", "desc"]


@dataclass(frozen=True)
class Column(Generic[R]):
    """``sort`` gives what rows are ordered by; None: they cannot be. ``width`` is a class of the style sheet."""

    name: str
    title: Text
    sort: Callable[[R], Any] | None = None
    width: str = ""
    number: bool = False


@dataclass(frozen=True)
class Table(Generic[R]):
    """What there is to see of one kind of rows. ``first`` is the column that sorts where nobody asked for another."""

    name: str
    title: Text
    topics: tuple[str, ...]
    columns: tuple[Column[R], ...]
    first: str
    order: Order
    hint: Text
    """What may be searched for."""
    empty: Text
    """What stands there instead of no rows."""

    def column(self, name: str) -> Column[R]:
        """The column that rows may be sorted by. Raises FormError."""
        for column in self.columns:
            if column.name == name and column.sort is not None:
                return column
        known = ", ".join(column.name for column in self.columns if column.sort is not None)
        raise FormError(
            Text(
                "There is no column “%(name)s” to sort “%(table)s” by; there are %(known)s.",
                name=name[:32],
                table=self.title,
                known=known,
            )
        )


@dataclass(frozen=True)
class Query:
    """What of a table is asked for; pages count from 1."""

    search: str
    sort: str
    order: Order
    page: int = 1

    def address(self, table: Table[Any], **changes: Any) -> str:
        """The part of an address behind the question mark that asks for this, with changes; empty for what is shown unasked."""
        asked = replace(self, **changes)
        wanted = {"q": asked.search, "sort": asked.sort, "order": asked.order, "page": asked.page}
        usual = {"q": "", "sort": table.first, "order": table.order, "page": 1}
        if (asked.sort, asked.order) != (table.first, table.order):
            usual |= {"sort": None, "order": None}
        return urlencode({name: value for name, value in wanted.items() if value != usual[name]})

    def turned(self, column: str) -> Query:
        """The first page, sorted by the column; the other way around where it is by that already."""
        other: Order = "desc" if (self.sort, self.order) == (column, "asc") else "asc"
        return replace(self, sort=column, order=other, page=1)


@dataclass(frozen=True)
class Page(Generic[R]):
    """Some of ``count`` rows that were found among ``among``; ``first`` is the number of the first one here."""

    rows: list[R]
    first: int
    count: int
    among: int
    query: Query
    pages: int


def read_query(arguments: Mapping[str, str], table: Table[Any]) -> Query:
    """What an address asks of the table. Raises FormError."""
    sort, order = arguments.get("sort") or table.first, arguments.get("order") or table.order
    table.column(sort)
    if order not in ("asc", "desc"):
        raise FormError(Text("Rows are ordered asc or desc, not “%(typed)s”.", typed=order[:32]))
    page = page_number(arguments.get("page") or "1")
    search = " ".join(arguments.get("q", "")[:SEARCH_CHARACTERS_MAX].split())
    return Query(search, sort, "asc" if order == "asc" else "desc", page)


def page_number(typed: str) -> int:
    """Raises FormError."""
    if not (typed.isascii() and typed.isdigit() and 1 <= int(typed) <= PAGE_MAX):
        raise FormError(Text("“%(typed)s” is no page's number; pages count from 1.", typed=typed[:32]))
    return int(typed)


def pages_of(count: int, rows_per_page: int = ROWS_PER_PAGE) -> int:
    """How many pages so many rows take; one where there are none."""
    return max(1, -(-count // rows_per_page))


def select(table: Table[R], rows: Collection[Seen[R]], query: Query) -> Page[Seen[R]]:
    """The page of those rows in which every word of the search occurs; the last one where there are not so many."""
    words = query.search.casefold().split()
    found = [seen for seen in rows if all(word in seen.text for word in words)] if words else list(rows)
    pages = pages_of(len(found))
    asked = replace(query, page=min(query.page, pages))
    sort = table.column(query.sort).sort
    if sort is None:
        raise ValueError(f"{query.sort} sorts nothing")
    skipped = (asked.page - 1) * ROWS_PER_PAGE
    shown = _ordered(found, lambda seen: _rank(sort(seen.row)), asked.order, skipped + ROWS_PER_PAGE)[skipped:]
    return Page(shown, skipped + 1 if shown else 0, len(found), len(rows), asked, pages)


def cut(rows: Sequence[R], among: int, query: Query) -> Page[R]:
    """The page of rows that are found and in order already; the last one where there are not so many."""
    pages = pages_of(len(rows))
    asked = replace(query, page=min(query.page, pages))
    skipped = (asked.page - 1) * ROWS_PER_PAGE
    shown = list(rows[skipped : skipped + ROWS_PER_PAGE])
    return Page(shown, skipped + 1 if shown else 0, len(rows), among, asked, pages)


def pace_ms(took_seconds: float) -> int:
    """How long a browser waits before it asks for a page again that took so long to make."""
    return min(PACE_MS_MAX, max(PACE_MS_MIN, round(took_seconds * 1000 / SHARE_MAX)))


def _ordered(found: list[Seen[R]], rank: Callable[[Seen[R]], Any], order: Order, most: int) -> list[Seen[R]]:
    """The first ones. Few of many are found without sorting all."""
    if most * 8 > len(found):
        return sorted(found, key=rank, reverse=order == "desc")[:most]
    return nsmallest(most, found, key=rank) if order == "asc" else nlargest(most, found, key=rank)


def _rank(value: Any) -> tuple[bool, Any]:
    """What is not there comes before all that is."""
    return (value is not None, value)

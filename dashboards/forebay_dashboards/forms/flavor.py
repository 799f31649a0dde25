"""The flavor editor's form: what was typed, what it means, and what is wrong with it. No I/O."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, TypeVar

from forebay_service.languages import Text
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from forebay_dashboards.errors import FormError, MoneyError
from forebay_dashboards.forms.etags import stamp_of
from forebay_dashboards.rows.bases import Equivalent
from forebay_dashboards.rows.billing import PriceVersion
from forebay_dashboards.rows.pool import Flavor
from forebay_dashboards.text.money import Price, format_price_per_hour, parse_price_per_hour
from forebay_dashboards.text.quantities import format_memory_exactly, parse_memory
from forebay_dashboards.text.times import start_of

EQUIVALENTS_MAX = 32
COUNT_MAX = 100_000
CURRENCIES_MAX = 200
"""More than there are."""
RUNTIMES = ("torch", "xla", "exec")
"""What a flavor may offer, in the pool's order."""

NOWHERE = "none"
"""Typed for no place at all."""

T = TypeVar("T")
NONE: tuple[Equivalent, ...] = ()

_CURRENCY = re.compile("[A-Z]{3}")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_EQUIVALENT = re.compile(r"([0-9]{1,6}|0?[.][0-9]{1,3})(?:\s*[x×*]\s+|\s+)([!-~][ -~]{0,127})")  # noqa: RUF001 - people write the sign of multiplication


def _several(value: object) -> object:
    """A field that may be there several times."""
    return value if isinstance(value, list | tuple) else (value,)


Each = Annotated[tuple[T, ...], BeforeValidator(_several), Field(max_length=CURRENCIES_MAX)]


class Typed(BaseModel):
    """The fields of the form as they arrive; price, currency and stamp are there once for each currency, in the same order."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(max_length=128)] = ""
    """Of a new flavor."""
    memory: Annotated[str, Field(max_length=64)]
    equivalents: Annotated[str, Field(max_length=4096)] = ""
    runtimes: Each[Annotated[str, Field(max_length=16)]] | None = None
    """Those that are ticked, beside an empty one; None: of a form without."""
    egress: Annotated[str, Field(max_length=4096)] | None = None
    """Places that processes may reach; None: of a form without."""
    price: Each[Annotated[str, Field(max_length=64)]] = ()
    currency: Each[Annotated[str, Field(max_length=16)]] = ()
    stamp: Each[Annotated[str, Field(max_length=64)]] = ()
    """The tag of all prices in the currency; empty where there was none."""
    flavor_stamp: Annotated[str, Field(max_length=64)] = ""
    """The tag of memory and equivalents."""
    use_price: Annotated[str, Field(max_length=64)] = ""
    """Currency and rounded price that was offered, if its button was pressed; it counts instead of what was typed."""

    start: Annotated[str, Field(max_length=32)] = ""
    """When the prices that change begin to hold, as a browser sends a date and a time, in UTC; empty: at once."""

    @model_validator(mode="after")
    def _same_length(self) -> Typed:
        if not len(self.price) == len(self.currency) == len(self.stamp):
            raise ValueError("each price needs a currency and a stamp")
        return self


@dataclass(frozen=True)
class FlavorRow:
    """A row of the table: what the pool knows of a flavor and what billing asks for it; either may be missing."""

    name: str
    flavor: Flavor | None
    prices: tuple[PriceVersion, ...]
    """Those in force."""
    stamps: Mapping[str, str] = field(default_factory=dict)
    """By currency, of all its prices, those that are to come too: what an editor needs."""
    coming: tuple[PriceVersion, ...] = ()
    """Prices that are yet to begin, the next one first."""


@dataclass(frozen=True)
class PriceField:
    """The price in one currency as it is shown; the last field is for a first price in another one, and empty."""

    currency: str
    text: str
    in_force: PriceVersion | None
    stamp: str = ""
    problem: Text | None = None
    offer: str | None = None
    """The rounded price that may be taken instead of what was typed."""

    @property
    def lacks_currency(self) -> bool:
        """Whether the problem is that of the currency's field, and not of the price's."""
        return self.problem is not None and _CURRENCY.fullmatch(self.currency) is None


EMPTY = PriceField("", "", None)


@dataclass(frozen=True)
class Editor:
    """The form as it is shown."""

    row: FlavorRow
    memory: str
    equivalents: str
    prices: tuple[PriceField, ...]
    problems: Mapping[str, Text] = field(default_factory=dict)
    """A sentence by field; under ``form`` what concerns no single field."""
    start: str = ""
    flavor_stamp: str = ""
    name: str = ""
    """What was typed as the name of a new flavor."""
    runtimes: tuple[str, ...] = ()
    """Those that are ticked, of the ``choices``; none: all that its hosts serve."""
    choices: tuple[str, ...] = RUNTIMES
    egress: str = ""
    """Places that processes may reach, as :func:`parse_egress` reads them."""


@dataclass(frozen=True)
class NewPrice:
    """A price for device time from the edit's start on; ``first`` where billing has none for the flavor, in any currency."""

    nano_per_hour: int
    currency: str
    first: bool = False
    stamp: str = ""


@dataclass(frozen=True)
class Edit:
    """What a valid form asks for; ``prices`` are those that change."""

    memory_bytes: int
    equivalents: tuple[Equivalent, ...]
    flavor_changed: bool
    prices: tuple[NewPrice, ...]
    start_ns: int | None = None
    """When the prices begin to hold; None: at once."""
    flavor_stamp: str = ""
    runtimes: tuple[str, ...] | None = None
    egress: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Unsaved:
    """Why an edit was not saved, or not all of it."""

    problem: Text
    flavor_saved: bool
    saved_currencies: frozenset[str]


NEW = FlavorRow("", Flavor(name="", memory_bytes=0), ())
"""What the form of a new flavor begins with."""


def named(typed: Typed) -> tuple[FlavorRow, Text | None]:
    """The row that a new flavor begins as, and what is wrong with its name."""
    name = typed.name.strip()
    problem = Text("A name has a-z, 0-9, dots, dashes and underscores, at most 64, such as small.64gb.")
    return FlavorRow(name, Flavor(name=name, memory_bytes=0), ()), None if _NAME.fullmatch(name) else problem


def table(
    flavors: tuple[Flavor, ...], prices: tuple[PriceVersion, ...], coming: tuple[PriceVersion, ...] = ()
) -> tuple[FlavorRow, ...]:
    """Rows of all flavors that the pool or billing knows, the smallest memory first."""
    by_name = {flavor.name: flavor for flavor in flavors}
    names = by_name.keys() | {price.flavor for price in (*prices, *coming)}

    def of(name: str, versions: tuple[PriceVersion, ...]) -> tuple[PriceVersion, ...]:
        return tuple(price for price in versions if price.flavor == name)

    rows = [FlavorRow(name, by_name.get(name), of(name, prices), coming=of(name, coming)) for name in names]
    return tuple(sorted(rows, key=lambda row: (row.flavor.memory_bytes if row.flavor else 0, row.name)))


def open_editor(row: FlavorRow) -> Editor:
    """The form with the values in force."""
    shown = tuple(
        PriceField(price.currency, format_price_per_hour(price.price_nano_per_hour), price, row.stamps.get(price.currency, ""))
        for price in row.prices
    )
    return Editor(
        row=row,
        memory=format_memory_exactly(row.flavor.memory_bytes) if row.flavor and row.flavor.memory_bytes else "",
        equivalents=format_equivalents(row.flavor.equivalents) if row.flavor else "",
        runtimes=_offered(row) or (),
        egress=format_egress(_places(row)),
        prices=(*shown, EMPTY),
        flavor_stamp=stamp_of(row.flavor.etag) if row.flavor else "",
    )


def judge(row: FlavorRow, typed: Typed) -> Editor | Edit:
    """What the form asks for, or the form again with what is wrong in it."""
    problems: dict[str, Text] = {}
    memory_bytes, equivalents = 0, NONE
    if row.flavor is not None:
        memory_bytes = _collect(problems, "memory", lambda: parse_memory(typed.memory), 0)
        equivalents = _collect(problems, "equivalents", lambda: parse_equivalents(typed.equivalents), NONE)
    start_ns = _collect(problems, "start", lambda: start_of(typed.start), None)
    fields: list[PriceField] = []
    prices: list[NewPrice] = []
    for currency, text, stamp in zip(typed.currency, typed.price, typed.stamp, strict=True):
        judged, price = _judge_price(row, currency.strip().upper(), text, stamp, typed.use_price)
        if judged.currency and judged.currency in [earlier.currency for earlier in fields]:
            twice = Text("%(currency)s is there twice. Give each currency one price.", currency=judged.currency)
            judged = replace(judged, problem=twice)
        fields.append(judged)
        prices += [price] if price else []
    if start_ns is not None and not prices and not any(judged.problem for judged in fields):
        problems["start"] = Text("No price was changed, so nothing begins then. Change a price, or leave this empty.")
    if problems or any(judged.problem for judged in fields):
        return _editor(row, typed, fields, problems, typed.flavor_stamp)
    flavor = row.flavor
    flavor_changed = flavor is not None and (
        flavor.memory_bytes != memory_bytes
        or format_equivalents(flavor.equivalents) != format_equivalents(equivalents)
        or _offered(row) != _ticked(row, typed)
        or _places(row) != _typed_places(row, typed)
    )
    others = (_ticked(row, typed), _typed_places(row, typed))
    return Edit(memory_bytes, equivalents, flavor_changed, tuple(prices), start_ns, typed.flavor_stamp, *others)


def reopen(row: FlavorRow, typed: Typed, unsaved: Unsaved) -> Editor:
    """The form with what was typed, over what stands now: beside it what somebody else has changed. Saved again, it is meant."""
    problems, stamp_now = {"form": unsaved.problem}, stamp_of(row.flavor.etag) if row.flavor else ""
    if row.flavor is not None and not unsaved.flavor_saved and typed.flavor_stamp != stamp_now:
        problems["memory"] = _changed(row.flavor)
    fields = []
    for currency, text, stamp in zip((one.strip().upper() for one in typed.currency), typed.price, typed.stamp, strict=True):
        now = PriceField(currency, text, _in_force(row, currency), row.stamps.get(currency, ""))
        stale = now.stamp != stamp and currency not in unsaved.saved_currencies
        fields.append(replace(now, problem=_stale(now.in_force, currency)) if stale else now)
    return _editor(row, typed, fields, problems, stamp_now)


def retyped(row: FlavorRow, typed: Typed) -> Editor:
    """The form with what was typed, as it was."""
    fields = [PriceField(one, text, None, stamp) for one, text, stamp in zip(typed.currency, typed.price, typed.stamp, strict=True)]
    return _editor(row, typed, fields, {}, typed.flavor_stamp)


def _editor(row: FlavorRow, typed: Typed, fields: list[PriceField], problems: dict[str, Text], stamp: str) -> Editor:
    spare = () if any(shown.in_force is None for shown in fields) else (EMPTY,)
    ticked, egress = _ticked(row, typed) or (), format_egress(_places(row)) if typed.egress is None else typed.egress
    return Editor(row, typed.memory, typed.equivalents, (*fields, *spare), problems, typed.start, stamp, runtimes=ticked, egress=egress)


def _offered(row: FlavorRow) -> tuple[str, ...] | None:
    """What is set; None: all that its hosts serve."""
    return None if row.flavor is None or row.flavor.runtimes is None else tuple(row.flavor.runtimes)


def _ticked(row: FlavorRow, typed: Typed) -> tuple[str, ...] | None:
    if typed.runtimes is None:
        return _offered(row)
    return tuple(one for one in RUNTIMES if one in typed.runtimes) or None


def _places(row: FlavorRow) -> tuple[str, ...] | None:
    """What is set; None: those of the installation."""
    return None if row.flavor is None or row.flavor.egress is None else tuple(row.flavor.egress)


def _typed_places(row: FlavorRow, typed: Typed) -> tuple[str, ...] | None:
    return _places(row) if typed.egress is None else parse_egress(typed.egress)


def parse_egress(text: str) -> tuple[str, ...] | None:
    """``pypi.org:443, files.pythonhosted.org:443`` (or one a line), or ``none``; None where nothing is typed. The pool judges them."""
    places = tuple(text.replace(",", " ").lower().split())
    return None if not places else () if places == (NOWHERE,) else places


def format_egress(places: tuple[str, ...] | None) -> str:
    """As :func:`parse_egress` reads it."""
    return "" if places is None else ", ".join(places or (NOWHERE,))


def _in_force(row: FlavorRow, currency: str) -> PriceVersion | None:
    return next((price for price in row.prices if price.currency == currency), None)


def _judge_price(row: FlavorRow, currency: str, text: str, stamp: str, use_price: str) -> tuple[PriceField, NewPrice | None]:
    """The field with what is wrong in it, and the new price that it asks for, if any."""
    in_force = _in_force(row, currency)
    offered_currency, _, offered = use_price.partition(" ")
    text = offered if offered and offered_currency == currency else text
    shown = PriceField(currency, text, in_force, stamp)
    if in_force is None and not text.strip():
        return shown, None
    if _CURRENCY.fullmatch(currency) is None:
        return replace(shown, problem=Text("Name the currency of the price by its three letters, such as USD.")), None
    try:
        price = parse_price_per_hour(text)
    except MoneyError as error:
        return replace(shown, problem=error.text), None
    if not price.exact:
        return replace(shown, problem=_inexact(price, shown), offer=format_price_per_hour(price.nano_per_hour)), None
    if in_force is not None and price.nano_per_hour == in_force.price_nano_per_hour:
        return shown, None
    return shown, NewPrice(price.nano_per_hour, currency, first=not row.stamps, stamp=stamp)


def parse_equivalents(text: str) -> tuple[Equivalent, ...]:
    """``16 MI250, 8 MI300X`` (or one a line). Raises FormError."""
    parts = [part.strip() for part in re.split(r"[,\n]", text) if part.strip()]
    if not parts:
        raise FormError(Text("Name at least one device model that serves this flavor, as in: 16 MI250, 8 MI300X."))
    if len(parts) > EQUIVALENTS_MAX:
        raise FormError(Text("At most %(most)s equivalents fit; %(count)s were entered.", most=EQUIVALENTS_MAX, count=len(parts)))
    found = tuple(_equivalent(part) for part in parts)
    models = [equivalent.model for equivalent in found]
    for model in models:
        if models.count(model) > 1:
            raise FormError(Text("%(model)s is listed twice. Give each device model one count.", model=model))
    return found


def format_equivalents(equivalents: tuple[Equivalent, ...]) -> str:
    """As :func:`parse_equivalents` reads it."""
    return ", ".join(f"{row.amount} {row.model}" for row in equivalents)


def _equivalent(text: str) -> Equivalent:
    match = _EQUIVALENT.fullmatch(text)
    if match is None:
        raise FormError(
            Text("“%(typed)s” is not a count and a device model. Enter them as in: 16 MI250, 8 MI300X, or 0.25 A100.", typed=text[:60])
        )
    if "." in match[1]:
        return _share(match[2].strip(), int(f"{match[1].partition('.')[2]:0<3}"))
    count = int(match[1])
    if not 0 < count <= COUNT_MAX:
        raise FormError(
            Text(
                "The count of %(model)s must be 1 to %(most)s; %(count)s was entered.",
                model=match[2].strip(),
                most=f"{COUNT_MAX:,}",
                count=count,
            )
        )
    return Equivalent(model=match[2].strip(), count=count)


def _share(model: str, share_milli: int) -> Equivalent:
    if not share_milli:
        raise FormError(Text("The share of a %(model)s must be more than 0, and less than a whole one.", model=model))
    return Equivalent(model=model, count=1, share_milli=share_milli)


def _collect(problems: dict[str, Text], name: str, read: Callable[[], T], otherwise: T) -> T:
    try:
        return read()
    except (FormError, MoneyError) as error:
        problems[name] = error.text
        return otherwise


def _stale(in_force: PriceVersion | None, currency: str) -> Text:
    if in_force is None:
        return Text(
            "There are prices in %(currency)s that are to come. Look at the prices, and save again if you still mean it.", currency=currency
        )
    return Text(
        "Somebody else changed the prices in %(currency)s after this form was opened: now it is %(price)s per hour. "
        "Save again if you still mean it.",
        price=format_price_per_hour(in_force.price_nano_per_hour),
        currency=currency,
    )


def _changed(flavor: Flavor) -> Text:
    return Text(
        "Somebody else changed memory and equivalents after this form was opened: now they are %(memory)s, and %(equivalents)s. "
        "Save again if you still mean what you typed.",
        memory=format_memory_exactly(flavor.memory_bytes),
        equivalents=format_equivalents(flavor.equivalents),
    )


def _inexact(price: Price, shown: PriceField) -> Text:
    return Text(
        "%(typed)s %(currency)s per hour has more than nine decimals, so it cannot be billed exactly. "
        "The nearest price that can is %(nearest)s %(currency)s per hour.",
        typed=shown.text.strip(),
        currency=shown.currency,
        nearest=format_price_per_hour(price.nano_per_hour),
    )

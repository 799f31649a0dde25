"""The flavor editor's form: what was typed, what it means, and what is wrong with it. No I/O."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from forebay_dashboards.errors import FormError, MoneyError
from forebay_dashboards.money import Price, format_price_per_hour, parse_price_per_hour
from forebay_dashboards.quantities import format_memory_exactly, parse_memory
from forebay_dashboards.rows import Equivalent, Flavor, PriceVersion

EQUIVALENTS_MAX = 32
COUNT_MAX = 100_000

T = TypeVar("T")
NONE: tuple[Equivalent, ...] = ()

_EQUIVALENT = re.compile(r"([0-9]{1,6}|0?[.][0-9]{1,3})(?:\s*[x×*]\s+|\s+)([!-~][ -~]{0,127})")  # noqa: RUF001 - people write the sign of multiplication


class Typed(BaseModel):
    """The fields of the form as they arrive."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    memory: Annotated[str, Field(max_length=64)]
    equivalents: Annotated[str, Field(max_length=4096)] = ""
    price: Annotated[str, Field(max_length=64)] = ""
    use_price: Annotated[str, Field(max_length=64)] = ""
    """The rounded price that was offered, if its button was pressed; it counts instead of ``price``."""
    currency: Annotated[str, Field(pattern="^([A-Z]{3})?$")] = ""
    version: Annotated[int, Field(ge=0)] = 0
    """The version of the price that the form showed."""


@dataclass(frozen=True)
class FlavorRow:
    """A row of the table: what the pool knows of a flavor and what billing asks for it; either may be missing."""

    name: str
    flavor: Flavor | None
    prices: tuple[PriceVersion, ...]


@dataclass(frozen=True)
class Editor:
    """The form as it is shown."""

    row: FlavorRow
    memory: str
    equivalents: str
    price: str
    price_in_force: PriceVersion | None
    problems: Mapping[str, str] = field(default_factory=dict)
    """A sentence by field; under ``form`` what concerns no single field."""
    offer: str | None = None
    """The rounded price that may be taken instead of what was typed."""


@dataclass(frozen=True)
class NewPrice:
    """A price for device time from now on."""

    nano_per_second: int
    currency: str


@dataclass(frozen=True)
class Edit:
    """What a valid form asks for; None where nothing changes."""

    memory_bytes: int
    equivalents: tuple[Equivalent, ...]
    flavor_changed: bool
    price: NewPrice | None


def table(flavors: tuple[Flavor, ...], prices: tuple[PriceVersion, ...]) -> tuple[FlavorRow, ...]:
    """Rows of all flavors that the pool or billing knows, the smallest memory first."""
    by_name = {flavor.name: flavor for flavor in flavors}
    names = by_name.keys() | {price.flavor for price in prices}
    rows = [FlavorRow(name, by_name.get(name), tuple(price for price in prices if price.flavor == name)) for name in names]
    return tuple(sorted(rows, key=lambda row: (row.flavor.memory_bytes if row.flavor else 0, row.name)))


def open_editor(row: FlavorRow, currency: str = "") -> Editor:
    """The form with the values in force; of the prices, the one in ``currency``, else the first."""
    price = _price_in(row, currency)
    return Editor(
        row=row,
        memory=format_memory_exactly(row.flavor.memory_bytes) if row.flavor else "",
        equivalents=format_equivalents(row.flavor.equivalents) if row.flavor else "",
        price=format_price_per_hour(price.price_nano_per_second) if price else "",
        price_in_force=price,
    )


def judge(row: FlavorRow, typed: Typed) -> Editor | Edit:
    """What the form asks for, or the form again with what is wrong in it."""
    shown = open_editor(row, typed.currency)
    editor = replace(shown, memory=typed.memory, equivalents=typed.equivalents, price=typed.use_price or typed.price)
    problems: dict[str, str] = {}
    memory_bytes, equivalents, price = 0, NONE, None
    if row.flavor is not None:
        memory_bytes = _collect(problems, "memory", lambda: parse_memory(typed.memory), 0)
        equivalents = _collect(problems, "equivalents", lambda: parse_equivalents(typed.equivalents), NONE)
    if shown.price_in_force is not None:
        price = _collect(problems, "price", lambda: parse_price_per_hour(typed.use_price or typed.price), None)
        problems |= _stale(shown.price_in_force, typed)
    if price is not None and not price.exact and not problems:
        return replace(editor, problems=_inexact(price, editor), offer=format_price_per_hour(price.nano_per_second))
    if problems:
        return replace(editor, problems=problems)
    return _edit(row, shown.price_in_force, memory_bytes, equivalents, price)


def parse_equivalents(text: str) -> tuple[Equivalent, ...]:
    """``16 MI250, 8 MI300X`` (or one a line). Raises FormError."""
    parts = [part.strip() for part in re.split(r"[,\n]", text) if part.strip()]
    if not parts:
        raise FormError("Name at least one device model that serves this flavor, as in: 16 MI250, 8 MI300X.")
    if len(parts) > EQUIVALENTS_MAX:
        raise FormError(f"At most {EQUIVALENTS_MAX} equivalents fit; {len(parts)} were entered.")
    found = tuple(_equivalent(part) for part in parts)
    models = [equivalent.model for equivalent in found]
    for model in models:
        if models.count(model) > 1:
            raise FormError(f"{model} is listed twice. Give each device model one count.")
    return found


def format_equivalents(equivalents: tuple[Equivalent, ...]) -> str:
    """As :func:`parse_equivalents` reads it."""
    return ", ".join(f"{row.amount} {row.model}" for row in equivalents)


def _equivalent(text: str) -> Equivalent:
    match = _EQUIVALENT.fullmatch(text)
    if match is None:
        raise FormError(f"“{text[:60]}” is not a count and a device model. Enter them as in: 16 MI250, 8 MI300X, or 0.25 A100.")
    if "." in match[1]:
        return _share(match[2].strip(), int(f"{match[1].partition('.')[2]:0<3}"))
    count = int(match[1])
    if not 0 < count <= COUNT_MAX:
        raise FormError(f"The count of {match[2].strip()} must be 1 to {COUNT_MAX:,}; {count} was entered.")
    return Equivalent(model=match[2].strip(), count=count)


def _share(model: str, share_milli: int) -> Equivalent:
    if not share_milli:
        raise FormError(f"The share of a {model} must be more than 0, and less than a whole one.")
    return Equivalent(model=model, count=1, share_milli=share_milli)


def _price_in(row: FlavorRow, currency: str) -> PriceVersion | None:
    wanted = [price for price in row.prices if price.currency == currency]
    return next(iter(wanted or row.prices), None)


def _collect(problems: dict[str, str], name: str, read: Callable[[], T], otherwise: T) -> T:
    try:
        return read()
    except (FormError, MoneyError) as error:
        problems[name] = str(error)
        return otherwise


def _stale(in_force: PriceVersion, typed: Typed) -> dict[str, str]:
    if typed.version == in_force.version:
        return {}
    now = f"{format_price_per_hour(in_force.price_nano_per_second)} {in_force.currency} per hour"
    return {"price": f"The price was changed to {now} after this form was opened. Look again, and save again if you still mean it."}


def _inexact(price: Price, editor: Editor) -> dict[str, str]:
    currency = editor.price_in_force.currency if editor.price_in_force else ""
    nearest = format_price_per_hour(price.nano_per_second)
    sentence = (
        f"{editor.price.strip()} {currency} per hour is not a whole number of nano-{currency} per second, so it cannot be billed exactly. "
        f"The nearest price that can is {nearest} {currency} per hour ({price.nano_per_second:,} nano-{currency} per second)."
    )
    return {"price": sentence}


def _edit(
    row: FlavorRow, in_force: PriceVersion | None, memory_bytes: int, equivalents: tuple[Equivalent, ...], price: Price | None
) -> Edit:
    flavor = row.flavor
    flavor_changed = flavor is not None and (flavor.memory_bytes, flavor.equivalents) != (memory_bytes, equivalents)
    new_price = None
    if price is not None and in_force is not None and price.nano_per_second != in_force.price_nano_per_second:
        new_price = NewPrice(price.nano_per_second, in_force.currency)
    return Edit(memory_bytes, equivalents, flavor_changed, new_price)

"""The price book as a text that people keep and edit: read, written, and compared with the book. Pure.

A list tells what each flavor costs from the present on, and all that is scheduled after. What it does not name stays as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TypeAlias

from forebay_service.errors import Fault
from forebay_service.preconditions import tag_of

from forebay_billing.errors import InvalidPriceList
from forebay_billing.model.money import decimal_text, round_half_even
from forebay_billing.model.months import time_text
from forebay_billing.model.types import MODEL, PARKED, AnyPrice, priced_model
from forebay_billing.rules import yaml_tree
from forebay_billing.rules.parked import ParkedBook
from forebay_billing.rules.prices import TIME_NS_MAX, Past, PriceBook, SurchargeBook
from forebay_billing.rules.yaml_tree import Node, wrong

STEPS_MAX = 5000
NANO_DECIMALS = 9
NANO = 10**9
_NANO = re.compile(r"[0-9][0-9_]{0,29}", re.ASCII)
_DECIMAL = re.compile(r"[0-9]{1,12}([.][0-9]{1,18})?", re.ASCII)
_TIME = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})([.][0-9]{1,9})?Z", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS = {
    "prices": ("nano_per_hour", "per_hour"),
    "surcharges": ("nano_per_hour", "per_hour"),
    "parked": ("nano_per_gib_hour", "per_gib_hour"),
}
"""For each part what a price is called as it is kept, and as people say it."""
_FORMER = "nano_per_second"

_HEAD = """\
# The price list of {time}. What it does not name stays as it is; a first price without "from" is the one in force.
# prices: a flavor's, per_hour or nano_per_hour (1e-9 of the currency). surcharges: a whole device's of a model, beside the flavor's.
# parked: per_gib_hour or nano_per_gib_hour. [] is no surcharge, or no price of parked bytes, now and later.
"""


AnyBook: TypeAlias = PriceBook | SurchargeBook | ParkedBook


@dataclass(frozen=True)
class Step:
    """A price from ``start_ns`` until the next step; None is whatever was before."""

    start_ns: int | None
    amount_nano: int


@dataclass(frozen=True)
class PriceList:
    """Steps by flavor (or PARKED, or what a model is called among flavors) and currency, in the order of time."""

    steps: Mapping[tuple[str, str], tuple[Step, ...]]

    def last_amounts(self) -> dict[tuple[str, str], int]:
        """What everything costs once all of the list is in force."""
        return {key: steps[-1].amount_nano for key, steps in self.steps.items()}


@dataclass(frozen=True)
class Change:
    """A version that makes the book say what the list says, and what is in force at its start without it."""

    before: AnyPrice | None
    after: AnyPrice


def price_list_of(text: str) -> PriceList:
    """What ``text`` says. Raises InvalidPriceList, one sentence that names the line."""
    root = yaml_tree.tree_of(text)
    steps: dict[tuple[str, str], tuple[Step, ...]] = {}
    for part, node in _values(root, "the list", tuple(_UNITS)):
        if part == "parked":
            for currency, priced in _values(node, part):
                steps[PARKED, currency] = tuple(_steps(priced, part))
        else:
            for name, currencies in _values(node, part):
                if part == "prices" and name.startswith("@"):
                    raise wrong(currencies.line, f"{name!r:.80} is no name of a flavor.")
                for currency, priced in _values(currencies, name):
                    steps[name if part == "prices" else priced_model(name), currency] = tuple(_steps(priced, part))
    if sum(map(len, steps.values())) > STEPS_MAX:
        raise InvalidPriceList(f"A price list has at most {STEPS_MAX} prices.", Fault("list_length", values={"most": STEPS_MAX}))
    return PriceList(steps)


def text_of(book: PriceBook, parked: ParkedBook, now_ns: int) -> str:
    """The list of what is in force at ``now_ns`` and scheduled after; :func:`price_list_of` reads it."""
    lines = [_HEAD.format(time=time_text(now_ns))]
    name_before = None
    for part, a_book in (("prices", book), ("surcharges", book.surcharges), ("parked", parked)):
        said = _UNITS[part][1]
        keys = a_book.keys()
        if keys:
            lines.append(f"{part}:\n")
        for flavor, currency in keys:
            indent = "  " if part == "parked" else "    "
            if part != "parked" and flavor != name_before:
                lines.append(f"  {json.dumps(flavor.removeprefix(MODEL), ensure_ascii=False)}:\n")
                name_before = flavor
            steps = list(_steps_from(a_book, flavor, currency, now_ns))
            lines.append(f"{indent}{currency}:{'' if steps else ' []'}\n")
            for step in steps:
                start = "" if step.start_ns is None else f"from: {time_text(step.start_ns)}, "
                lines.append(f"{indent}  - {{{start}{said}: {_said(step.amount_nano)}}}\n")
    return "".join(lines)


def prices_tag(book: PriceBook, parked: ParkedBook) -> str:
    """The tag of all prices, those to come included."""
    return tag_of({"/".join(key): a_book.tag(*key) for a_book in (book, book.surcharges, parked) for key in a_book.keys()})


def changes(
    price_list: PriceList, book: PriceBook, parked: ParkedBook, past_of: Callable[[str, str], Past], now_ns: int, who: str
) -> list[Change]:
    """What makes the books say what the list says, none where they do already.

    Raises InvalidPrice, ClosedToPrices where that would change what was billed.
    """
    found: list[Change] = []
    for (flavor, currency), steps in sorted(price_list.steps.items()):
        past = past_of(flavor, currency)
        if flavor == PARKED:
            found += _parked_changes(parked, currency, steps, past, now_ns, who)
        elif flavor.startswith(MODEL):
            found += _surcharge_changes(book.surcharges, flavor.removeprefix(MODEL), currency, steps, past, now_ns, who)
        else:
            found += _flavor_changes(book, flavor, currency, steps, past, now_ns, who)
    return found


def _flavor_changes(
    book: PriceBook, flavor: str, currency: str, steps: tuple[Step, ...], past: Past, now_ns: int, who: str
) -> Iterator[Change]:
    own = PriceBook(book.versions(flavor, currency))
    for at_ns, amount in _points(own, flavor, currency, steps, past, now_ns):
        before = own.at(flavor, currency, at_ns)
        if before is None or before.price_nano_per_hour != amount:
            after = own.next_version(flavor, currency, amount, at_ns, now_ns, who, not own.holds(flavor), past)
            own = PriceBook([*own.history(), after])
            yield Change(before, after)


def _surcharge_changes(
    book: SurchargeBook, model: str, currency: str, steps: tuple[Step, ...], past: Past, now_ns: int, who: str
) -> Iterator[Change]:
    key = priced_model(model)
    own = SurchargeBook(book.versions(key, currency))
    for at_ns, amount in _points(own, key, currency, steps, past, now_ns):
        if own.nano_per_hour(model, currency, at_ns) != amount:
            before, after = own.at(key, currency, at_ns), own.next_version(model, currency, amount, at_ns, now_ns, who, past)
            own = SurchargeBook([*own.history(), after])
            yield Change(before, after)


def _parked_changes(book: ParkedBook, currency: str, steps: tuple[Step, ...], past: Past, now_ns: int, who: str) -> Iterator[Change]:
    own = ParkedBook(book.versions(PARKED, currency))
    for at_ns, amount in _points(own, PARKED, currency, steps, past, now_ns):
        if own.nano_per_gib_hour(currency, at_ns) != amount:
            before, after = own.at(PARKED, currency, at_ns), own.next_version(currency, amount, at_ns, now_ns, who, past)
            own = ParkedBook([*own.history(), after])
            yield Change(before, after)


def _points(
    book: AnyBook, flavor: str, currency: str, steps: tuple[Step, ...], past: Past, now_ns: int
) -> list[tuple[int, int]]:
    """Each moment at which book or list begin another price, from the beginning of the list on, and what the list says there."""
    first_ns = steps[0].start_ns
    begin_ns = max(now_ns, past.rated_until_ns) if first_ns is None else first_ns
    starts = {step.start_ns for step in steps if step.start_ns is not None and step.start_ns > begin_ns}
    moments = sorted({begin_ns, *starts, *book.changes(flavor, currency, begin_ns, TIME_NS_MAX + 1)})
    return [(at_ns, [s.amount_nano for s in steps if s.start_ns is None or s.start_ns <= at_ns][-1]) for at_ns in moments]


def _steps_from(book: AnyBook, flavor: str, currency: str, now_ns: int) -> Iterator[Step]:
    """What is in force, and what comes after; versions that change nothing are left out: before its first a surcharge is zero."""
    present = book.at(flavor, currency, now_ns)
    amount = None if isinstance(book, PriceBook) else 0
    if present is not None:
        amount = present.amount_nano
        yield Step(None, amount)
    for start_ns in book.changes(flavor, currency, now_ns, TIME_NS_MAX + 1):
        version = book.at(flavor, currency, start_ns)
        if version is not None and version.amount_nano != amount:
            amount = version.amount_nano
            yield Step(start_ns, amount)


def _values(node: Node, what: str, allowed: tuple[str, ...] | None = None) -> list[tuple[str, Node]]:
    """Names and values of a mapping."""
    if not isinstance(node, yaml_tree.Mapping):
        raise wrong(node.line, f"{what!r:.80} needs names with values below it.")
    for name in node.values:
        if allowed is not None and name not in allowed:
            raise wrong(node.lines[name], f"{name!r:.80} is not known here; there is {', '.join(allowed)}.")
    return list(node.values.items())


def _steps(node: Node, part: str) -> Iterator[Step]:
    """The prices of one flavor in one currency. A surcharge, or a price of parked bytes, without any is zero: what was scheduled is not."""
    if part != "prices" and isinstance(node, yaml_tree.Sequence) and not node.values:
        yield Step(None, 0)
        return
    if not isinstance(node, yaml_tree.Sequence) or not node.values:
        raise wrong(node.line, f"prices are a list, such as - {{{_UNITS[part][1]}: 2.00}}.")
    latest_ns = -1
    for position, entry in enumerate(node.values):
        step = _step(entry, part)
        if step.start_ns is None and position:
            raise wrong(entry.line, 'only the first price may be without "from".')
        if step.start_ns is not None and step.start_ns <= latest_ns:
            raise wrong(entry.line, "each price begins after the one before.")
        latest_ns = -1 if step.start_ns is None else step.start_ns
        yield step


def _step(node: Node, part: str) -> Step:
    kept, said = _UNITS[part]
    _refuse_former(node, kept, said)
    values = dict(_values(node, "a price", ("from", kept, said)))
    if (kept in values) == (said in values):
        raise wrong(node.line, f"a price has either {kept} or {said}.")
    start_ns = _time_ns(*_text(values["from"])) if "from" in values else None
    if kept in values:
        line, text = _text(values[kept])
        if _NANO.fullmatch(text) is None:
            raise wrong(line, f"{text!r:.80} is not a whole number from 0 on.")
        return Step(start_ns, int(text.replace("_", "")))
    return Step(start_ns, _exact_nano(*_text(values[said])))


def _refuse_former(node: Node, kept: str, said: str) -> None:
    """Raises InvalidPriceList for a list of a release that kept prices per second."""
    if isinstance(node, yaml_tree.Mapping) and _FORMER in node.values:
        instead = f"instead of {_FORMER} give {kept}, which is 3600 times as much, or {said}"
        raise wrong(node.lines[_FORMER], f"prices are kept per hour: {instead}.")


def _said(amount_nano: int) -> str:
    """As people write it: at least two decimals, no zeros after them."""
    units, _, rest = decimal_text(amount_nano, NANO_DECIMALS).partition(".")
    return f"{units}.{rest.rstrip('0').ljust(2, '0')}"


def _exact_nano(line: int, text: str) -> int:
    """``text`` in nano-units; never rounded behind anybody's back."""
    if _DECIMAL.fullmatch(text) is None:
        raise wrong(line, f"{text!r:.80} is not an amount, such as 2.16.")
    numerator, denominator = Decimal(text).as_integer_ratio()
    nano, rest = divmod(numerator * NANO, denominator)
    if rest:
        nearest = _said(round_half_even(numerator * NANO, denominator))
        raise wrong(line, f"{text} cannot be billed exactly: a price has nine decimals at most; the nearest is {nearest}.")
    return nano


def _text(node: Node) -> tuple[int, str]:
    if not isinstance(node, yaml_tree.Scalar):
        raise wrong(node.line, "a single value is expected here.")
    return node.line, node.text


def _time_ns(line: int, text: str) -> int:
    match = _TIME.fullmatch(text)
    try:
        moment = datetime.fromisoformat(match[1] + "+00:00") if match else None
    except ValueError:
        moment = None
    if match is None or moment is None or moment < _EPOCH:
        raise wrong(line, f"{text!r:.80} is not a time in UTC, such as 2026-12-01T00:00:00Z.")
    return (moment - _EPOCH) // timedelta(seconds=1) * 10**9 + int((match[2] or ".0")[1:].ljust(9, "0"))

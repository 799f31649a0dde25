"""Which flavors the devices that are here could serve, and that are not there yet. No I/O.

For each model of accelerators: its whole device, shares of it, and devices of one node together; and each default flavor that was made
before its equivalents named the model. Development devices get none.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from forebay_pool.model.catalogue import MIB, SHARES_MILLI, accelerator_of, way_of
from forebay_pool.model.types import WHOLE_MILLI, Device, Equivalent, Flavor, Price

GIB = 2**30
SHARE_BYTES_MIN = 8 * GIB
"""No share of a device with less memory is suggested."""
USED_MIN = 0.9
"""A flavor that gives so much of what serves it is the flavor for it: there is no other to make."""
FIGURES = 3


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A flavor to make, or one that is there with more to serve it."""

    flavor: Flavor
    """As it would be."""
    added: tuple[Equivalent, ...]
    """What of its equivalents would be new."""
    present: Flavor | None = None
    """As it is; None where there is none of the name."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A price for an operator to set, or not."""

    nano_per_hour: int
    """Rounded to three figures."""
    currency: str
    flavor: str
    """Whose price of memory it is."""


@dataclass(frozen=True, slots=True)
class _Model:
    """Devices of one model. Where they differ the least memory counts: what is suggested fits on each."""

    name: str
    memory_bytes: int
    largest_bytes: int
    together: int
    """How many stand in one node."""

    @property
    def gb(self) -> int:
        """As people call its size."""
        known = accelerator_of(self.name, self.memory_bytes)
        return round(self.memory_bytes / GIB) if known is None else known.data_sheet_gb

    @property
    def together_max(self) -> int:
        known = accelerator_of(self.name, self.memory_bytes)
        return min(self.together, known.together_max or self.together) if known is not None else self.together

    def bytes_of(self, way: Equivalent) -> int:
        """The memory that the way has, whole MiB."""
        return self.memory_bytes * way.count * way.share_milli // WHOLE_MILLI // MIB * MIB

    def ways(self) -> list[Equivalent]:
        """Shares of one, one, and 2, 4, 8 … together, up to all of a node."""
        shares = [Equivalent(self.name, 1, milli) for milli in SHARES_MILLI]
        counts = {2**power for power in range(1, self.together.bit_length())} | {self.together}
        gangs = [Equivalent(self.name, count) for count in sorted(counts) if count > 1]
        return [way for way in shares if way.share_milli == WHOLE_MILLI or self.bytes_of(way) >= SHARE_BYTES_MIN] + gangs


def suggestions(devices: Iterable[Device], flavors: Mapping[str, Flavor], scale: Sequence[Flavor]) -> list[Suggestion]:
    """What to make of the devices, the smallest first; ``scale`` are the default flavors that accelerators serve.

    Each can be served by devices of one node. Once all are made there are none.
    """
    found = _Drafts(flavors, scale)
    models = _models(devices)
    for model in models:
        for way in model.ways():
            found.add_size(model, way)
    for model in models:
        for default in scale:
            found.add_to_default(model, default)
    return sorted(found.suggestions(), key=lambda one: (one.flavor.memory_bytes, one.flavor.name))


def is_accelerator(device: Device) -> bool:
    """Whether it is none for development."""
    return device.kind in ("cuda", "hip")


def _models(devices: Iterable[Device]) -> list[_Model]:
    """By name."""
    near: Counter[tuple[str, str]] = Counter()
    memory: dict[str, list[int]] = {}
    for device in devices:
        if is_accelerator(device):
            near[device.model, device.node] += 1
            memory.setdefault(device.model, []).append(device.memory_bytes)
    together = {name: max(count for (model, _), count in near.items() if model == name) for name in memory}
    return [_Model(name, min(memory[name]), max(memory[name]), together[name]) for name in sorted(memory)]


class _Drafts:
    """What is suggested so far, by the flavor's name."""

    def __init__(self, flavors: Mapping[str, Flavor], scale: Sequence[Flavor]) -> None:
        self._flavors = flavors
        self._scale = scale
        self._drafts: dict[str, Flavor] = {}

    def add_size(self, model: _Model, way: Equivalent) -> None:
        """A flavor of the way's own size, unless one uses nearly all of it already."""
        memory_bytes = model.bytes_of(way)
        most_bytes = way.count * model.largest_bytes
        if any(way in one.equivalents and USED_MIN * memory_bytes <= one.memory_bytes <= most_bytes for one in self._flavors.values()):
            return
        nominal_gb = model.gb * way.count * way.share_milli // WHOLE_MILLI
        for gb in dict.fromkeys((nominal_gb, memory_bytes // GIB)):
            name = size_name(gb, self._scale)
            present = self._flavors.get(name)
            if present is None or present.memory_bytes <= memory_bytes:
                self._add(name, model, way, memory_bytes)
                return

    def add_to_default(self, model: _Model, default: Flavor) -> None:
        """The way in which the model serves the default flavor, if there is one of its name with its memory."""
        draft = self._drafts.get(default.name) or self._flavors.get(default.name)
        way = way_of(model.name, model.memory_bytes, model.together_max, default.memory_bytes)
        if way is not None and draft is not None and draft.memory_bytes == default.memory_bytes:
            self._add(default.name, model, way, default.memory_bytes)

    def _add(self, name: str, model: _Model, way: Equivalent, memory_bytes: int) -> None:
        """A model has one way to serve a flavor, which takes the place of one that never could; a new flavor has what all its ways have."""
        draft = self._drafts.get(name) or self._flavors.get(name) or Flavor(name, memory_bytes, ())
        own = [one for one in draft.equivalents if one.model == model.name]
        if any(one.count * model.largest_bytes >= draft.memory_bytes for one in own):
            return
        least_bytes = draft.memory_bytes if name in self._flavors else min(memory_bytes, draft.memory_bytes)
        others = tuple(one for one in draft.equivalents if one not in own)
        self._drafts[name] = replace(draft, memory_bytes=least_bytes, equivalents=(*others, way))

    def suggestions(self) -> list[Suggestion]:
        found = []
        for name, flavor in self._drafts.items():
            present = self._flavors.get(name)
            known = () if present is None else present.equivalents
            found.append(Suggestion(flavor, tuple(way for way in flavor.equivalents if way not in known), present))
        return found


def size_name(gb: int, scale: Sequence[Flavor]) -> str:
    """A name on the scale: the word of the largest default flavor that is no larger, and the size; below all of them the halvings count."""
    sizes = sorted((int(words[1].removesuffix("gb")), words[0]) for words in (one.name.rsplit(".", 1) for one in scale))
    least_gb, _ = sizes[0]
    if gb >= least_gb:
        return f"{max(size for size in sizes if size[0] <= gb)[1]}.{gb}gb"
    halvings = ((least_gb - 1) // max(1, gb)).bit_length()
    return f"{'' if halvings == 1 else halvings}xsmall.{gb}gb"


def proposed_price(memory_bytes: int, priced: Iterable[tuple[Flavor, Price]]) -> Proposal | None:
    """What an hour would cost at the price of memory that the flavor next in size has; None where no flavor has a price."""
    known = [(one, price.nano_per_hour, price.currency) for one, price in priced if price.nano_per_hour is not None]
    if not known:
        return None
    nearest, nano, currency = min(known, key=lambda row: abs(math.log(row[0].memory_bytes / memory_bytes)))
    exact = nano * memory_bytes // nearest.memory_bytes
    return Proposal(round(exact, FIGURES - len(str(exact))), currency, nearest.name)

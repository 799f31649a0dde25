"""Durations, bytes and counts as people read and type them."""

from __future__ import annotations

import re
from collections.abc import Callable

from forebay_service.languages import Text

from forebay_dashboards.errors import FormError
from forebay_dashboards.text.money import divide_half_even

NS_PER_SECOND = 10**9
GIB = 2**30
MEMORY_BYTES_MIN = 2**20
MEMORY_BYTES_MAX = 2**50

_BINARY_UNITS = {"B": 1, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_MEMORY = re.compile(r"([0-9]{1,16})(?:\.([0-9]{1,6}))?\s*(B|MiB|GiB|TiB)", re.IGNORECASE)


def seconds_text(seconds: str) -> Text:
    return Text("%(seconds)s s", seconds=seconds)


def minutes_text(minutes: str, seconds: str) -> Text:
    return Text("%(minutes)s min %(seconds)s s", minutes=minutes, seconds=seconds)


def hours_text(hours: str, minutes: str, seconds: str) -> Text:
    return Text("%(hours)s h %(minutes)s min %(seconds)s s", hours=hours, minutes=minutes, seconds=seconds)


def format_duration(duration_ns: int) -> Text:
    """Microseconds below a millisecond, seconds with three decimals below a minute, then minutes and hours."""
    if duration_ns < 1_000_000:
        return Text("%(microseconds)s µs", microseconds=divide_half_even(duration_ns, 1_000))
    milliseconds = divide_half_even(duration_ns, 1_000_000)
    if milliseconds < 60_000:
        return seconds_text(f"{milliseconds // 1000}.{milliseconds % 1000:03d}")
    seconds = divide_half_even(duration_ns, NS_PER_SECOND)
    hours, rest = divmod(seconds, 3600)
    minutes, seconds = divmod(rest, 60)
    if hours:
        return hours_text(f"{hours:,}", f"{minutes:02d}", f"{seconds:02d}")
    return minutes_text(f"{minutes}", f"{seconds:02d}")


def format_nanoseconds(duration_ns: int) -> str:
    """The duration exactly, for tooltips."""
    return f"{duration_ns:,} ns"


def format_memory(memory_bytes: int) -> str:
    """For tables: GiB with one decimal, without it where it is a whole number; MiB below a GiB."""
    if memory_bytes < GIB:
        return f"{divide_half_even(memory_bytes, 2**20):,} MiB"
    tenths = divide_half_even(memory_bytes * 10, GIB)
    decimal = f".{tenths % 10}" if memory_bytes % GIB else ""
    return f"{tenths // 10:,}{decimal} GiB"


def format_memory_exactly(memory_bytes: int) -> str:
    """The largest unit that keeps the figure whole; :func:`parse_memory` reads it back."""
    unit = next(name for name, size in reversed(_BINARY_UNITS.items()) if memory_bytes % size == 0 and (memory_bytes or size == 1))
    return f"{memory_bytes // _BINARY_UNITS[unit]} {unit}"


def format_energy(energy_mj: int) -> str:
    """Joules below a watt-hour, then watt-hours and kilowatt-hours, with three figures."""
    return _in_unit(energy_mj, (("mJ", 1), ("J", 1_000), ("Wh", 3_600_000), ("kWh", 3_600_000_000)))


def format_mass(mass_mg: int) -> str:
    """Milligrams, grams, kilograms or tonnes, with three figures."""
    return _in_unit(mass_mg, (("mg", 1), ("g", 10**3), ("kg", 10**6), ("t", 10**9)))


def _in_unit(amount: int, units: tuple[tuple[str, int], ...]) -> str:
    """In the largest unit that it is one of, with three figures where it is less than 100 of it."""
    name, size = next((name, size) for name, size in reversed(units) if amount >= size or size == 1)
    value = amount / size
    decimals = 0 if value >= 100 or size == 1 else 1 if value >= 10 else 2
    return f"{value:,.{decimals}f} {name}"


def parse_memory(text: str) -> int:
    """Bytes of ``64 GiB`` and the like; GB is refused, because it means two things. Raises FormError."""
    match = _MEMORY.fullmatch(text.strip())
    if match is None:
        sentence = Text(
            "“%(typed)s” is not an amount of memory. Enter a number and MiB, GiB or TiB, such as 64 GiB.", typed=text.strip()[:40]
        )
        raise FormError(sentence)
    decimals = match[2] or ""
    unit = next(size for name, size in _BINARY_UNITS.items() if name.lower() == match[3].lower())
    divisor: int = 10 ** len(decimals)
    size, rest = divmod(int(match[1] + decimals) * unit, divisor)
    if rest:
        raise FormError(Text("%(typed)s is not a whole number of bytes. Enter it in a smaller unit.", typed=text.strip()))
    if not MEMORY_BYTES_MIN <= size <= MEMORY_BYTES_MAX:
        most = format_memory_exactly(MEMORY_BYTES_MAX)
        raise FormError(Text("Memory must be 1 MiB to %(most)s; %(typed)s was entered.", most=most, typed=text.strip()))
    return size


def unit_of_seconds(longest: float) -> tuple[int, Callable[[str], Text]]:
    """The unit in which an axis of so many seconds is written, in seconds, and how."""
    if longest < 2 * 60:
        return 1, seconds_text
    if longest < 2 * 3600:
        return 60, lambda count: Text("%(count)s min", count=count)
    return 3600, lambda count: Text("%(count)s h", count=count)


def short_seconds(seconds: float) -> Text:
    """For tables of many: three digits at most."""
    if seconds < 1:
        return Text("%(count)s ms", count=f"{1000 * seconds:.0f}")
    unit, text = unit_of_seconds(seconds)
    return text(f"{seconds / unit:.3g}")

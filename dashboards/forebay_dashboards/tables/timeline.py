"""Who held which device when, as a chart that a template draws: a row for each device, and bars that lead closer. Pure.

One's own leases have a row for each notebook or command instead.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta, tzinfo
from heapq import nlargest
from typing import Generic, TypeVar

from forebay_service.languages import Text

from forebay_dashboards.errors import FormError
from forebay_dashboards.live.pool_copy import Seen
from forebay_dashboards.rows.billing import UsageRecord
from forebay_dashboards.rows.pool import Device, Holder, Lease, Stretch, Timeline
from forebay_dashboards.tables.chart import SERIES_MAX
from forebay_dashboards.tables.scale import Tick, natural
from forebay_dashboards.tables.table import pages_of
from forebay_dashboards.tables.visible import Running
from forebay_dashboards.text.quantities import NS_PER_SECOND
from forebay_dashboards.text.times import moment

T = TypeVar("T")
MS = 1_000_000
ROWS_SHOWN = 24
"""On a page."""
LENGTHS_SECONDS = (60, 600, 3_600, 6 * 3_600, 86_400, 7 * 86_400, 31 * 86_400)
"""That may be chosen; zooming comes to any between MS_MIN and the last."""
MS_MIN = 10
MS_MAX = LENGTHS_SECONDS[-1] * 1000
MOMENT_MS_MAX = 2**43
TICKS_MAX = 6
_APART_SECONDS = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600,
    43_200, 86_400, 172_800, 432_000, 864_000,
)  # fmt: skip
LISTED_MAX = 100
"""Of bars, in the table."""
LABELLED = 7.0
"""A bar that is wider than so many percents says whose it is."""


@dataclass(frozen=True)
class Window:
    """What is looked at: rows in which each word of ``search`` occurs, from ``since_ms`` to ``until_ms`` (Unix time)."""

    search: str
    page: int
    since_ms: int
    until_ms: int
    follows: bool
    """It ends now, whenever that is."""

    @property
    def length_ms(self) -> int:
        return self.until_ms - self.since_ms

    @property
    def since_ns(self) -> int:
        return self.since_ms * MS

    @property
    def until_ns(self) -> int:
        return self.until_ms * MS

    def arguments(self) -> dict[str, str | int]:
        """Of an address that shows it."""
        time: dict[str, str | int] = {"ms": self.length_ms} if self.follows else {"ms": self.length_ms, "until": self.until_ms}
        return time | ({"q": self.search} if self.search else {}) | ({"page": self.page} if self.page > 1 else {})

    def scaled(self, factor: float) -> Window:
        """So many times as much of the time, around the same middle; of one that ends now, up to now."""
        length = min(MS_MAX, max(MS_MIN, round(self.length_ms * factor)))
        if self.follows:
            return replace(self, since_ms=self.until_ms - length)
        middle = (self.since_ms + self.until_ms) // 2
        return replace(self, since_ms=middle - length // 2, until_ms=middle - length // 2 + length)

    def moved(self, part: float, now_ms: int) -> Window:
        """Later by so large a part of what is seen; not later than now."""
        until = min(now_ms, self.until_ms + round(self.length_ms * part))
        return replace(self, since_ms=until - self.length_ms, until_ms=until, follows=until >= now_ms)

    def of_length(self, seconds: int) -> Window:
        return self.scaled(seconds * 1000 / self.length_ms)

    def around(self, stretch: Stretch) -> Window:
        """The stretch, with a tenth of it before and after."""
        length = max(MS_MIN, (stretch.ended_ns - stretch.started_ns) // MS)
        since = stretch.started_ns // MS - length // 10
        return replace(self, since_ms=since, until_ms=since + min(MS_MAX, length + length // 5 + 1), follows=False)

    def on_page(self, page: int) -> Window:
        return replace(self, page=page)


def read_window(arguments: dict[str, str], now_ns: int) -> Window:
    """What an address asks for: the last hour unless it says something else. Raises FormError."""
    length, page = _number(arguments.get("ms") or "3600000"), _number(arguments.get("page") or "1")
    until = _number(arguments["until"]) if arguments.get("until") else now_ns // MS
    if not MS_MIN <= length <= MS_MAX or not length <= until <= MOMENT_MS_MAX or page < 1:
        raise FormError(Text("That is not a time that can be shown."))
    return Window(" ".join(arguments.get("q", "")[:200].split()), page, until - length, until, not arguments.get("until"))


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise FormError(Text("That is not a time that can be shown."))
    return int(text)


@dataclass(frozen=True)
class Bar:
    """A stretch on its device's row; ``x``, ``width``, ``y`` and ``height`` are percents. Several leases are as high as they held it."""

    stretch: Stretch
    style: str
    x: float
    width: float
    y: float
    height: float

    @property
    def labelled(self) -> bool:
        return self.stretch.holder is not None and self.width >= LABELLED

    @property
    def part(self) -> int:
        """For how much of its time the device was held, in percents."""
        return round(100 * self.stretch.held_ns / max(1, self.stretch.ended_ns - self.stretch.started_ns))


@dataclass(frozen=True)
class Track:
    """A device and its model, or a notebook, and when it was held or held one."""

    name: str
    note: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class Shown(Generic[T]):
    """A page of rows, and how many there are."""

    rows: tuple[T, ...]
    count: int
    pages: int


@dataclass(frozen=True)
class Gantt:
    """``series`` have colours of their own, those of most time first; ``others`` is how many have none. ``newest`` bars come first."""

    tracks: tuple[Track, ...]
    newest: tuple[tuple[Track, Bar], ...]
    series: tuple[str, ...]
    others: int
    ticks: tuple[Tick, ...]
    now: float | None
    """Where the present is, in percents."""
    more: bool


def devices_of(devices: Collection[Seen[Device]], window: Window) -> Shown[Device]:
    """Those that are looked at, by node and name."""
    words = window.search.casefold().split()
    found = sorted((seen.row for seen in devices if all(word in seen.text for word in words)), key=lambda row: natural(row.device))
    return _page_of(found, window)


def _page_of(found: Sequence[T], window: Window) -> Shown[T]:
    pages = pages_of(len(found), ROWS_SHOWN)
    first = (min(window.page, pages) - 1) * ROWS_SHOWN
    return Shown(tuple(found[first : first + ROWS_SHOWN]), len(found), pages)


def own_timeline(records: Iterable[UsageRecord], running: Iterable[Running], more: bool, window: Window, now_ns: int) -> Timeline:
    """One's own leases, with the notebook or command where others have the device. ``records`` are those that began in the window or an
    hour before it, which is the longest that one lasts."""
    found = [
        (one.started_at_ns, one.started_at_ns + one.duration_ns, False, _holder(one)) for one in records if one.parked_bytes is None
    ]
    known: dict[str, int] = {}
    for _, ended_ns, _, holder in found:
        known[holder.lease] = max(ended_ns, known.get(holder.lease, 0))
    for one in (run.lease for run in running):
        found.append((max(one.opened_at_ns, known.get(one.lease, 0)), now_ns, True, _holder(one)))
    words, ends, stretches = window.search.casefold().split(), dict[str, list[int]](), []
    for since_ns, until_ns, is_open, holder in sorted(found, key=lambda one: one[0]):
        label, start_ns, end_ns = holder.span.label, max(since_ns, window.since_ns), min(until_ns, window.until_ns)
        if start_ns < end_ns and all(word in label.casefold() for word in words):
            lanes = ends.setdefault(label, [])
            lane = next((number for number, end in enumerate(lanes) if end <= start_ns), len(lanes))
            lanes[lane : lane + 1] = [end_ns]
            times = {"started_ns": start_ns, "ended_ns": end_ns, "held_ns": end_ns - start_ns}
            stretches.append(Stretch(device=label, lane=lane, leases=1, is_open=is_open, holder=holder, **times))
    return Timeline(since_ns=window.since_ns, until_ns=window.until_ns, more=more, stretches=tuple(stretches))


def _holder(one: UsageRecord | Lease) -> Holder:
    return Holder(lease=one.lease, tenant=one.tenant, user=one.user, flavor=one.flavor, span=one.span)


def labels_of(timeline: Timeline, window: Window) -> Shown[str]:
    """Notebooks and commands, by when they last held a device."""
    last = {stretch.device: stretch.started_ns for stretch in timeline.stretches}
    return _page_of(sorted(last, key=lambda label: -last[label]), window)


def gantt(
    rows: Sequence[tuple[str, str]], timeline: Timeline, window: Window, now_ns: int, zone: tzinfo, series_of: Callable[[Holder], str]
) -> Gantt:
    """The chart of what was told; ``rows`` are names with what is said beside them, ``series_of`` is what colours tell apart."""
    held: dict[str, int] = {}
    of_row: dict[str, list[Stretch]] = {}
    for stretch in timeline.stretches:
        of_row.setdefault(stretch.device, []).append(stretch)
        if stretch.holder is not None:
            name = series_of(stretch.holder)
            held[name] = held.get(name, 0) + stretch.held_ns
    series = sorted(held, key=lambda name: (-held[name], name))[:SERIES_MAX]
    styles = {name: f"s{number}" for number, name in enumerate(series)}

    def style(stretch: Stretch) -> str:
        if stretch.leases > 1:
            return "several"
        return "s6" if stretch.holder is None else styles.get(series_of(stretch.holder), "s6")

    tracks = tuple(Track(name, note, _bars(of_row.get(name, []), window, style)) for name, note in rows)
    bars = ((track, bar) for track in tracks for bar in track.bars)
    newest = tuple(nlargest(LISTED_MAX, bars, key=lambda pair: pair[1].stretch.started_ns))
    now = 100 * (now_ns - window.since_ns) / (window.until_ns - window.since_ns)
    shown = now if 0 <= now < 99.9 else None
    return Gantt(tracks, newest, tuple(series), len(held) - len(series), _ticks(window, zone), shown, timeline.more)


def _bars(stretches: Sequence[Stretch], window: Window, style: Callable[[Stretch], str]) -> tuple[Bar, ...]:
    lanes = 1 + max((stretch.lane for stretch in stretches), default=0)
    length = window.until_ns - window.since_ns
    bars = []
    for stretch in stretches:
        x, width = 100 * (stretch.started_ns - window.since_ns) / length, 100 * (stretch.ended_ns - stretch.started_ns) / length
        part = stretch.held_ns / max(1, stretch.ended_ns - stretch.started_ns) if stretch.leases > 1 else 1.0
        height = max(10, 100 * part) / lanes
        y = 100 * (stretch.lane + 1) / lanes - height
        bars.append(Bar(stretch, style(stretch), round(x, 3), round(max(width, 0.15), 3), round(y, 1), round(height, 1)))
    return tuple(bars)


def _ticks(window: Window, zone: tzinfo) -> tuple[Tick, ...]:
    """Round moments of the viewer's zone."""
    length = window.length_ms / 1000
    apart = next((one for one in _APART_SECONDS if length / one <= TICKS_MAX), _APART_SECONDS[-1])
    apart_ns = round(apart * NS_PER_SECOND)
    offset = moment(window.since_ns).astimezone(zone).utcoffset() or timedelta()
    offset_ns = int(offset.total_seconds()) * NS_PER_SECOND
    first = -(-(window.since_ns + offset_ns) // apart_ns) * apart_ns - offset_ns
    found = []
    for at_ns in range(first, window.until_ns, apart_ns):
        at = 100 * (at_ns - window.since_ns) / (window.until_ns - window.since_ns)
        if 2 <= at <= 98:
            found.append(Tick(round(at, 3), _label(at_ns, apart, zone)))
    return tuple(found)


def _label(at_ns: int, apart: float, zone: tzinfo) -> str:
    when = moment(at_ns).astimezone(zone)
    if apart < 1:
        return f"{when:%H:%M:%S}.{at_ns % NS_PER_SECOND // MS:03d}"
    if apart < 60:
        return f"{when:%H:%M:%S}"
    return f"{when:%m-%d}" if apart >= 86_400 or (when.hour, when.minute) == (0, 0) else f"{when:%H:%M}"

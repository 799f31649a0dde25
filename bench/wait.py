"""Whether waits last as long as people are told: a production trace replayed through the pool's state machine, on too small fleets.

The trace is Alibaba's cluster-trace-gpu-v2023 in the two readings of ``simulate.py``: ``tasks`` compute as long as they live,
``notebooks`` in cells. Each request that waits is told a range, and told anew when that changes. "first" is the share of the
waits that ended within the first range that was told (from so many seconds to so many, counted from then on), "all" that of all ranges
told; "before" and "after" are the waits that ended sooner and later than the first one. Bar: 80 % of the waits lie in the range told.
A range that says little would hold always: "width" is the median of its width ÷ its middle. Requests that the trace ends before are
left out, and so is what is told before so many leases ended that anything is known.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from forebay_pool.model.events import Look
from forebay_wire import messages as wire
from report import SKIPPED, percentile, report
from simulate import WARM_UP_NS, Case, parser_of, plans_of
from simulation.agenda import SECOND_NS
from simulation.replay import Replay, limits_of
from simulation.trace import TraceMissing, first_devices, mixed, read_nodes, read_tasks

LOOK_NS = 5 * SECOND_NS
"""How often those who wait are told; the service does it more often."""
CASES = ((Case("tasks", "cell", 2.0), (48,)), (Case("notebooks", "cell", 2.0), (12, 14, 18)))
"""Readings, each with fleets of so many GPUs."""


class Told(NamedTuple):
    """A range, when it was told and how long it was waited after that."""

    at_ns: int
    low: float
    middle: float
    high: float
    waited: float = 0.0

    @property
    def holds(self) -> bool:
        return self.low <= self.waited <= self.high


class Waits(Replay):
    """Notes what those who wait are told, and how long they do."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._running: dict[str, list[Told]] = {}
        self.ended: list[list[Told]] = []
        """Of each wait that ended, what was told."""

    def start(self) -> None:
        super().start()
        self.agenda.at(0, self._look)

    def _look(self) -> None:
        if self.machine.line_changed:
            self.apply(Look())
        self.agenda.after(LOOK_NS, self._look)

    def _told(self, now_ns: int, session: str, message: wire.ToClient) -> None:
        super()._told(now_ns, session, message)
        if isinstance(message, wire.Queued) and message.estimate is not None:
            known = message.estimate
            told = Told(now_ns, known.low_seconds, known.middle_seconds, known.high_seconds)
            self._running.setdefault(session, []).append(told)
        elif isinstance(message, wire.Granted) and session in self._running:
            self.ended.append([told._replace(waited=(now_ns - told.at_ns) / SECOND_NS) for told in self._running.pop(session)])


def row_of(case: Case, waits: Waits) -> dict[str, Any]:
    firsts = [told[0] for told in waits.ended]
    everything = [told for some in waits.ended for told in some]
    return {
        "reading": case.reading,
        "GPUs": len(waits.machine.fleet.seats),
        "waits": len(firsts),
        "wait p50 s": round(percentile([told.waited for told in firsts], 0.5), 1),
        "p95": round(percentile([told.waited for told in firsts], 0.95), 1),
        "told": len(everything),
        "first %": round(100 * share(told.holds for told in firsts), 1),
        "before %": round(100 * share(told.waited < told.low for told in firsts), 1),
        "after %": round(100 * share(told.waited > told.high for told in firsts), 1),
        "all %": round(100 * share(told.holds for told in everything), 1),
        "width": round(percentile([(told.high - told.low) / max(told.middle, 1e-9) for told in firsts], 0.5), 1),
    }


def share(holds: Iterator[bool]) -> float:
    found = list(holds)
    return sum(found) / len(found)


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--gpus", type=int, action="append", help="only fleets of so many GPUs")
    options = parser.parse_args()
    try:
        nodes, tasks = mixed(read_nodes(options.trace)), read_tasks(options.trace)
    except TraceMissing as missing:
        print(f"not measured: {missing}", file=sys.stderr)
        return SKIPPED
    rows = []
    for case, fleets in CASES:
        if options.reading not in (None, case.reading):
            continue
        plans = plans_of(tasks, case.reading, options)
        for count in options.gpus or fleets:
            waits = Waits(first_devices(nodes, count), plans, case.level, limits_of(case.idle_release_seconds), options.seed, WARM_UP_NS)
            waits.run(float("inf"))
            if waits.ended:
                rows.append(row_of(case, waits))
    report("wait", rows, days=options.days or "all", copies=options.copies, seed=options.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""From the start of a cell to the moment its first command has been executed and confirmed, with a warm session.

Bar (DESIGN §10): p50 at most 5 ms, p99 at most 20 ms, one host. Cells run in a real IPython shell with its real hooks, each a span of
its own with its own lease from the pool; the time includes the round trip that confirms the command, so it is an upper bound.
"""

from __future__ import annotations

import argparse
import os
import time

from report import percentile, report

os.environ.setdefault("FOREBAY_URL", "local")

CELL = "value = x + 1; torch.cuda.synchronize(); finished_ns = time.perf_counter_ns()"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=300)
    parser.add_argument("--pause-ms", type=float, default=10.0, help="thinking time between cells, in which the lease is closed")
    options = parser.parse_args()
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    shell.run_cell("import time, torch; x = torch.ones(4, 4, device='cuda'); torch.cuda.synchronize()")
    waits = []
    for _ in range(options.cells):
        time.sleep(options.pause_ms / 1e3)
        start = time.perf_counter_ns()
        shell.run_cell(CELL).raise_error()
        waits.append((shell.user_ns["finished_ns"] - start) / 1e6)
    rows = [
        {"figure": name, "ms": percentile(waits, share), "bar ms": bar}
        for name, share, bar in (("p50", 0.5, 5.0), ("p90", 0.9, None), ("p99", 0.99, 20.0))
    ]
    report("cell", rows, cells=options.cells)


if __name__ == "__main__":
    main()

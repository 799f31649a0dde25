"""Runs every benchmark of this folder, one after the other, each a process of its own; each writes JSON into ``bench/results``."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from report import SKIPPED

HERE = Path(__file__).resolve().parent
SECONDS_MAX = 120
"""Longest one benchmark may take; all together take less than five minutes."""
NOT_BENCHMARKS = {"run", "report", "proxy"}


def benchmarks() -> list[str]:
    """Names of all benchmarks."""
    return sorted(path.stem for path in HERE.glob("*.py") if path.stem not in NOT_BENCHMARKS)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"which ones, of: {', '.join(benchmarks())}; all by default")
    names = parser.parse_args().names or benchmarks()
    unknown = sorted(set(names) - set(benchmarks()))
    if unknown:
        parser.error(f"no benchmark is called {', '.join(unknown)}; there are {', '.join(benchmarks())}")
    failed = []
    for name in names:
        print(f"\n== {name}", flush=True)
        start = time.monotonic()
        try:
            code = subprocess.run([sys.executable, str(HERE / f"{name}.py")], timeout=SECONDS_MAX).returncode
        except subprocess.TimeoutExpired:
            code = 124
        if code not in (0, SKIPPED):
            failed.append(name)
        verdict = {0: "done", SKIPPED: "skipped"}.get(code, "failed")
        print(f"-- {name}: {verdict} in {time.monotonic() - start:.0f} s", flush=True)
    if failed:
        print(f"\nfailed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

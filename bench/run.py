"""Runs every benchmark of this folder, one after the other, each a process of its own; each writes JSON into ``bench/results``."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from report import SKIPPED

HERE = Path(__file__).resolve().parent
SECONDS_MAX = 120
"""Longest one benchmark may take; all together take less than five minutes."""
NOT_BENCHMARKS = {"run", "report"}
IN_FOLDERS = {path.stem: path for path in (HERE / "services").glob("*.py")}
IN_FOLDERS |= {name: HERE / "network" / f"{name}.py" for name in ("delay", "encryption")}
IN_FOLDERS |= {"step": HERE / "step" / "__main__.py", "programs": HERE / "step" / "programs.py"}


def benchmarks() -> dict[str, Path]:
    """All benchmarks by name."""
    found = {path.stem: path for path in HERE.glob("*.py") if path.stem not in NOT_BENCHMARKS} | IN_FOLDERS
    return dict(sorted(found.items()))


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
            command, environment = [sys.executable, str(benchmarks()[name])], {**os.environ, "PYTHONPATH": str(HERE)}
            code = subprocess.run(command, timeout=SECONDS_MAX, env=environment).returncode
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

"""``python -m gpu``: runs parts in an environment that is there, prints as it goes, and writes a JSON file for each."""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gpu.checks import Report
from gpu.figures import FIGURES, PARTS
from gpu.sizes import sizes_of
from gpu.trial import Trial

RESULTS = Path(__file__).resolve().parents[1] / "results" / "gpu"
SHARES = {
    "build": 0.07, "fidelity": 0.25, "memory": 0.08, "park": 0.22, "share": 0.12, "speed": 0.22,
    "graphs": 0.2, "kernels": 0.1, "faults": 0.04, "gang": 0.2,
}  # fmt: skip
"""How parts that run together divide their time."""
HOST_KINDS = ("cpu", "null")
DESCRIBE_SECONDS_MAX = 180


class DeviceMissing(Exception):
    """The worker's PyTorch sees no such device; the message names those that it sees."""


def described(device: str | None) -> dict[str, Any]:
    """What the worker says of the device, or of its first accelerator. Raises DeviceMissing."""
    command = [sys.executable, "-m", "forebay_worker", "--describe"]
    said = json.loads(subprocess.run(command, capture_output=True, text=True, timeout=DESCRIBE_SECONDS_MAX, check=True).stdout)
    wanted = [one for one in said["devices"] if (one["device"] == device if device else one["kind"] not in HOST_KINDS)]
    if not wanted:
        names = ", ".join(one["device"] for one in said["devices"])
        raise DeviceMissing(f"there is no {device or 'GPU'} for PyTorch {said['torch']}; it sees {names}")
    found = wanted[0]
    return {"torch": said["torch"], **{name: found[name] for name in ("device", "model", "memory_bytes", "driver")}}


def run(part: str, options: argparse.Namespace, facts: dict[str, Any], seconds: float) -> int:
    """Runs a part. Returns how many checks failed."""
    print(f"== {part} (at most {seconds:.0f} s)", flush=True)
    began = time.monotonic()
    report = Report(part, options.results, seconds, facts, judged=not options.device.startswith("cpu"))
    names = [figure.words for figure in FIGURES.values() if figure.part == part]
    with tempfile.TemporaryDirectory(prefix="fb-", dir=options.folder) as root, report.figures(*names):
        trial = Trial(options.device, facts["memory_bytes"], sizes_of(options.device), Path(root), report)
        importlib.import_module(f"gpu.parts.{part}").run(trial, options.compile_seconds)
    print(f"-- {part}: {report.failures} of {len(report.checks)} failed, {time.monotonic() - began:.0f} s", flush=True)
    return report.failures


def main() -> int:
    """The exit status: 0 where no check failed."""
    parser = argparse.ArgumentParser(prog="python -m gpu", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument("--device", help="the worker's; cpu:0 rehearses with tiny sizes (default: the first GPU)")
    parser.add_argument("--seconds", type=float, default=570.0, help="for all of these parts together (default: 570)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the JSON files go (default: bench/results/gpu)")
    parser.add_argument("--folder", help="where sockets, logs and spilled tensors lie (default: the system's for temporary files)")
    parser.add_argument("--compile-seconds", type=float, help="what it took to build the extensions before")
    options = parser.parse_args()
    unknown = sorted(set(options.parts) - set(PARTS))
    if unknown:
        parser.error(f"no part is called {', '.join(unknown)}; there are {', '.join(PARTS)}")
    parts = [part for part in PARTS if part in (options.parts or PARTS)]
    try:
        facts = described(options.device)
    except DeviceMissing as missing:
        parser.error(str(missing))
    options.device = facts["device"]
    facts["rehearsal"] = options.device.startswith("cpu")
    print(f"{facts['model']} ({options.device}), PyTorch {facts['torch']}", flush=True)
    ends, failures = time.monotonic() + options.seconds, 0
    for at, part in enumerate(parts):
        left = ends - time.monotonic()
        failures += run(part, options, facts, left * SHARES[part] / sum(SHARES[other] for other in parts[at:]))
    print(f"{f'{failures} checks failed' if failures else 'all passed'}; the figures are in {options.results}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

"""What it costs to survive a worker's death, and how soon a program goes on: ``PYTHONPATH=bench python -m step.survive``.

A training with Adam, of which weights, gradients and moments are about so many MiB, runs on a pool of its own, with a real worker.
``step``: the time of a step with images, as a share of that without, both in turns of so many seconds. ``death``: the seconds from SIGKILL
to the worker until the next command of the program has been executed by another one, which is kept started.

Bars: step 1.02; death 3 s at the median, 10 s at the 99th percentile, with an image of 100 MiB.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from report import percentile, report

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import json, os, signal, sys, time
sys.path.insert(0, "tests/device")
import torch
from killed_training import workers
import forebay._C

mib, seconds, deaths = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
width = int((mib * 2**20 / 16) ** 0.5)  # weights, gradients and two moments, of four bytes each
net = torch.nn.Linear(width, width, bias=False).to("cuda:0")
optimizer = torch.optim.Adam(net.parameters(), 1e-4)
batch = torch.randn(64, width, device="cuda:0")


def step():
    loss = net(batch).square().mean()
    optimizer.zero_grad(set_to_none=False)
    loss.backward()
    optimizer.step()
    return loss.item()


def steps_for(seconds):
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        step()
        count += 1
    return (time.perf_counter() - began) / count


def processor_time(pid):
    with open(f"/proc/{pid}/stat") as stat:
        return int(stat.read().rpartition(")")[2].split()[11])


steps_for(2)
kept = forebay._C.statistics()["images"]
pace, images, found = steps_for(seconds), forebay._C.statistics()["images"] - kept, []
for _ in range(deaths):
    steps_for(3)
    os.kill(max(workers(), key=processor_time), signal.SIGKILL)
    killed = time.perf_counter()
    step()
    found.append(time.perf_counter() - killed)
print(json.dumps({"pace": pace, "images": images, "deaths": found}))
"""


def ran(mib: int, seconds: float, deaths: int, image_seconds: float) -> dict[str, Any]:
    """One run of the program, by itself."""
    environment = {**os.environ, "FOREBAY_URL": "local", "FOREBAY_IMAGE_SECONDS": str(image_seconds)}
    command = [sys.executable, "-c", PROGRAM, str(mib), str(seconds), str(deaths)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=600)
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, nargs="+", default=[4, 100], help="sizes of sessions")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each turn")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--deaths", type=int, default=10)
    parser.add_argument("--image-seconds", type=float, default=1.0, help="between two images, at least")
    options = parser.parse_args()
    rows = []
    for mib in options.mib:
        without, with_images = [], []
        for _ in range(options.turns):
            without.append(ran(mib, options.seconds, 0, 0))
            with_images.append(ran(mib, options.seconds, 0, options.image_seconds))
        deaths = ran(mib, 1, options.deaths, options.image_seconds)["deaths"]
        rows.append(
            {
                "MiB": mib,
                "step ms": 1e3 * min(one["pace"] for one in without),
                "step": statistics.median(one["pace"] for one in with_images) / statistics.median(one["pace"] for one in without),
                "images/s": sum(one["images"] for one in with_images) / options.seconds / options.turns,
                "death p50 s": percentile(deaths, 0.5),
                "death p99 s": percentile(deaths, 0.99),
            }
        )
    report("survive", rows, torch=torch.__version__)


if __name__ == "__main__":
    main()
